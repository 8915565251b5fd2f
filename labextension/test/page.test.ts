// @vitest-environment jsdom
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Page, type Resumed } from '../src/page';

let page: Page;
let told: Resumed[];
let hidden: boolean;

beforeEach(() => {
  vi.useFakeTimers();
  hidden = false;
  vi.spyOn(document, 'hidden', 'get').mockImplementation(() => hidden);
  page = new Page();
  told = [];
  page.resumed.connect((_, how) => void told.push(how));
});

afterEach(() => {
  page.dispose();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

const look = (now: boolean) => {
  hidden = !now;
  document.dispatchEvent(new Event('visibilitychange'));
};

/** The clock goes on and no timer runs, as while a computer sleeps. */
const sleep = (ms: number) => vi.setSystemTime(Date.now() + ms);

it('a page that is awake is told of nothing', async () => {
  await vi.advanceTimersByTimeAsync(3_600_000);
  expect(told).toEqual([]);
});

it('the first tick after the computer slept says so, and only that one', async () => {
  sleep(3_600_000);
  await vi.advanceTimersByTimeAsync(20_000);
  expect(told).toEqual(['woken']);
  await vi.advanceTimersByTimeAsync(3_600_000);
  expect(told).toEqual(['woken']);
});

it('a page in the background, ticked once a minute, has not slept', async () => {
  look(false);
  for (let minute = 0; minute < 5; minute++) {
    sleep(40_000); // and 20 s that the timer takes
    await vi.advanceTimersByTimeAsync(20_000);
  }
  expect(told).toEqual([]);
});

it('eyes that come before the timer find a page that knows that it slept', () => {
  look(false);
  expect(told).toEqual([]);
  sleep(3_600_000);
  look(true);
  expect(told).toEqual(['woken', 'shown']);
  look(false);
  look(true);
  expect(told).toEqual(['woken', 'shown', 'shown']);
});

it('a network that is back is like waking up', () => {
  window.dispatchEvent(new Event('online'));
  expect(told).toEqual(['woken']);
});

it('after dispose nothing ticks and nothing is listened to', async () => {
  page.dispose();
  expect(vi.getTimerCount()).toBe(0);
  const fresh: Resumed[] = [];
  page.resumed.connect((_, how) => void fresh.push(how));
  window.dispatchEvent(new Event('online'));
  look(true);
  expect(fresh).toEqual([]);
});
