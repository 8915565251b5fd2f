import React from 'react';

export type Span = '1d' | '7d' | '30d';

const DAYS: Record<Span, number> = { '1d': 1, '7d': 7, '30d': 30 };
const NAMES: Record<Span, string> = {
  '1d': '1 day',
  '7d': '7 days',
  '30d': '30 days'
};
const DAY = 86_400_000;

/** When a span that ends now began. */
export function sinceOf(span: Span): string {
  return new Date(Date.now() - DAYS[span] * DAY).toISOString();
}

/** The choice of how far back something reaches. */
export function Spans(props: {
  span: Span;
  choose(span: Span): void;
}): JSX.Element {
  return (
    <span className="jp-Genv-choices" role="group" aria-label="Time">
      {(Object.keys(DAYS) as Span[]).map(span => (
        <button
          key={span}
          type="button"
          className="jp-Genv-button"
          aria-pressed={span === props.span}
          onClick={() => props.choose(span)}
        >
          {NAMES[span]}
        </button>
      ))}
    </span>
  );
}
