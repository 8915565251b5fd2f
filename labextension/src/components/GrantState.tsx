import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import type { IDeviceGrant } from '../api/types';
import type { Owner } from '../view';

export interface IGrantStateProps {
  state: IDeviceGrant['state'];
  trans: TranslationBundle;
}

/** The state of a grant in a word, where there is something to say. */
export function GrantState(props: IGrantStateProps): JSX.Element | null {
  const { trans } = props;
  const words: Record<IDeviceGrant['state'], string | null> = {
    granted: null,
    draining: trans.__('draining'),
    reserved: trans.__('starting'),
    contended: trans.__('contended'),
    lost: trans.__('device lost')
  };
  const word = words[props.state];
  return word ? <span className="jp-Genv-tag">{word}</span> : null;
}

export interface ISwatchProps {
  state: IDeviceGrant['state'];
  owner: Owner;
  odd: boolean;
}

/** The colour of a grant, as its bar has it. */
export function Swatch(props: ISwatchProps): JSX.Element {
  const { state, owner, odd } = props;
  const kind = state === 'draining' ? 'draining' : owner;
  return (
    <span
      className={`jp-Genv-swatch jp-mod-${kind}`}
      data-own={owner === 'mine'}
      data-odd={odd}
      aria-hidden="true"
    />
  );
}
