import type { ISignal } from '@lumino/signaling';
import { useCallback, useEffect, useRef, useState } from 'react';
import { refusalOf } from './gpu';

const TICK = 20_000;

/** Draw anew whenever something has changed. */
export function useSignal<T>(signal: ISignal<T, unknown>): void {
  const [, draw] = useState(0);
  useEffect(() => {
    const changed = () => draw(count => count + 1);
    signal.connect(changed);
    return () => {
      signal.disconnect(changed);
    };
  }, [signal]);
}

/** The time, as often as ages change, and only while somebody looks. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) {
        setNow(Date.now());
      }
    }, TICK);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** What stands behind `#` in the address. */
export function useHash(): string {
  const [hash, setHash] = useState(() => location.hash.slice(1));
  useEffect(() => {
    const changed = () => setHash(location.hash.slice(1));
    window.addEventListener('hashchange', changed);
    return () => window.removeEventListener('hashchange', changed);
  }, []);
  return hash;
}

/** Follow a value, but not more often than every so many milliseconds. */
export function useSlowly<T>(value: T, pause: number): T {
  const [slow, setSlow] = useState(value);
  const last = useRef(0);
  useEffect(() => {
    const left = last.current + pause - Date.now();
    const timer = setTimeout(
      () => {
        last.current = Date.now();
        setSlow(value);
      },
      Math.max(0, left)
    );
    return () => clearTimeout(timer);
  }, [value, pause]);
  return slow;
}

/** What is fetched: the last that came, and why the last attempt failed. */
export interface IFetched<T> {
  value: T | null;
  refusal: { message: string; hint: string } | null;
  busy: boolean;
  again(): void;
}

/** Fetch when the page is shown and when what is asked for has changed; an older answer is left. */
export function useFetched<T>(
  fetcher: () => Promise<T>,
  dependencies: readonly unknown[]
): IFetched<T> {
  const [value, setValue] = useState<T | null>(null);
  const [refusal, setRefusal] = useState<IFetched<T>['refusal']>(null);
  const [busy, setBusy] = useState(true);
  const attempt = useRef(0);
  const again = useCallback(() => {
    const mine = ++attempt.current;
    setBusy(true);
    fetcher()
      .then(
        found => {
          if (mine === attempt.current) {
            setValue(found);
            setRefusal(null);
          }
        },
        (error: unknown) => {
          if (mine === attempt.current) {
            setRefusal(refusalOf(error));
          }
        }
      )
      .finally(() => {
        if (mine === attempt.current) {
          setBusy(false);
        }
      });
    // eslint-disable-next-line react-hooks/exhaustive-deps, react-hooks/use-memo -- the caller's list
  }, dependencies);
  useEffect(() => {
    again();
    const seen = () => {
      if (!document.hidden) {
        again();
      }
    };
    document.addEventListener('visibilitychange', seen);
    const attempts = attempt;
    return () => {
      attempts.current++;
      document.removeEventListener('visibilitychange', seen);
    };
  }, [again]);
  return { value, refusal, busy, again };
}
