"""A small document that is written twice: as HTML for notebooks, as text for terminals.

What a verb shows is said once, in blocks; how it looks is decided here. The HTML uses JupyterLab's
theme variables with neutral fallbacks, so it is readable in light and dark and outside JupyterLab.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

from msgspec import Struct

WIDTH = 80

HERE = " (here)"
"""Marks a name as this process's own; a name that is cut keeps it."""

Tone = Literal["plain", "dim", "warn", "code"]
Fill = Literal["mine", "held", "draining", "outside"]

_SIGN: dict[Fill, str] = {"mine": "#", "held": "=", "draining": "~", "outside": ":"}
_GREY = "var(--jp-ui-font-color2, #888888)"
# As in the sidebar: what is here in the theme's colour, others in grey, outsiders in a warning's.
_COLOR: dict[Fill, str] = {
    "mine": "var(--jp-brand-color1, #1976d2)",
    "held": _GREY,
    "draining": f"repeating-linear-gradient(-45deg, {_GREY} 0 3px, transparent 3px 6px)",
    "outside": "var(--jp-warn-color2, #ffb74d)",
}
_MEANING: dict[Fill, str] = {
    "mine": "here",
    "held": "others",
    "draining": "draining",
    "outside": "outside genv-jupyter",
}
_FAINT = "var(--jp-ui-font-color2, inherit)"
_LINE = "1px solid var(--jp-border-color2, rgba(128, 128, 128, 0.4))"
_BACK = "var(--jp-layout-color3, rgba(128, 128, 128, 0.25))"


class Title(Struct, frozen=True):
    """The head of a document or of one of its parts; ``mark`` is set off (SIMULATED)."""

    text: str
    mark: str = ""
    small: bool = False

    def lines(self) -> list[str]:
        room = WIDTH - (len(self.mark) + 1 if self.mark else 0)
        first, *rest = textwrap.wrap(self.text, room) or [""]
        return [f"{first:<{room}} {self.mark}" if self.mark else first, *rest]

    def html(self) -> str:
        size = "1em" if self.small else "1.1em"
        mark = (
            '<span style="margin-left: 8px; padding: 0 6px; border-radius: 3px; font-size: 0.8em; '
            f"color: var(--jp-warn-color0, #b26a00); border: 1px solid currentColor;"
            f'">{escape(self.mark)}</span>'
            if self.mark
            else ""
        )
        return (
            f'<div style="font-weight: 600; font-size: {size}; margin: 6px 0 2px;">'
            f"{escape(self.text)}{mark}</div>"
        )


class Text(Struct, frozen=True):
    """A paragraph; ``code`` is kept as it is."""

    text: str
    tone: Tone = "plain"
    indent: int = 0

    def lines(self) -> list[str]:
        margin = " " * self.indent
        if self.tone == "code":
            return [margin + line for line in self.text.splitlines()]
        start = margin + ("! " if self.tone == "warn" else "")
        # What is to be typed is not broken where it need not be.
        whole = re.sub(r"`[^`]{1,60}`", lambda code: code[0].replace(" ", "\xa0"), self.text)
        wrapped = textwrap.wrap(
            whole,
            WIDTH,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_on_hyphens=False,
        )
        return [line.replace("\xa0", " ") for line in wrapped]

    def html(self) -> str:
        if self.tone == "code":
            return (
                '<pre style="margin: 2px 0; font-family: var(--jp-code-font-family, monospace); '
                f'color: inherit;">{escape(self.text)}</pre>'
            )
        style = f"margin: 2px 0; color: {_FAINT};" if self.tone == "dim" else "margin: 2px 0;"
        if self.tone == "warn":
            style += " padding-left: 8px; border-left: 3px solid var(--jp-warn-color1, #f57c00);"
        return f'<div style="{style}">{escape(self.text)}</div>'


class Meter(Struct, frozen=True):
    """A bar of parts of a whole (each 0 to 1), and what to say beside it."""

    parts: tuple[tuple[Fill, float], ...]
    caption: str

    def lines(self) -> list[str]:
        width, filled, bar = 28, 0.0, ""
        for fill, part in self.parts:
            filled = min(1.0, filled + part)
            bar += _SIGN[fill] * (round(filled * width) - len(bar))
        start = f"  [{bar:-<{width}}] "
        whole = ", ".join(part.replace(" ", "\xa0") for part in self.caption.split(", "))
        wrapped = textwrap.wrap(whole, WIDTH - len(start)) or [""]  # between parts only
        said = [line.replace("\xa0", " ") for line in wrapped]
        return [start + said[0], *(" " * len(start) + line for line in said[1:])]

    def html(self) -> str:
        bars = "".join(
            f'<span title="{_MEANING[fill]}" style="display: inline-block; height: 100%; '
            f'width: {100 * part:.2f}%; background: {_COLOR[fill]};"></span>'
            for fill, part in self.parts
        )
        return (
            '<div style="display: flex; align-items: center; gap: 10px; margin: 2px 0;">'
            f'<div role="img" aria-label="{escape(self.caption)}" style="flex: 0 0 240px; '
            "height: 10px; border-radius: 5px; overflow: hidden; white-space: nowrap; "
            f'line-height: 0; background: {_BACK};">{bars}</div>'
            f"<div>{escape(self.caption)}</div></div>"
        )


class Table(Struct, frozen=True):
    """Rows under heads; the last column, which may have several lines, takes what room there is.

    In text ``keep`` names columns that are not cut; the last one gets ``least``, if it needs it.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    indent: int = 2
    keep: tuple[int, ...] = ()
    least: int = 16

    def lines(self) -> list[str]:
        every = [self.heads, *self.rows] if any(self.heads) else list(self.rows)
        last = len(self.heads) - 1
        room = WIDTH - self.indent - 2 * last
        widths = [max((columns(row[i]) for row in every), default=0) for i in range(last)]
        cut = [i for i in range(last) if i not in self.keep]
        said = (columns(line) for row in every for line in row[last].split("\n"))
        least = min(self.least, max(said, default=0))
        while sum(widths) > room - least and any(widths[i] > 8 for i in cut):
            widths[max(cut, key=widths.__getitem__)] -= 1  # the widest gives way first
        found: list[str] = []
        for row in every:
            cells = [_cut(cell, width) for cell, width in zip(row, widths, strict=False)]
            start = " " * self.indent + "".join(f"{cell}  " for cell in cells)
            left = max(least, 1, WIDTH - columns(start))
            rest = [part for line in row[last].split("\n") for part in textwrap.wrap(line, left)]
            found.append((start + "".join(rest[:1])).rstrip())
            found.extend(" " * columns(start) + line for line in rest[1:])
        return found

    def html(self) -> str:
        cell = (
            "text-align: left; padding: 2px 14px 2px 0; vertical-align: top; background: none; "
            "white-space: normal;"
        )
        head = ""
        if any(self.heads):
            heads = "".join(
                f'<th style="{cell} font-weight: 400; color: {_FAINT}; border-bottom: {_LINE};">'
                f"{escape(text)}</th>"
                for text in self.heads
            )
            head = (
                f'<thead style="border: none;"><tr style="background: none;">{heads}</tr></thead>'
            )
        rows = "".join(
            '<tr style="background: none;">'
            + "".join(
                f'<td style="{cell}">{escape(text).replace(chr(10), "<br>")}</td>' for text in row
            )
            + "</tr>"
            for row in self.rows
        )
        return (
            '<table style="border-collapse: collapse; border: none; margin: 2px 0; color: inherit; '
            f'font-size: inherit; table-layout: auto;">{head}<tbody>{rows}</tbody></table>'
        )


class Legend(Struct, frozen=True):
    """What the parts of the bars above mean, for whoever cannot tell the colours too."""

    fills: frozenset[Fill]

    def lines(self) -> list[str]:
        seen = [fill for fill in _SIGN if fill in self.fills]
        return (
            ["  " + ", ".join(f"{_SIGN[fill]} {_MEANING[fill]}" for fill in seen)] if seen else []
        )

    def html(self) -> str:
        return "".join(
            f'<span style="margin-right: 14px; color: {_FAINT};"><span style="display: '
            "inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 4px; "
            f'background: {_COLOR[fill]};"></span>{_MEANING[fill]}</span>'
            for fill in _SIGN
            if fill in self.fills
        )


Block = Title | Text | Meter | Table | Legend


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and what there is to say of each."""
    return Table(("", ""), tuple(pairs))


def printable(line: str) -> str:
    """Return a line that does nothing to a terminal: names in it may be somebody else's."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


def to_text(blocks: Sequence[Block]) -> str:
    """Write a document for a terminal of 80 columns."""
    return "\n".join(printable(line).rstrip() for block in blocks for line in block.lines())


def to_html(blocks: Sequence[Block]) -> str:
    """Write a document for a notebook."""
    inner = "".join(block.html() for block in blocks)
    return (
        '<div class="jp-GenvView" style="color: var(--jp-ui-font-color1, inherit); '
        "font-family: var(--jp-ui-font-family, sans-serif); font-size: "
        f'var(--jp-ui-font-size1, 13px); line-height: 1.45;">{inner}</div>'
    )


def _cut(text: str, width: int) -> str:
    """Fill or cut a text to so many columns."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    if columns(text) > width:
        end = HERE if text.endswith(HERE) and width > len(HERE) else ""
        text = text.removesuffix(end)
        while columns(text) >= width - len(end):
            text = text[:-1]
        text += "…" + end
    return text + " " * (width - columns(text))


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: some characters take two, or none."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))
