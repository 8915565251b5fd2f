/** What our client uses of `@jupyterlab/coreutils`, for a page without JupyterLab. */

export namespace URLExt {
  export function join(...parts: string[]): string {
    return parts.reduce((left, right) =>
      [left.replace(/\/+$/, ''), right.replace(/^\/+/, '')].join('/')
    );
  }

  export function objectToQueryString(value: Record<string, string>): string {
    return `?${new URLSearchParams(value).toString()}`;
  }
}
