import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useId, useMemo, useState } from 'react';
import type { IFolds } from '../folds';
import {
  arrange,
  isActive,
  labelsOf,
  Rows,
  type Entry,
  type IListing,
  type IRow,
  type SortKey
} from '../listing';
import type { IState } from '../state';
import { formatMemory } from '../units';
import { EnvironmentRow, type IRowActions } from './EnvironmentRow';
import { Heading } from './Heading';
import { VirtualList } from './VirtualList';

export interface IEnvironmentsProps {
  state: IState;
  /** The environment of the notebook in front. */
  own: string | null;
  actions: IRowActions;
  folds: IFolds;
  now: number;
  trans: TranslationBundle;
}

const HEIGHT = 46;
/** So many are seen at a glance: no need to sort or to filter. */
const FEW = 5;
const GROUPED = 'environments grouped';

/** All environments of the host: who has what, and what comes of it. */
export function Environments(props: IEnvironmentsProps): JSX.Element {
  const { state, folds, trans } = props;
  const active = useMemo(
    () => [...state.environments.values()].filter(isActive).length,
    [state.environments]
  );
  return (
    <section
      className="jp-Genv-section jp-Genv-environments"
      aria-label={trans.__('Environments')}
    >
      <Heading
        title={trans.__('Environments')}
        note={active ? String(active) : undefined}
        name="environments"
        folds={folds}
      />
      {!folds.has('environments') && <Body {...props} />}
    </section>
  );
}

function Body(props: IEnvironmentsProps): JSX.Element {
  const { state, own, actions, folds, now, trans } = props;
  const [sort, setSort] = useState<SortKey>('memory');
  const [filter, setFilter] = useState('');
  const [all, setAll] = useState(false);
  const grouped = folds.has(GROUPED);
  const rows = useRows(state, trans);
  const entries = useMemo(
    () => arrange(rows, { sort, grouped, filter, all }),
    [rows, sort, grouped, filter, all]
  );
  const idle = rows.filter(row => !isActive(row.environment)).length;
  const listed = all ? rows.length : rows.length - idle;
  return (
    <>
      {(listed > FEW || filter) && (
        <Tools
          listing={{ sort, grouped, filter, all }}
          setSort={setSort}
          setFilter={setFilter}
          group={() => folds.toggle(GROUPED)}
          trans={trans}
        />
      )}
      {entries.length > 0 ? (
        <VirtualList
          items={entries}
          className="jp-Genv-rows"
          label={trans.__('Environments')}
          height={HEIGHT}
          keyOf={entry => entry.key}
          attributes={attributes}
          render={entry =>
            entry.kind === 'group' ? (
              <Group entry={entry} trans={trans} />
            ) : (
              <EnvironmentRow
                row={entry.row}
                own={entry.row.environment.id === own}
                path={actions.pathOf(entry.row.environment)}
                busy={state.busy.has(entry.row.environment.id)}
                refusal={
                  entry.row.environment.id === own
                    ? undefined
                    : state.refusals.get(entry.row.environment.id)?.message
                }
                actions={actions}
                now={now}
                trans={trans}
              />
            )
          }
        />
      ) : (
        <p className="jp-Genv-quiet">
          {filter
            ? trans.__('Nothing here is called that.')
            : trans.__('Nobody holds a GPU.')}
        </p>
      )}
      {idle > 0 && (
        <button
          type="button"
          className="jp-Genv-link"
          aria-pressed={all}
          onClick={() => setAll(!all)}
        >
          {all
            ? trans.__('Hide those without a GPU')
            : trans._n('1 without a GPU', '%1 without a GPU', idle)}
        </button>
      )}
    </>
  );
}

/** The rows of all environments. */
function useRows(state: IState, trans: TranslationBundle): readonly IRow[] {
  const { devices, environments, usage } = state;
  const named = devices.map(({ uuid, index }) => `${uuid} ${index}`).join();
  const labels = useMemo(
    () => labelsOf(devices, trans),
    // What devices are called changes with their list, not with every reading of them.
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [named, trans]
  );
  const [rows] = useState(() => new Rows());
  return useMemo(
    () => rows.of(environments, usage, labels),
    [rows, environments, usage, labels]
  );
}

function attributes(entry: Entry): React.LiHTMLAttributes<HTMLLIElement> {
  return entry.kind === 'group'
    ? { className: 'jp-Genv-group' }
    : { className: 'jp-Genv-row' };
}

function Group(props: {
  entry: Extract<Entry, { kind: 'group' }>;
  trans: TranslationBundle;
}): JSX.Element {
  const { entry, trans } = props;
  const { user, count, cap } = entry;
  return (
    <>
      <span className="jp-Genv-groupName">{user}</span>
      <span className="jp-Genv-amount">
        {trans._n('1 environment', '%1 environments', count)}
        {' · '}
        {formatMemory(cap)}
      </span>
    </>
  );
}

function Tools(props: {
  listing: IListing;
  setSort(key: SortKey): void;
  setFilter(text: string): void;
  group(): void;
  trans: TranslationBundle;
}): JSX.Element {
  const { listing, trans } = props;
  const id = useId();
  const orders: [SortKey, string][] = [
    ['memory', trans.__('most memory')],
    ['used', trans.__('most used')],
    ['name', trans.__('name')],
    ['user', trans.__('owner')],
    ['since', trans.__('held longest')],
    ['idle', trans.__('idle longest')]
  ];
  return (
    <div className="jp-Genv-tools" data-lm-suppress-shortcuts="true">
      <input
        className="jp-Genv-input"
        type="search"
        aria-label={trans.__('Filter environments')}
        placeholder={trans.__('Filter')}
        value={listing.filter}
        onChange={event => props.setFilter(event.target.value)}
      />
      <span className="jp-Genv-tool">
        <label htmlFor={id}>{trans.__('Sort')}</label>
        <select
          id={id}
          className="jp-Genv-input"
          value={listing.sort}
          onChange={event => props.setSort(event.target.value as SortKey)}
        >
          {orders.map(([key, label]) => (
            <option key={key} value={key}>
              {label}
            </option>
          ))}
        </select>
      </span>
      <button
        type="button"
        className="jp-Genv-button"
        aria-pressed={listing.grouped}
        onClick={props.group}
      >
        {trans.__('By owner')}
      </button>
    </div>
  );
}
