/** What our components use of `@jupyterlab/ui-components`, for a page without JupyterLab. */
import React from 'react';

interface IIconProps {
  tag?: 'span';
  className?: string;
}

/** An icon; this page draws no others than the carets. */
export class LabIcon {
  constructor(readonly options: { name: string; svgstr: string }) {}
}

function caret(path: string): { react: React.FunctionComponent<IIconProps> } {
  return {
    react: ({ className }) => (
      <span className={className} aria-hidden="true">
        <svg viewBox="0 0 18 18" width="14" height="14">
          <path d={path} fill="currentColor" />
        </svg>
      </span>
    )
  };
}

export const caretDownIcon = caret('M5.2 7 9 10.9 12.8 7z');
export const caretRightIcon = caret('M7.2 5.2 10.9 9 7.2 12.8z');
