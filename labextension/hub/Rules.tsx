import React, { useState } from 'react';
import type { IQuotaLimits, IQuotaRule } from '../src/api/types';
import { quantityName } from '../src/quota';
import { formatClock } from '../src/units';
import type { IQuestion } from './Confirm';
import type { Gpu } from './gpu';
import { refusalOf } from './gpu';
import { useFetched } from './hooks';
import { trans } from './trans';
import { Loading } from '../src/components/Message';
import { Refusal } from './Way';

type Quantity = keyof IQuotaLimits;

const QUANTITIES: readonly Quantity[] = [
  'devices',
  'fraction',
  'memory',
  'environments',
  'queue',
  'lease',
  'hours_day',
  'hours_week',
  'hours_month',
  'guaranteed'
];
/** What is written as it is, such as `40G` and `8h`; everything else is a number. */
const WORDS: readonly Quantity[] = ['memory', 'lease'];
const EXAMPLES: Record<Quantity, string> = {
  devices: '2',
  fraction: '0.5',
  memory: '40G',
  environments: '4',
  queue: '2',
  lease: '8h',
  hours_day: '12',
  hours_week: '40',
  hours_month: '100',
  guaranteed: '1'
};
const NONE = 'none';

export interface IRulesProps {
  gpu: Gpu;
  /** The scope that is to be edited, from the address. */
  scope: string;
  now: number;
  ask(question: IQuestion): void;
}

/** Who may have how much: for everybody, for groups, for users. */
export function Rules(props: IRulesProps): JSX.Element {
  const { gpu, now, ask } = props;
  const rules = useFetched(() => gpu.client.rules(), [gpu]);
  const [said, setSaid] = useState('');
  const [refusal, setRefusal] = useState<ReturnType<typeof refusalOf> | null>(
    null
  );
  const found = rules.value ?? [];
  const scope = decodeURIComponent(props.scope);
  const done = async (action: Promise<unknown>, words: string) => {
    try {
      await action;
      setSaid(words);
      setRefusal(null);
      rules.again();
      return true;
    } catch (error) {
      setSaid('');
      setRefusal(refusalOf(error));
      return false;
    }
  };
  return (
    <section className="jp-Genv-section" aria-label="Quotas">
      <h2 className="jp-Genv-heading">Quotas</h2>
      <p className="jp-Genv-quiet">
        A user’s own rule comes first, then the most generous of the groups’,
        then that for everybody.
      </p>
      <Refusal refusal={rules.refusal} />
      {rules.value === null && !rules.refusal && <Loading label="Loading" />}
      {rules.value && !found.length && (
        <p className="jp-Genv-quiet">Nothing is bounded for anybody.</p>
      )}
      {found.length > 0 && (
        <table className="jp-Genv-hubTable" aria-busy={rules.busy}>
          <thead>
            <tr>
              <th scope="col">For</th>
              <th scope="col">At most</th>
              <th scope="col">From</th>
              <th scope="col">
                <span className="jp-Genv-visuallyHidden">Change</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {found.map(rule => (
              <tr key={rule.scope}>
                <th scope="row">{rule.scope}</th>
                <td data-label="At most">{limitsText(rule.limits)}</td>
                <td data-label="From">
                  {rule.since
                    ? `${rule.by ?? '?'}, ${formatClock(rule.since, now)}`
                    : rule.source === 'hub'
                      ? 'JupyterHub'
                      : 'configuration'}
                </td>
                <td>
                  <span className="jp-Genv-hubButtons">
                    <a href={`#quotas/${encodeURIComponent(rule.scope)}`}>
                      Edit
                      <span className="jp-Genv-visuallyHidden">
                        {' '}
                        {rule.scope}
                      </span>
                    </a>
                    {rule.source === 'set' && (
                      <button
                        type="button"
                        className="jp-Genv-link"
                        aria-label={`Forget the rule of ${rule.scope}`}
                        onClick={() =>
                          ask({
                            title: `Forget the rule of ${rule.scope}?`,
                            text: 'What is configured for it holds again, or else a weaker rule.',
                            label: 'Forget it',
                            act: () =>
                              done(
                                gpu.client.unsetRule(rule.scope),
                                `The rule of ${rule.scope} is forgotten.`
                              )
                          })
                        }
                      >
                        Forget
                      </button>
                    )}
                  </span>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <Editor
        key={`${scope} ${rules.value !== null}`}
        scope={scope}
        rules={found}
        save={(where, limits) =>
          done(
            gpu.client.setRule(where, limits),
            `The rule of ${where} is set. It holds from now on; nobody loses at once what they have.`
          )
        }
      />
      <p className="jp-Genv-hubSaid" role="status">
        {said}
      </p>
      <Refusal refusal={refusal} />
    </section>
  );
}

type Who = 'default' | 'group' | 'user';

/** One rule, to be written. */
function Editor(props: {
  scope: string;
  rules: readonly IQuotaRule[];
  save(scope: string, limits: IQuotaLimits): Promise<boolean>;
}): JSX.Element {
  const { rules, save } = props;
  const [kind, ...rest] = props.scope.split(':');
  const [who, setWho] = useState<Who>(
    kind === 'group' || kind === 'user' ? kind : 'default'
  );
  const [name, setName] = useState(rest.join(':'));
  const scope = who === 'default' ? who : `${who}:${name.trim()}`;
  const rule = rules.find(one => one.scope === scope);
  return (
    <div className="jp-Genv-hubForm" role="group" aria-label="Set a quota">
      <h3>Set a quota</h3>
      <div className="jp-Genv-hubFields">
        <label className="jp-Genv-hubField">
          For
          <select
            className="jp-Genv-input"
            value={who}
            onChange={event => setWho(event.target.value as Who)}
          >
            <option value="default">everybody</option>
            <option value="group">a group</option>
            <option value="user">a user</option>
          </select>
        </label>
        {who !== 'default' && (
          <label className="jp-Genv-hubField">
            {who === 'group' ? 'Group' : 'User'}
            <input
              className="jp-Genv-input"
              value={name}
              onChange={event => setName(event.target.value)}
            />
          </label>
        )}
      </div>
      <Fields
        // What is typed stays while a name is; a rule that is there is taken up.
        key={rule ? `${scope} ${JSON.stringify(rule.limits)}` : ''}
        rule={rule}
        named={who === 'default' || name.trim() !== ''}
        group={who === 'group'}
        save={limits => save(scope, limits)}
      />
    </div>
  );
}

/** What one rule bounds. */
function Fields(props: {
  rule: IQuotaRule | undefined;
  named: boolean;
  /** Whether it is for a group: only for those something is kept. */
  group: boolean;
  save(limits: IQuotaLimits): Promise<boolean>;
}): JSX.Element {
  const { rule, named, group, save } = props;
  const [fields, setFields] = useState(() => fieldsOf(rule));
  const [busy, setBusy] = useState(false);
  const empty = Object.values(fields).every(text => !text.trim());
  return (
    <form
      onSubmit={event => {
        event.preventDefault();
        setBusy(true);
        void save(limitsOf(fields, group)).finally(() => setBusy(false));
      }}
    >
      <div className="jp-Genv-hubFields">
        {QUANTITIES.filter(quantity => quantity !== 'guaranteed' || group).map(
          quantity => (
            <label key={quantity} className="jp-Genv-hubField">
              {title(quantity)}
              <input
                className="jp-Genv-input"
                name={quantity}
                placeholder={`e.g. ${EXAMPLES[quantity]}`}
                value={fields[quantity] ?? ''}
                onChange={event =>
                  setFields({ ...fields, [quantity]: event.target.value })
                }
              />
            </label>
          )
        )}
      </div>
      <p className="jp-Genv-quiet">
        Left empty: a weaker rule decides. “none”: no bound. 4G is 4·10⁹ bytes,
        4Gi is 4·2³⁰.
      </p>
      <button
        type="submit"
        className="jp-Genv-button jp-mod-main"
        disabled={busy || empty || !named}
      >
        Save
      </button>
    </form>
  );
}

function title(quantity: Quantity): string {
  if (quantity === 'guaranteed') {
    return 'GPUs kept for it';
  }
  const words: Partial<Record<Quantity, string>> = {
    hours_day: 'GPU-hours a day',
    hours_week: 'GPU-hours a week',
    hours_month: 'GPU-hours a month'
  };
  return words[quantity] ?? quantityName(quantity, trans);
}

/** What a rule says, in a line. */
function limitsText(limits: IQuotaLimits): string {
  return QUANTITIES.filter(quantity => limits[quantity] !== undefined)
    .map(quantity => `${title(quantity)} ${limits[quantity] ?? NONE}`)
    .join(', ');
}

function fieldsOf(rule: IQuotaRule | undefined): Record<string, string> {
  const limits = rule?.limits ?? {};
  return Object.fromEntries(
    QUANTITIES.filter(it => limits[it] !== undefined).map(quantity => [
      quantity,
      String(limits[quantity] ?? NONE)
    ])
  );
}

/** What is written in the fields, as the broker reads it: it says what it cannot read. */
function limitsOf(
  fields: Record<string, string>,
  group: boolean
): IQuotaLimits {
  const found: Record<string, unknown> = {};
  for (const quantity of QUANTITIES) {
    const text = (fields[quantity] ?? '').trim();
    if (!text || (quantity === 'guaranteed' && !group)) {
      continue;
    }
    const number = Number(text);
    found[quantity] =
      text.toLowerCase() === NONE
        ? null
        : WORDS.includes(quantity) || Number.isNaN(number)
          ? text
          : number;
  }
  return found as IQuotaLimits;
}
