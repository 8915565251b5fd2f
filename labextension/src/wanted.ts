import type { IRequest } from './api/types';
import { parseMemory } from './units';

/** Read what is asked for in a word: `0.5`, `2`, `4G`; null when it is none of these. */
export function parseWanted(text: string): IRequest | null {
  const word = text.trim();
  if (/^\d*\.?\d+$/.test(word)) {
    const number = Number(word);
    if (number > 0 && number < 1) {
      return { fraction: number };
    }
    return Number.isInteger(number) && number > 0 ? { gpus: number } : null;
  }
  return parseMemory(word) === null ? null : { memory: word };
}

/** What a notebook remembers of a request: what it is, and not how long it waits for it. */
export function lasting(request: IRequest): IRequest {
  const kept: IRequest = {};
  const { gpus, fraction, memory, devices, processes, mps } = request;
  for (const [key, value] of Object.entries({
    gpus,
    fraction,
    memory,
    devices,
    processes,
    mps
  })) {
    if (value !== null && value !== undefined) {
      Object.assign(kept, { [key]: value });
    }
  }
  return kept;
}
