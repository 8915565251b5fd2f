import React from 'react';
import { Loading, Message } from '../src/components/Message';
import { Prose } from '../src/components/Prose';
import type { IState } from '../src/state';

const LOGGED_OUT = 401;
const FORBIDDEN = 403;

/** What stands between the page and the broker, if something does. */
export function Way(props: {
  state: IState;
  retry(): void;
}): JSX.Element | null {
  const { state, retry } = props;
  const { connection, loaded } = state;
  switch (connection.kind) {
    case 'open':
      return null;
    case 'connecting':
      return loaded ? null : <Loading label="Loading" />;
    case 'absent':
    case 'disconnected':
      return (
        <Message
          title="The GPU service does not answer"
          hint={
            loaded
              ? 'What is shown may be out of date. Trying again.'
              : 'Trying again.'
          }
          button={{ label: 'Try again', act: retry }}
        />
      );
    case 'refused':
      if (connection.status === LOGGED_OUT) {
        return (
          <Message
            title="You are logged out"
            text={connection.message}
            button={{ label: 'Log in again', act: () => location.reload() }}
          />
        );
      }
      return (
        <Message
          title={
            connection.status === FORBIDDEN
              ? 'No permission'
              : 'GPUs cannot be shown at present'
          }
          text={connection.message || 'The GPU service does not answer.'}
          hint={`${connection.hint} ${loaded ? 'What is shown may be out of date.' : ''}`.trim()}
          button={{ label: 'Try again', act: retry }}
        />
      );
  }
}

/** Why something cannot be shown, or was refused. */
export function Refusal(props: {
  refusal: { message: string; hint: string } | null | undefined;
}): JSX.Element | null {
  const { refusal } = props;
  return refusal ? (
    <p className="jp-Genv-trouble" role="alert">
      <Prose text={`${refusal.message} ${refusal.hint}`.trim()} />
    </p>
  ) : null;
}
