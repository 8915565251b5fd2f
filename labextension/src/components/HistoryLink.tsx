import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

export interface IHistoryLinkProps {
  kind: 'device' | 'environment';
  id: string;
  /** What it is called. */
  name: string;
  className?: string;
  title?: string;
  children: React.ReactNode;
  trans: TranslationBundle;
}

/** Something that opens its history when it is clicked; the panel sees to that. */
export function HistoryLink(props: IHistoryLinkProps): JSX.Element {
  const { kind, id, name, className, title, children, trans } = props;
  return (
    <button
      type="button"
      className={`jp-Genv-historyLink ${className ?? ''}`}
      data-history={kind}
      data-id={id}
      title={title}
    >
      <span className="jp-Genv-visuallyHidden">
        {trans.__('History of %1', name)}:{' '}
      </span>
      {children}
    </button>
  );
}
