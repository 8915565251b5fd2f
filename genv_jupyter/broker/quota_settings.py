"""Quotas from the configuration."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from traitlets import Any as AnyTrait
from traitlets import Dict, TraitError, Unicode, validate
from traitlets.config import Configurable

from genv_jupyter.errors import GpuError
from genv_jupyter.quotas import DEFAULT, QuotaLimits, check_rule

_SAYS = (
    "`devices` (1.5), `fraction` (0.5: half of a shared device at most), `memory` ('40G'), "
    "`environments`, `queue`, `lease` ('8h'), `hours_day`, `hours_week`, `hours_month` (GPU "
    "hours); None: no bound."
)


class QuotaSettings(Configurable):
    """How much users may have. What is set with `jupyter gpu quota set` comes before these."""

    default = Dict(help=f"For everybody for whom no other rule says it: {_SAYS}").tag(config=True)
    groups = Dict(
        help="For the members of groups, by the group's name; of several groups the most "
        "generous counts. The values are as in `default`, and `guaranteed` (2): so many devices "
        "are kept for the members of this group."
    ).tag(config=True)
    users = Dict(
        help="For users, by their names: comes before groups. The values are as in `default`."
    ).tag(config=True)
    timezone = Unicode(
        "UTC",
        help="The time zone in which days, weeks and months begin, such as 'Europe/Berlin'.",
    ).tag(config=True)
    quota_for = AnyTrait(
        None,
        allow_none=True,
        help="A function that is called with the name of a user and a tuple of their groups, and "
        "returns a dictionary as in `default`, or None: it comes after `users` and before "
        "`groups`. It must not take long; what it returns is kept for a minute.",
    ).tag(config=True)

    @validate("default")
    def _check_default(self, proposal: Any) -> Any:
        limits_of(DEFAULT, proposal["value"])
        return proposal["value"]

    @validate("groups", "users")
    def _check_named(self, proposal: Any) -> Any:
        for name, said in proposal["value"].items():
            limits_of(f"{proposal['trait'].name[:-1]}:{name}", said)
        return proposal["value"]

    @validate("timezone")
    def _check_zone(self, proposal: Any) -> str:
        try:
            zone(proposal["value"])
        except (KeyError, OSError, ValueError):  # as zoneinfo says it, depending on the name
            raise TraitError(f"timezone: there is no {proposal['value']!r}.") from None
        return str(proposal["value"])

    @validate("quota_for")
    def _check_hook(self, proposal: Any) -> Any:
        if proposal["value"] is not None and not callable(proposal["value"]):
            raise TraitError("quota_for: that is no function.")
        return proposal["value"]

    def rules(self) -> dict[str, QuotaLimits]:
        """Return what is configured, by scope."""
        found = {DEFAULT: limits_of(DEFAULT, self.default)} if self.default else {}
        for kind, named in (("group", self.groups), ("user", self.users)):
            found.update(
                {f"{kind}:{name}": limits_of(f"{kind}:{name}", it) for name, it in named.items()}
            )
        return found


def zone(name: str) -> tzinfo:
    """Return a time zone; UTC is there also where the host has no list of zones."""
    return UTC if name == "UTC" else ZoneInfo(name)


def limits_of(scope: str, said: Any) -> QuotaLimits:
    """Read one rule.

    Raises
    ------
    TraitError
        It cannot be read.
    """
    try:
        limits = msgspec.convert(said, QuotaLimits)
        check_rule(scope, limits)
    except (msgspec.ValidationError, GpuError) as error:
        raise TraitError(f"quota of {scope}: {error}") from None
    return limits
