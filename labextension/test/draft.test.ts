import { expect, it } from 'vitest';
import {
  draftOf,
  HALF,
  landings,
  requestOf,
  shareText,
  stepped,
  withDevice
} from '../src/draft';
import type { IRequest } from '../src/api/types';
import { device, deviceGrant, grant, trans } from './samples';

const GIB = 2 ** 30;
const EMPTY = { ...HALF, share: '' };

it('the form becomes the body of a request', () => {
  expect(requestOf(EMPTY)).toBeNull();
  expect(requestOf({ ...EMPTY, share: 'half' })).toBeNull();
  expect(requestOf({ ...EMPTY, share: 'half', memory: '4G' })).toBeNull();
  expect(requestOf({ ...EMPTY, share: '0' })).toBeNull();
  expect(requestOf({ ...EMPTY, share: '0,5' })).toEqual({ fraction: 0.5 });
  expect(requestOf({ ...EMPTY, share: '2', memory: '10G' })).toEqual({
    gpus: 2,
    memory: '10G'
  });
  expect(requestOf({ ...EMPTY, memory: ' 4G ', devices: ['GPU-1'] })).toEqual({
    memory: '4G',
    devices: ['GPU-1']
  });
  expect(
    requestOf({ ...HALF, duration: '2h', name: ' llm ', wait: '30m' })
  ).toEqual({ fraction: 0.5, duration: '2h', name: 'llm', wait: '30m' });
});

it('devices that are named are as many as are asked for', () => {
  const whole = { ...HALF, share: '1' };
  const one = withDevice(whole, 'GPU-0');
  expect(requestOf(one)).toEqual({ gpus: 1, devices: ['GPU-0'] });
  const two = withDevice(one, 'GPU-1');
  expect(requestOf(two)).toEqual({ gpus: 2, devices: ['GPU-0', 'GPU-1'] });
  expect(requestOf(withDevice(two, 'GPU-0'))).toEqual({
    gpus: 1,
    devices: ['GPU-1']
  });
  const none = withDevice(withDevice(one, 'GPU-0'), 'GPU-1');
  expect(none.devices).toEqual(['GPU-1']);
});

it('a part of a device lives on one', () => {
  const first = withDevice(HALF, 'GPU-0');
  expect(withDevice(first, 'GPU-1').devices).toEqual(['GPU-1']);
  expect(withDevice(first, 'GPU-0').devices).toEqual([]);
});

it('steps go from a part to whole ones and back', () => {
  const steps = (share: string, step: 1 | -1) =>
    stepped({ ...HALF, share }, step, 3).share;
  expect(steps('', 1)).toBe('1');
  expect(steps('0.5', 1)).toBe('1');
  expect(steps('1', 1)).toBe('2');
  expect(steps('3', 1)).toBe('3');
  expect(steps('1.5', 1)).toBe('2');
  expect(steps('1.5', -1)).toBe('1');
  expect(steps('2', -1)).toBe('1');
  expect(steps('1', -1)).toBe('0.5');
  const named = { ...HALF, share: '2', devices: ['GPU-0', 'GPU-1'] };
  expect(stepped(named, 1, 3).devices).toEqual([]);
});

it('a share is said in words', () => {
  const said = (share: string, memory = '') =>
    shareText({ ...HALF, share, memory }, trans);
  expect(said('0.5')).toBe('half of one GPU');
  expect(said('0.3')).toBe('30 % of one GPU');
  expect(said('1')).toBe('1 whole GPU');
  expect(said('2')).toBe('2 whole GPUs');
  expect(said('2', '4G')).toBe('memory on each of 2');
  expect(said('')).toBe('no ceiling on compute');
  expect(said('half')).toBe('not a number');
});

it('what a request leaves counts what is held now as free', () => {
  const first = device({
    grants: [
      deviceGrant({ memory: 12 * GIB }),
      deviceGrant({ environment: 'kernel-2', memory: 6 * GIB })
    ]
  });
  const second = device({ uuid: 'GPU-1', index: 1 });
  const left = (...grants: ReturnType<typeof grant>[]) =>
    landings([first, second], 'kernel-1', grants).map(one => one.left);
  expect(left()).toEqual([18 * GIB, 24 * GIB]);
  expect(left(grant({ memory: 4 * GIB }))).toEqual([14 * GIB, 24 * GIB]);
  const whole = grant({ device: 'GPU-1', exclusive: true, memory: 23 * GIB });
  expect(left(whole)).toEqual([18 * GIB, 0]);
  const odd = device({ memory_usable: null });
  expect(landings([odd], 'kernel-1', [grant()])[0].left).toBeNull();
});

it('the form begins with what is held, where it has that', () => {
  const devices = [device()];
  const begin = (held: IRequest | null) => requestOf(draftOf(held, devices));
  expect(begin(null)).toEqual({ fraction: 0.5 });
  expect(begin({ gpus: 1 })).toEqual({ gpus: 1 });
  expect(begin({ memory: '4G', devices: ['GPU-0'] })).toEqual({
    memory: '4G',
    devices: ['GPU-0']
  });
  expect(begin({ fraction: 0.25, duration: 60 })).toEqual({ fraction: 0.25 });
  expect(begin({ fraction: 0.5, devices: ['0'] })).toEqual({ fraction: 0.5 });
  expect(begin({ gpus: 2, fraction: 0.5 })).toEqual({ fraction: 0.5 });
  expect(begin({ devices: ['GPU-0'] })).toEqual({ fraction: 0.5 });
});
