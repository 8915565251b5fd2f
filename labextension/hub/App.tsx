import React, { useState } from 'react';
import type { IState } from '../src/state';
import { Audit } from './Audit';
import { Confirm, type IQuestion } from './Confirm';
import type { Gpu } from './gpu';
import { Header } from './Header';
import { useHash, useNow, useSignal } from './hooks';
import { Now } from './Now';
import { Past } from './Past';
import { People } from './People';
import { Rules } from './Rules';
import { useTheme } from './theme';
import { Way } from './Way';

type Tab = 'now' | 'users' | 'history' | 'quotas' | 'audit';

const ALL: readonly [Tab, string][] = [
  ['now', 'Now'],
  ['users', 'Users'],
  ['history', 'History'],
  ['quotas', 'Quotas'],
  ['audit', 'Audit']
];
const EVERYBODY: readonly Tab[] = ['now', 'history'];

/** The whole page. */
export function App(props: { gpu: Gpu }): JSX.Element {
  const { gpu } = props;
  useSignal(gpu.store.changed);
  useSignal(gpu.folds.changed);
  useSignal(gpu.meChanged);
  const now = useNow();
  const hash = useHash();
  const [theme, setTheme] = useTheme();
  const [question, setQuestion] = useState<IQuestion | null>(null);
  const { state } = gpu.store;
  const admin = gpu.me?.admin ?? false;
  const tabs = ALL.filter(([name]) => admin || EVERYBODY.includes(name));
  const [wanted, ...rest] = hash.split('/');
  const tab = tabs.find(([name]) => name === wanted)?.[0] ?? 'now';
  const subject = rest.join('/');
  return (
    <>
      <Header
        me={gpu.me}
        tabs={tabs}
        tab={tab}
        theme={theme}
        setTheme={setTheme}
      />
      <main className="jp-Genv" id="main" onClick={follow}>
        <div className="jp-Genv-hubContent">
          <Simulated state={state} />
          <Way state={state} retry={() => gpu.retry()} />
          {state.loaded && (
            <div
              className="jp-Genv-content"
              data-stale={state.connection.kind !== 'open'}
            >
              <Driver state={state} />
              {tab === 'now' && (
                <Now
                  gpu={gpu}
                  state={state}
                  admin={admin}
                  user={gpu.me?.name ?? null}
                  now={now}
                  ask={setQuestion}
                />
              )}
              {tab === 'users' && <People gpu={gpu} state={state} now={now} />}
              {tab === 'history' && (
                <Past
                  gpu={gpu}
                  state={state}
                  subject={subject}
                  admin={admin}
                  theme={theme}
                />
              )}
              {tab === 'quotas' && (
                <Rules gpu={gpu} scope={subject} now={now} ask={setQuestion} />
              )}
              {tab === 'audit' && <Audit gpu={gpu} />}
            </div>
          )}
        </div>
      </main>
      <Confirm question={question} close={() => setQuestion(null)} />
    </>
  );
}

/** A click on something that has a history opens that. */
function follow(event: React.MouseEvent): void {
  const link = (event.target as Element).closest<HTMLElement>('[data-history]');
  const { history, id } = link?.dataset ?? {};
  if (history && id) {
    location.hash = `history/${history}/${encodeURIComponent(id)}`;
  }
}

function Simulated(props: { state: IState }): JSX.Element | null {
  return props.state.devices.some(device => device.simulated) ? (
    <p className="jp-Genv-simulated">
      <strong>SIMULATED</strong> These devices do not exist.
    </p>
  ) : null;
}

/** What is wrong with the driver. */
function Driver(props: { state: IState }): JSX.Element | null {
  const trouble = props.state.health?.driver;
  return trouble ? (
    <p className="jp-Genv-hubSaid jp-Genv-trouble">{trouble}</p>
  ) : null;
}
