"""``jupyter gpu quota``: what you may have, and for administrators everybody's rules."""

from __future__ import annotations

from typing import Any

import click
from msgspec import UNSET

from genv_jupyter.api.client import Client
from genv_jupyter.cli.output import shows
from genv_jupyter.errors import BadRequest
from genv_jupyter.kernel.document import Block, Table, Text, Title
from genv_jupyter.kernel.quota import QuotaPage
from genv_jupyter.kernel.views import PageView, View
from genv_jupyter.quotas import QUANTITIES, QuotaLimits, QuotaRule

NONE = "none"
_WHOLE = ("environments", "queue")
_TEXT = ("memory", "lease")


@click.group(invoke_without_command=True)
@click.pass_context
def quota(context: click.Context) -> None:
    """What you may have, have, and have left.

    Administrators list, set and unset everybody's.
    """
    if context.invoked_subcommand is None:
        context.invoke(show)


@quota.command()
@click.argument("user", required=False)
@shows
def show(user: str | None = None) -> tuple[Any, View]:
    """Your own, or (administrators) that of USER."""
    found = Client().quota(user)
    return found, QuotaPage(found)


@quota.command("list")
@shows
def list_() -> tuple[Any, View]:
    """Every rule (administrators)."""
    found = Client().quota_rules()
    return found, PageView(_page(found))


def _options(command: Any) -> Any:
    """Give a command an option for each quantity."""
    helps = {
        "devices": "Devices at once; half a device is 0.5.",
        "fraction": "The most of one shared device: 0.5.",
        "memory": "Memory at once, over all devices: 40G.",
        "environments": "Kernels and commands that hold something.",
        "queue": "Places in the queue.",
        "lease": "The longest lease: 8h.",
        "hours_day": "GPU hours a day.",
        "hours_week": "GPU hours a week.",
        "hours_month": "GPU hours a month.",
    }
    for name in reversed(QUANTITIES):
        option = click.option(f"--{name.replace('_', '-')}", name, metavar="N", help=helps[name])
        command = option(command)
    text = "Devices that are kept for the members of a group: 2."
    return click.option("--guaranteed", metavar="N", help=text)(command)


@quota.command("set")
@click.argument("scope")
@_options
@shows
def set_(scope: str, **values: str | None) -> tuple[Any, View]:
    """Bound what SCOPE may have (administrators).

    SCOPE is default, group:NAME or user:NAME. 'none' is no bound. What is left out is no matter of
    this rule, also if it was before.
    """
    if not any(value is not None for value in values.values()):
        raise BadRequest(
            "Nothing was said that could be bounded.", hint="Say for example --devices 2."
        )
    limits = QuotaLimits(**{name: _value(name, text) for name, text in values.items()})
    client = Client()
    client.set_quota(scope, limits)
    found = [rule for rule in client.quota_rules() if rule.scope == scope]
    return found, PageView(_page(found))


@quota.command()
@click.argument("scope")
@shows
def unset(scope: str) -> tuple[Any, View]:
    """Forget what was set for SCOPE: what is configured holds again (administrators)."""
    client = Client()
    client.unset_quota(scope)
    return None, PageView([Text(f"What was set for {scope} is forgotten.")])


def _value(name: str, text: str | None) -> Any:
    if text is None:
        return UNSET
    if text.lower() == NONE and name != "guaranteed":
        return None
    if name in _TEXT:
        return text
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        option = name.replace("_", "-")
        raise BadRequest(
            f"--{option} {text[:32]!r} is no number.", hint="Write 2, or none."
        ) from None


def _page(rules: list[QuotaRule]) -> list[Block]:
    if not rules:
        return [Text("Nothing is bounded for anybody.")]
    rows = [(rule.scope, _said(rule.limits), _source(rule)) for rule in rules]
    return [Title("Quotas"), Table(("for", "says", "from"), tuple(rows))]


def _said(limits: QuotaLimits) -> str:
    parts = []
    for name in QUANTITIES:
        value = getattr(limits, name)
        if value is not UNSET:
            parts.append(f"{name.replace('_', ' ')} {NONE if value is None else value}")
    if limits.guaranteed is not UNSET:
        parts.append(f"guaranteed {limits.guaranteed:g}")
    return ", ".join(parts)


def _source(rule: QuotaRule) -> str:
    if rule.since is None:
        return rule.source
    return f"{rule.by}, {rule.since.astimezone():%Y-%m-%d %H:%M}"
