"""``jupyter gpu quota`` and ``%gpu quota`` on a user's own broker."""

from __future__ import annotations

import grp
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from genv_jupyter.api.client import Client
from genv_jupyter.api.doors import user_name
from genv_jupyter.cli.main import main
from genv_jupyter.kernel.magics import GpuMagics


def gpu(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.fixture
def admin(broker_home: Path) -> str:
    """The user of the tests, who administers their own broker."""
    return user_name(os.getuid())


def test_nothing_is_bounded_by_default(broker_home: Path) -> None:
    shown = gpu("quota")
    assert shown.exit_code == 0 and "Nothing is bounded" in shown.output


def test_a_quota_is_set_shown_and_forgotten(admin: str) -> None:
    scope = f"user:{admin}"
    made = gpu("quota", "set", scope, "--devices", "0.5", "--memory", "4G", "--lease", "8h")
    assert made.exit_code == 0, made.output
    assert scope in made.output and "devices 0.5" in made.output
    shown = gpu("quota")
    assert "3.7 GiB" in shown.output and "8 h 00 min" in shown.output and scope in shown.output
    assert str(GpuMagics(None, Client()).gpu("quota")) == shown.output.rstrip("\n")
    refused = gpu("run", "1", "--", "true")
    assert refused.exit_code == 125 and "you may have 0.5 devices" in refused.output.replace(
        "\n", " "
    )
    as_json = json.loads(gpu("quota", "show", "--json").output)
    assert [it["limit"] for it in as_json["quantities"] if it["quantity"] == "devices"] == [0.5]
    assert gpu("quota", "unset", scope).exit_code == 0
    assert "Nothing is bounded for anybody" in gpu("quota", "list").output


def test_a_guarantee_is_set_and_its_members_see_it(admin: str) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    made = gpu("quota", "set", f"group:{group}", "--guaranteed", "1.5")
    assert made.exit_code == 0 and "guaranteed 1.5" in made.output, made.output
    assert f"Kept for the group {group}: 1.5 GPUs, 0 in use" in " ".join(
        gpu("quota").output.split()
    )
    assert gpu("quota", "unset", f"group:{group}").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (("set", "nobody", "--devices", "1"), "nobody that a quota could be for", 2),
        (("set", "default"), "Nothing was said", 2),
        (("set", "default", "--devices", "many"), "--devices 'many' is no number", 2),
        (("set", "default", "--memory", "much"), "memory: 'much' is not an amount", 2),
        (("set", "default", "--devices", "-1"), "devices: -1.0 is not between", 2),
        (("set", "user:ann", "--guaranteed", "1"), "devices are kept for groups", 2),
        (("set", "group:x", "--guaranteed", "none"), "--guaranteed 'none' is no number", 2),
        (("unset", "default"), "No quota was set for default", 1),
        (("show", "no-such-user-here"), "knows no user", 1),
    ],
)
def test_what_cannot_be_meant_is_said(
    admin: str, words: tuple[str, ...], said: str, status: int
) -> None:
    answer = gpu("quota", *words)
    assert said in " ".join(answer.output.split()), answer.output
    assert answer.exit_code == status
