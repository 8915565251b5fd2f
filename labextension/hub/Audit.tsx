import React, { useEffect, useState } from 'react';
import { useFetched } from './hooks';
import type { Gpu } from './gpu';
import { Loading } from '../src/components/Message';
import { Refusal } from './Way';

/** Milliseconds without another letter after which is searched. */
const PAUSE = 300;
const FEW = 100;
const MANY = 1000;
const REFUSED = 400;

/** Who asked for what, and what came of it. */
export function Audit(props: { gpu: Gpu }): JSX.Element {
  const { gpu } = props;
  const [text, setText] = useState('');
  const [search, setSearch] = useState('');
  const [limit, setLimit] = useState(FEW);
  useEffect(() => {
    const timer = setTimeout(() => setSearch(text.trim()), PAUSE);
    return () => clearTimeout(timer);
  }, [text]);
  const log = useFetched(
    () => gpu.client.audit(search, limit),
    [gpu, search, limit]
  );
  const entries = log.value ?? [];
  return (
    <section className="jp-Genv-section" aria-label="Audit log">
      <div className="jp-Genv-hubBar">
        <h2 className="jp-Genv-heading">Audit log</h2>
        <input
          type="search"
          className="jp-Genv-input"
          aria-label="Search the audit log"
          placeholder="Search"
          value={text}
          onChange={event => setText(event.target.value)}
        />
        <button type="button" className="jp-Genv-button" onClick={log.again}>
          Refresh
        </button>
      </div>
      <Refusal refusal={log.refusal} />
      {log.value === null && !log.refusal && <Loading label="Loading" />}
      {log.value && !entries.length && (
        <p className="jp-Genv-quiet">
          {search ? `Nothing with “${search}”.` : 'Nothing is written down.'}
        </p>
      )}
      {entries.length > 0 && (
        <table className="jp-Genv-hubTable" aria-busy={log.busy}>
          <thead>
            <tr>
              <th scope="col">When</th>
              <th scope="col">Who</th>
              <th scope="col">Did</th>
              <th scope="col">Outcome</th>
              <th scope="col">Why</th>
            </tr>
          </thead>
          <tbody>
            {entries.map((entry, index) => (
              <tr key={`${entry.at} ${index}`}>
                <th scope="row">
                  <time dateTime={entry.at}>
                    {new Date(entry.at).toLocaleString()}
                  </time>
                </th>
                <td data-label="Who" title={entry.actor}>
                  {entry.name}
                </td>
                <td data-label="Did">
                  <code>
                    {entry.action} {entry.target}
                  </code>
                </td>
                <td
                  data-label="Outcome"
                  data-level={entry.status >= REFUSED ? 'over' : 'fine'}
                >
                  {entry.status >= REFUSED ? 'refused' : 'done'} ({entry.status}
                  )
                </td>
                {entry.said ? (
                  <td data-label="Why">{entry.said}</td>
                ) : (
                  <td className="jp-Genv-hubNothing" />
                )}
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {entries.length === limit && limit < MANY && (
        <button
          type="button"
          className="jp-Genv-button"
          onClick={() => setLimit(MANY)}
        >
          Show more
        </button>
      )}
    </section>
  );
}
