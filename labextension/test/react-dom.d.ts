declare module 'react-dom/server' {
  export function renderToStaticMarkup(element: JSX.Element): string;
}
