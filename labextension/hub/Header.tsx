import React from 'react';
import type { IMe } from './client';
import { THEMES, type Theme } from './theme';

export interface IHeaderProps {
  me: IMe | null;
  tabs: readonly (readonly [string, string])[];
  tab: string;
  theme: Theme;
  setTheme(theme: Theme): void;
}

/** Who looks, at what, in which colours. */
export function Header(props: IHeaderProps): JSX.Element {
  const { me, tabs, tab, theme, setTheme } = props;
  return (
    <header className="jp-Genv-hubHeader">
      <h1>GPUs</h1>
      <span className="jp-Genv-hubWho">
        {me && (
          <>
            <span className="jp-Genv-hubName" title={me.name}>
              {me.name}
            </span>
            {me.admin && <span className="jp-Genv-hubTag">admin</span>}
          </>
        )}
        <label>
          <span className="jp-Genv-visuallyHidden">Colours</span>
          <select
            className="jp-Genv-input"
            value={theme}
            onChange={event => setTheme(event.target.value as Theme)}
          >
            {THEMES.map(([name, label]) => (
              <option key={name} value={name}>
                {label}
              </option>
            ))}
          </select>
        </label>
        {me && (
          <>
            <a href={me.hub}>Hub</a>
            <a href={me.logout}>Log out</a>
          </>
        )}
      </span>
      <nav aria-label="Pages">
        {tabs.map(([name, label]) => (
          <a
            key={name}
            href={`#${name}`}
            aria-current={name === tab ? 'page' : undefined}
          >
            {label}
          </a>
        ))}
      </nav>
    </header>
  );
}
