import React from 'react';
import { createRoot } from 'react-dom/client';
import 'uplot/dist/uPlot.min.css';
import '../style/index.css';
import './page.css';
import { App } from './App';
import { Gpu } from './gpu';

const root = document.getElementById('root');
if (root) {
  createRoot(root).render(
    <App gpu={new Gpu(new URL('.', location.href).href)} />
  );
}
