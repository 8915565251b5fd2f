import { beforeEach, expect, it } from 'vitest';
import type { IRequest } from '../src/api/types';
import { NotebookMemory, type IMetadata } from '../src/remember';
import { lasting, parseWanted } from '../src/wanted';
import { environment, grant } from './samples';

const HALF: IRequest = { fraction: 0.5 };
let metadata: Map<string, unknown>;
let asked: [string, IRequest][];
let memory: NotebookMemory;

const notebook: IMetadata = {
  getMetadata: key => metadata.get(key),
  setMetadata: (key, value) => void metadata.set(key, value),
  deleteMetadata: key => void metadata.delete(key)
};

beforeEach(() => {
  metadata = new Map();
  asked = [];
  memory = new NotebookMemory((id, request) => asked.push([id, request]));
});

const empty = () => environment({ pid: 7 });
const held = (request: IRequest = HALF) =>
  environment({ pid: 7, request, grants: [grant()], state: 'granted' });

it('what a notebook is given is remembered, and how long it waits is not', () => {
  memory.look(held({ ...HALF, wait: '1h', name: 'x' }), notebook);
  expect(metadata.get('genv_jupyter')).toEqual({ request: HALF });
  memory.look(held({ gpus: 1 }), notebook);
  expect(metadata.get('genv_jupyter')).toEqual({ request: { gpus: 1 } });
});

it('a notebook that is opened again asks once for what it had', () => {
  metadata.set('genv_jupyter', { request: HALF });
  memory.look(empty(), notebook);
  memory.look(empty(), notebook);
  expect(asked).toEqual([['kernel-1', HALF]]);
});

it('what was given back is forgotten, and not asked for again', () => {
  memory.look(held(), notebook);
  memory.look(empty(), notebook);
  expect(metadata.size).toBe(0);
  metadata.set('genv_jupyter', { request: HALF });
  memory.look(empty(), notebook);
  expect(asked).toEqual([]);
});

it('a kernel that ends gives nothing back for good', () => {
  memory.look(held(), notebook);
  memory.look(environment({ pid: null }), notebook);
  memory.look(environment({ pid: 7, kernel_state: 'dead' }), notebook);
  expect(metadata.size).toBe(1);
  memory.look({ ...empty(), id: 'kernel-2' }, notebook);
  expect(asked).toEqual([['kernel-2', HALF]]);
});

it('metadata of another kind is no request', () => {
  for (const odd of ['half', { request: 'half' }, { request: [1] }, null]) {
    metadata.set('genv_jupyter', odd);
    memory.look(empty(), notebook);
  }
  expect(asked).toEqual([]);
});

it('a word is a request, or is not', () => {
  expect(parseWanted('0.5')).toEqual({ fraction: 0.5 });
  expect(parseWanted(' 2 ')).toEqual({ gpus: 2 });
  expect(parseWanted('4G')).toEqual({ memory: '4G' });
  for (const none of ['', '0', '1.5', '-1', 'half', '1e3']) {
    expect(parseWanted(none)).toBeNull();
  }
  expect(lasting({ gpus: 1, memory: null })).toEqual({ gpus: 1 });
});
