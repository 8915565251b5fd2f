import { useEffect, useState } from 'react';
import type { IGrant, IRequest } from './api/types';
import type { IRefusal } from './state';

/** What a request would get now, or why it would be refused. */
export type IPreview =
  | { kind: 'fits'; grants: readonly IGrant[] }
  | { kind: 'refused'; refusal: IRefusal }
  /** It could not be tried; nothing stands in the way of asking for it. */
  | { kind: 'unknown' };

/** Asks what a request would get. */
export type Place = (request: IRequest) => Promise<IPreview>;

/** Milliseconds in which nothing more is typed. */
const PAUSE = 250;

/**
 * Have a request tried whenever it changes, or what is free does (`stamp`).
 *
 * What is shown meanwhile is the last answer, `fresh` if it was to the same request.
 */
export function usePreview(
  place: Place,
  request: IRequest | null,
  stamp: string
): { preview: IPreview | null; fresh: boolean } {
  const [last, setLast] = useState<{ asked: string; preview: IPreview }>();
  const asked = request === null ? null : JSON.stringify(request);
  useEffect(() => {
    if (asked === null) {
      return;
    }
    let wanted = true;
    const timer = setTimeout(() => {
      void place(JSON.parse(asked) as IRequest).then(preview => {
        if (wanted) {
          setLast({ asked, preview });
        }
      });
    }, PAUSE);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [place, asked, stamp]);
  return asked === null || !last
    ? { preview: null, fresh: false }
    : { preview: last.preview, fresh: last.asked === asked };
}
