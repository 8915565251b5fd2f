import React from 'react';

/** A sentence of the server's; what stands between backticks is for typing. */
export function Prose(props: { text: string }): JSX.Element {
  return (
    <>
      {props.text
        .split('`')
        .map((part, index) =>
          index % 2 ? <code key={index}>{part}</code> : part
        )}
    </>
  );
}
