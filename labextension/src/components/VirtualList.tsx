import { useVirtualizer } from '@tanstack/react-virtual';
import React, { useLayoutEffect, useRef, useState } from 'react';

export interface IListProps<T> {
  items: readonly T[];
  keyOf(item: T): string;
  /** What is inside of the item's `li`. */
  render(item: T): JSX.Element;
  /** What else an item's `li` has. */
  attributes?(item: T): React.LiHTMLAttributes<HTMLLIElement>;
  className: string;
  label: string;
  /** About how high an item is, in CSS pixels. */
  height: number;
}

/** Lists up to this long are drawn whole. */
const SHORT = 24;
const OVERSCAN = 6;
/** What scrolls: the panel, with all of its sections. */
const SCROLLER = '.jp-Genv';

/** A list of any length: of a long one only what can be seen is in the document. */
export function VirtualList<T>(props: IListProps<T>): JSX.Element {
  return props.items.length > SHORT ? (
    <Long {...props} />
  ) : (
    <Short {...props} />
  );
}

function Short<T>(props: IListProps<T>): JSX.Element {
  const { items, keyOf, render, attributes, className, label } = props;
  return (
    <ul className={className} aria-label={label} onKeyDown={onArrow}>
      {items.map(item => (
        <li key={keyOf(item)} {...attributes?.(item)}>
          {render(item)}
        </li>
      ))}
    </ul>
  );
}

function Long<T>(props: IListProps<T>): JSX.Element {
  const { items, keyOf, render, attributes, className, label } = props;
  const list = useRef<HTMLUListElement>(null);
  const [top, setTop] = useState(0);
  // eslint-disable-next-line react-hooks/incompatible-library -- nothing of it is handed on
  const virtual = useVirtualizer({
    count: items.length,
    estimateSize: () => props.height,
    getItemKey: index => keyOf(items[index]),
    getScrollElement: () => list.current?.closest(SCROLLER) ?? null,
    overscan: OVERSCAN,
    scrollMargin: top
  });
  // What stands above the list grows and shrinks, and the panel's content with it.
  useLayoutEffect(() => {
    const node = list.current;
    const scroller = node?.closest(SCROLLER);
    const content = scroller?.firstElementChild;
    if (!node || !scroller || !content) {
      return;
    }
    const look = () => {
      const above =
        node.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
      setTop(Math.round(above + scroller.scrollTop));
    };
    look();
    const observer = new ResizeObserver(look);
    observer.observe(content);
    return () => observer.disconnect();
  }, []);
  const seen = virtual.getVirtualItems();
  const first = seen[0]?.start ?? top;
  const last = seen[seen.length - 1]?.end ?? top;
  return (
    <ul
      ref={list}
      className={className}
      aria-label={label}
      style={{
        paddingTop: first - top,
        paddingBottom: Math.max(0, top + virtual.getTotalSize() - last)
      }}
      onKeyDown={event => onArrow(event, index => virtual.scrollToIndex(index))}
    >
      {seen.map(({ index, key }) => (
        <li
          key={key}
          ref={virtual.measureElement}
          data-index={index}
          aria-setsize={items.length}
          aria-posinset={index + 1}
          {...attributes?.(items[index])}
        >
          {render(items[index])}
        </li>
      ))}
    </ul>
  );
}

/** Up, Down, Home and End go from item to item, to the first that can be used in each. */
function onArrow(
  event: React.KeyboardEvent<HTMLUListElement>,
  reveal?: (index: number) => void
): void {
  const list = event.currentTarget;
  const from = (event.target as Element).closest('li');
  const item = from && list.contains(from) ? outermost(from, list) : null;
  const steps: Record<string, number> = { ArrowUp: -1, ArrowDown: 1 };
  const step = steps[event.key];
  if (!item || (step === undefined && !['Home', 'End'].includes(event.key))) {
    return;
  }
  if ((event.target as Element).matches('input, select, textarea')) {
    return;
  }
  event.preventDefault();
  const here = Number(item.dataset.index ?? [...list.children].indexOf(item));
  const size = Number(
    item.getAttribute('aria-setsize') ?? list.childElementCount
  );
  const to =
    event.key === 'Home' ? 0 : event.key === 'End' ? size - 1 : here + step;
  if (to < 0 || to >= size) {
    return;
  }
  const focus = (): boolean => {
    const found = reveal
      ? list.querySelector(`:scope > [data-index="${to}"]`)
      : list.children[to];
    const target = found?.querySelector<HTMLElement>('button, a[href]');
    target?.focus();
    return found !== null;
  };
  if (!focus() && reveal) {
    reveal(to);
    // It is drawn in answer to the scrolling.
    requestAnimationFrame(() => requestAnimationFrame(focus));
  }
}

function outermost(item: HTMLLIElement, list: Element): HTMLLIElement {
  const up = item.parentElement?.closest('li');
  return up && list.contains(up) ? outermost(up, list) : item;
}
