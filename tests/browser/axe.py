"""Automatic checks of what the panel is to people who do not see it, or have no mouse."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

from tests.browser.jupyter import ROOT

_AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
_RUN = """async where => {
  const found = await axe.run(where, {resultTypes: ['violations']});
  return found.violations
    .filter(one => ['serious', 'critical'].includes(one.impact))
    .map(one => [one.id, one.help, one.nodes.map(node =>
      [node.html.slice(0, 300), node.any.map(check => check.message).join(' ')])]);
}"""
_UNSEEN = """async where => {
  // Each that can have the focus has to show it, by an outline that was not there before.
  const unseen = [];
  for (const node of document.querySelector(where).querySelectorAll(
      'button:enabled, a[href], input, select, summary')) {
    if (!node.checkVisibility() || node.tabIndex < 0) continue;
    node.focus({focusVisible: true});
    const style = getComputedStyle(node);
    const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
    if (document.activeElement !== node || !shown) unseen.push(node.outerHTML.slice(0, 200));
  }
  return unseen;
}"""


def violations(page: Page, where: str) -> list[Any]:
    """Return what axe-core finds serious or critical below a selector."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(_AXE.read_text())  # a script in the page could be forbidden there
    found: list[Any] = page.evaluate(_RUN, where)
    return found


def unseen_focus(page: Page, where: str) -> list[str]:
    """Return what below a selector can have the focus without showing it."""
    found: list[str] = page.evaluate(_UNSEEN, where)
    return found
