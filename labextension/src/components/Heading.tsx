import React from 'react';
import { caretDownIcon, caretRightIcon } from '../icons';
import type { IFolds } from '../folds';

export interface IHeadingProps {
  title: string;
  note?: string;
  /** The section, as it is remembered. */
  name: string;
  folds: IFolds;
}

/** The heading of a section, which folds it away. */
export function Heading(props: IHeadingProps): JSX.Element {
  const { title, note, name, folds } = props;
  return (
    <h2 className="jp-Genv-heading">
      <Fold name={name} folds={folds}>
        {title}
      </Fold>
      {note && (
        <span className="jp-Genv-headingNote" title={note}>
          {note}
        </span>
      )}
    </h2>
  );
}

/** A button that folds something away. */
export function Fold(props: {
  name: string;
  folds: IFolds;
  /** Whether it is folded away; left out, what is remembered says so. */
  folded?: boolean;
  children: React.ReactNode;
}): JSX.Element {
  const { name, folds, folded = folds.has(name), children } = props;
  const Caret = folded ? caretRightIcon : caretDownIcon;
  return (
    <button
      type="button"
      className="jp-Genv-fold"
      aria-expanded={!folded}
      onClick={() => folds.toggle(name)}
    >
      <Caret.react tag="span" className="jp-Genv-caret" aria-hidden="true" />
      {children}
    </button>
  );
}
