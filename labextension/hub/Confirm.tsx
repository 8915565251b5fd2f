import React, { useEffect, useRef, useState } from 'react';

/** What is asked before something is done to others. */
export interface IQuestion {
  title: string;
  text: string;
  /** What the button that does it is called. */
  label: string;
  /** Asked for as well, where something can be said about it. */
  reason?: string;
  act(reason: string): unknown;
}

/** A question that must be answered first; Escape is no. */
export function Confirm(props: {
  question: IQuestion | null;
  close(): void;
}): JSX.Element | null {
  const { question, close } = props;
  return question && <Asked question={question} close={close} />;
}

function Asked(props: { question: IQuestion; close(): void }): JSX.Element {
  const { question, close } = props;
  const node = useRef<HTMLDialogElement>(null);
  const [reason, setReason] = useState('');
  useEffect(() => {
    node.current?.showModal();
  }, []);
  return (
    <dialog
      ref={node}
      className="jp-Genv-hubDialog"
      aria-labelledby="question"
      onClose={close}
    >
      <form
        method="dialog"
        onSubmit={event => {
          event.preventDefault();
          close();
          void question.act(reason.trim());
        }}
      >
        <h2 id="question">{question.title}</h2>
        <p>{question.text}</p>
        {question.reason !== undefined && (
          <label className="jp-Genv-hubField">
            {question.reason}
            <input
              className="jp-Genv-input"
              value={reason}
              maxLength={200}
              onChange={event => setReason(event.target.value)}
            />
          </label>
        )}
        <p className="jp-Genv-hubButtons">
          <button
            type="button"
            className="jp-Genv-button"
            onClick={() => node.current?.close()}
          >
            Cancel
          </button>
          <button type="submit" className="jp-Genv-button jp-mod-main">
            {question.label}
          </button>
        </p>
      </form>
    </dialog>
  );
}
