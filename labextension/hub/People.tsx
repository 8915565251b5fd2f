import React, { useState } from 'react';
import { ApiError } from '../src/api/client';
import type { IEnvironment, IQuota, IUsageReport } from '../src/api/types';
import { boundedOf, quantityName, quotaLevel, quotaText } from '../src/quota';
import type { IState } from '../src/state';
import { formatMemory } from '../src/units';
import type { Gpu } from './gpu';
import { useFetched, useSlowly } from './hooks';
import { Spans, sinceOf, type Span } from './Spans';
import { trans } from './trans';
import { Loading } from '../src/components/Message';
import { Refusal } from './Way';

/** So many quotas are asked for at once, and of so many users at most. */
const AT_ONCE = 4;
const MOST = 60;
const HOUR = 3600;
/** Milliseconds between two looks at everybody's quota, however often somebody attaches. */
const PAUSE = 5000;

interface IPerson {
  user: string;
  environments: number;
  memory: number;
  hours: number;
  /** Part of the time in which nothing was done with what was held. */
  idle: number | null;
  quota: IQuota | null;
}

export interface IPeopleProps {
  gpu: Gpu;
  state: IState;
  now: number;
}

/** What each user holds, had, and may have. */
export function People(props: IPeopleProps): JSX.Element {
  const { gpu, state, now } = props;
  const [span, setSpan] = useState<Span>('7d');
  const holdings = holdingsOf(state.environments);
  const held = useSlowly(
    [...holdings]
      .map(([user, one]) => `${user} ${one.environments} ${one.memory}`)
      .join(),
    PAUSE
  );
  const people = useFetched(
    () => peopleOf(gpu, holdings, sinceOf(span)),
    [gpu, span, held]
  );
  return (
    <section className="jp-Genv-section" aria-label="Users">
      <div className="jp-Genv-hubBar">
        <h2 className="jp-Genv-heading">Users</h2>
        <Spans span={span} choose={setSpan} />
      </div>
      <Refusal refusal={people.refusal} />
      {people.value === null && !people.refusal && <Loading label="Loading" />}
      {people.value && !people.value.length && (
        <p className="jp-Genv-quiet">Nobody has held a GPU in this time.</p>
      )}
      {people.value && people.value.length > 0 && (
        <table className="jp-Genv-hubTable" aria-busy={people.busy}>
          <thead>
            <tr>
              <th scope="col">User</th>
              <th scope="col">Environments</th>
              <th scope="col">Memory held</th>
              <th scope="col">GPU-hours</th>
              <th scope="col">Idle</th>
              <th scope="col">Against the quota</th>
              <th scope="col">
                <span className="jp-Genv-visuallyHidden">Change</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {people.value.map(one => (
              <Person key={one.user} person={one} now={now} />
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function Person(props: { person: IPerson; now: number }): JSX.Element {
  const { person, now } = props;
  const { user, idle, quota } = person;
  return (
    <tr>
      <th scope="row">{user}</th>
      <td data-label="Environments">{person.environments}</td>
      <td data-label="Memory held">{formatMemory(person.memory)}</td>
      <td data-label="GPU-hours">{person.hours.toFixed(2)}</td>
      <td data-label="Idle">
        {idle === null ? '?' : `${Math.round(100 * idle)} %`}
      </td>
      <td data-label="Against the quota" className="jp-Genv-hubQuota">
        <Against quota={quota} now={now} />
      </td>
      <td>
        <a href={`#quotas/${encodeURIComponent(`user:${user}`)}`}>
          Set quota<span className="jp-Genv-visuallyHidden"> of {user}</span>
        </a>
      </td>
    </tr>
  );
}

/** What is used of each quantity that is bounded. */
function Against(props: { quota: IQuota | null; now: number }): JSX.Element {
  const { quota, now } = props;
  if (!quota) {
    return <span className="jp-Genv-quiet">not known</span>;
  }
  const bounded = boundedOf({ view: quota, at: now }, now);
  return bounded.length ? (
    <ul>
      {bounded.map(one => (
        <li key={one.quantity} data-level={quotaLevel(one)}>
          {quantityName(one.quantity, trans)}: {quotaText(one, trans)}
        </li>
      ))}
    </ul>
  ) : (
    <span className="jp-Genv-quiet">no bounds</span>
  );
}

/** What is held at present, by user. */
function holdingsOf(
  environments: ReadonlyMap<string, IEnvironment>
): Map<string, { environments: number; memory: number }> {
  const found = new Map<string, { environments: number; memory: number }>();
  for (const { user, grants } of environments.values()) {
    if (grants.length) {
      const one = found.get(user) ?? { environments: 0, memory: 0 };
      found.set(user, {
        environments: one.environments + 1,
        memory: grants.reduce((sum, grant) => sum + grant.memory, one.memory)
      });
    }
  }
  return found;
}

async function peopleOf(
  gpu: Gpu,
  holdings: ReadonlyMap<string, { environments: number; memory: number }>,
  since: string
): Promise<IPerson[]> {
  const report = await gpu.client.reportBy(since, 'user');
  const rows = new Map(
    report.rows.map((row): [string, IUsageReport['rows'][number]] => [
      row.user ?? row.key,
      row
    ])
  );
  const names = [...new Set([...holdings.keys(), ...rows.keys()])].slice(
    0,
    MOST
  );
  const quotas = await quotasOf(gpu, names);
  return names.map(user => {
    const row = rows.get(user);
    return {
      user,
      environments: holdings.get(user)?.environments ?? 0,
      memory: holdings.get(user)?.memory ?? 0,
      hours: (row?.gpu_seconds ?? 0) / HOUR,
      idle: row?.known_seconds ? row.idle_seconds / row.known_seconds : null,
      quota: quotas.get(user) ?? null
    };
  });
}

/** The quota of each; one that has no account any more has none that can be known. */
async function quotasOf(
  gpu: Gpu,
  names: readonly string[]
): Promise<Map<string, IQuota>> {
  const found = new Map<string, IQuota>();
  const left = [...names];
  const worker = async () => {
    for (let name = left.shift(); name !== undefined; name = left.shift()) {
      const quota = await gpu.client.quotaOf(name).catch(unknown);
      if (quota) {
        found.set(name, quota);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return found;
}

function unknown(error: unknown): null {
  if (error instanceof ApiError && error.code === 'unknown_user') {
    return null;
  }
  throw error;
}
