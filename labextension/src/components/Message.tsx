import React from 'react';
import { Prose } from './Prose';

/** Why there is nothing to see, and what can be done about it. */
export function Message(props: {
  title: string;
  text?: string;
  hint?: string;
  button?: { label: string; act(): void };
}): JSX.Element {
  const { title, text, hint, button } = props;
  return (
    <div className="jp-Genv-message" role="status">
      <p className="jp-Genv-messageTitle">{title}</p>
      {text && (
        <p>
          <Prose text={text} />
        </p>
      )}
      {hint && (
        <p className="jp-Genv-hint">
          <Prose text={hint} />
        </p>
      )}
      {button && (
        <button
          type="button"
          className="jp-Genv-button"
          onClick={() => button.act()}
        >
          {button.label}
        </button>
      )}
    </div>
  );
}

/** Something is on its way; `label` says so to those who do not see it. */
export function Loading(props: { label: string }): JSX.Element {
  return (
    <div className="jp-Genv-loading" role="status">
      <span className="jp-Genv-visuallyHidden">{props.label}</span>
      <span className="jp-Genv-skeleton" />
      <span className="jp-Genv-skeleton" />
      <span className="jp-Genv-skeleton" />
    </div>
  );
}
