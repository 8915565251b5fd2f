"""Quotas that a JupyterHub keeps with its groups: read, remembered, and weaker than others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from traitlets.config import Config

from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.hub_groups import HubGroups, Page, Rules
from genv_jupyter.broker.hub_identity import HubAccess
from genv_jupyter.model import Principal
from genv_jupyter.quotas import QuotaLimits
from tests.unit.brokers import Bench, bench

ADMIN = Principal(realm="local", id="4243", name="carol", admin=True)


class Asked:
    """A Hub's answers, page by page, and what came of them."""

    def __init__(self, path: Path | None = None) -> None:
        self.groups: dict[str, Any] = {}
        self.down = False
        self.told: list[Rules] = []
        self.offsets: list[int] = []
        self.asking = HubGroups(HubAccess, self.tell, path, self.fetch)

    async def tell(self, rules: Rules) -> None:
        self.told.append(rules)

    async def fetch(self, offset: int) -> Page:
        if self.down:
            raise OSError("no answer")
        self.offsets.append(offset)
        part = list(self.groups.items())[offset : offset + 2]
        last = offset + 2 >= len(self.groups)
        page = {
            "items": [
                {"kind": "group", "name": name, "properties": said, "users": []}
                for name, said in part
            ],
            "_pagination": {
                "offset": offset,
                "limit": 2,
                "next": None if last else {"offset": offset + 2, "limit": 2, "url": "..."},
            },
        }
        return msgspec.json.decode(msgspec.json.encode(page), type=Page)

    def ask(self) -> None:
        asyncio.run(self.asking.ask())


def test_properties_of_all_groups_are_read_and_told_when_they_change() -> None:
    hub = Asked()
    hub.groups = {
        "a": {"genv_jupyter": {"devices": 1}},
        "b": {"other": 1},
        "c": {"genv_jupyter": {"memory": "4G", "guaranteed": 2}},
        "d": {},
        "e": {"genv_jupyter": {"hours_week": None}},
    }
    hub.ask()
    hub.ask()
    assert hub.offsets == [0, 2, 4] * 2
    assert hub.told == [
        {
            "group:a": QuotaLimits(devices=1),
            "group:c": QuotaLimits(memory="4G", guaranteed=2),
            "group:e": QuotaLimits(hours_week=None),
        }
    ]
    del hub.groups["a"]
    hub.ask()
    assert list(hub.told[1]) == ["group:c", "group:e"]


@pytest.mark.parametrize("said", [7, "much", {"devices": -1}, {"device": 1}, ["devices"], None])
def test_what_is_no_quota_is_told_in_the_log_and_spoils_nothing(
    said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hub = Asked()
    hub.groups = {"a": {"genv_jupyter": said}, "b": {"genv_jupyter": {"devices": 2}}}
    hub.ask()
    assert hub.told == [{"group:b": QuotaLimits(devices=2)}]
    (line,) = caplog.messages
    assert "quota of group:a" in line


def test_a_hub_that_is_silent_changes_nothing_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub = Asked()
    hub.groups = {"a": {"genv_jupyter": {"devices": 1}}}
    hub.ask()
    hub.down = True
    hub.ask()
    hub.ask()
    assert len(hub.told) == 1 and len(caplog.messages) == 1
    hub.down = False
    hub.ask()
    assert len(hub.told) == 1


def test_what_was_said_outlives_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    hub = Asked(path)
    hub.groups = {"a": {"genv_jupyter": {"devices": 1}}}
    hub.ask()
    again = Asked(path)
    again.down = True
    asyncio.run(_briefly(again.asking))
    assert again.told == [{"group:a": QuotaLimits(devices=1)}]
    assert [it.name for it in tmp_path.iterdir()] == ["quotas.json"]
    path.write_text("{")
    broken = Asked(path)
    asyncio.run(_briefly(broken.asking))
    assert broken.told == []


async def _briefly(asking: HubGroups) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asking.watch(), 0.2)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        yield made


def test_the_configuration_comes_before_what_a_hub_says(desk: Bench) -> None:
    rules = desk.broker.core.quotas.rules
    before = rules.revision
    desk.broker.learn_quotas({"group:lab": QuotaLimits(devices=1, guaranteed=1)})
    assert rules.guaranteed() == {"lab": 10_000} and rules.revision != before
    (rule,) = rules.listed(ADMIN)
    assert (rule.scope, rule.source, rule.limits.devices) == ("group:lab", "hub", 1)
    said = {"QuotaSettings": {"groups": {"lab": {"devices": 2}}}}
    desk.broker.core.config = BrokerConfig(Config(said))
    (rule,) = rules.listed(ADMIN)
    assert (rule.source, rule.limits.devices) == ("configuration", 2)
    assert rules.guaranteed() == {}
