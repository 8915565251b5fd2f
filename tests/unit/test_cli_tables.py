"""What `jupyter gpu` writes: 80 columns, whatever others are called; and what Tab completes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from genv_jupyter import errors
from genv_jupyter.cli import looking, targets
from genv_jupyter.cli.completion import NAME, VARIABLE
from genv_jupyter.cli.main import main
from genv_jupyter.cli.output import say, shows, status_of
from genv_jupyter.kernel.document import Table, Text, Title, columns, to_text
from genv_jupyter.kernel.views import DevicesView, EnvironmentsView, View
from genv_jupyter.model import BrokerHealth, Device, Environment
from tests.unit.test_magic_views import GIB, HERE, UUIDS, device, environment, held

NAMES = (
    "a-notebook-with-a-very-long-name-that-somebody-thought-was-a-good-idea-final-2.ipynb",
    "訓練用の大きなノートブック、名前がとても長いもの.ipynb",
    "\x1b[2J\x1b]0;gotcha\x07 evil\r\nname",
    "\u202egnp.ecnatta\x9b2J",
    "x",
)
HEALTH = BrokerHealth(
    version="0.1.0",
    kind="user",
    pid=1,
    ledger="/x",
    simulated=True,
    driver="The driver has a very long story to tell about what is wrong with it here today.",
    driver_version=None,
    devices=2,
    environments=5,
    revision=1,
)


def crowded() -> tuple[list[Device], list[Environment]]:
    """Make a host where many with long names hold many grants, in every state."""
    many = tuple(
        held(
            name=name,
            memory=GIB,
            state=state,
            user=f"user-of-a-long-name-{number}",
            environment=f"{number:08}{HERE[8:]}",
        )
        for number, (name, state) in enumerate(
            zip(
                NAMES * 4, ("granted", "draining", "reserved", "contended", "lost") * 4, strict=True
            )
        )
    )
    devices = [device(0, grants=many), device(1, grants=(held(exclusive=True),), simulated=True)]
    (grant,) = environment().grants
    both = (grant, msgspec.structs.replace(grant, device=UUIDS[1], exclusive=True))
    environments = [
        environment(id=f"{number}{HERE[1:]}", name=name, grants=both * (number + 1))
        for number, name in enumerate(NAMES)
    ]
    return devices, [*environments, environment(grants=(), name=None, kind="command")]


def pages() -> dict[str, str]:
    devices, environments = crowded()
    views: dict[str, View] = {
        "devices": DevicesView(devices, HEALTH, mine=HERE),
        "envs": EnvironmentsView(environments, devices),
    }
    return {
        **{name: str(view) for name, view in views.items()},
        "outside": to_text(looking._outside(devices, HEALTH)),
    }


@pytest.mark.parametrize("name", ["devices", "envs", "outside"])
def test_page_fits_and_does_nothing_to_the_terminal(name: str) -> None:
    page = pages()[name]
    assert all(columns(line) <= 80 for line in page.splitlines()), page
    assert all(char.isprintable() for line in page.split("\n") for char in line)
    if name != "outside":
        assert "a-notebook" in page and "訓練" in page
        assert "1 GiB, 25 % of compute  since" in page or "6 GiB, 25 % of" in page, "never cut"


def test_sentences_do_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    page = to_text([Title(NAMES[2]), Text(NAMES[2]), Text(NAMES[3], "code")])
    assert page.replace("\n", "").isprintable() and "evil" in page
    say(f"Error: {NAMES[2]} holds all of it.")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said[:-1].isprintable() and "evil name holds" in said


def test_json_does_nothing_to_the_terminal_and_says_the_same() -> None:
    command = click.command()(shows(lambda: (NAMES, "")))
    said = CliRunner().invoke(command, ["--json"]).output
    assert said.removesuffix("\n").isprintable() and "訓練" in said
    assert tuple(json.loads(said)) == NAMES


def test_columns_stand_under_each_other() -> None:
    rows = tuple((name, "here") for name in NAMES)
    lines = to_text([Table(("name", "where"), rows)]).splitlines()
    assert {columns(line[: line.rindex("here")]) for line in lines[1:]} == {
        columns(lines[0][: lines[0].index("where")])
    }


def test_help_fits_and_says_the_exit_statuses() -> None:
    for name in ["", *main.commands]:
        said = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=80)
        assert said.exit_code == 0
        assert all(len(line) <= 80 for line in said.output.splitlines()), said.output
        assert name or all(f"{number} " in said.output for number in (124, 125, 126, 127))
        assert name or not re.search(r"\w\.\.\.$", said.output, re.M), "cut short"


def test_every_error_has_a_documented_status() -> None:
    known = {code: status_of(kind("")) for code, kind in errors.all_errors().items()}
    assert known["no_capacity"] == known["unknown_environment"] == known["not_yours"] == 1
    assert known["bad_request"] == known["out_of_range"] == known["ambiguous_device"] == 2
    assert known["broker_down"] == known["no_driver"] == known["driver_timeout"] == 3
    text = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    for status in {*known.values(), 124, 125, 126, 127}:
        assert f"| {status} |" in text


# -- completion -------------------------------------------------------------------------------


class Brokerless:
    """Answers as a broker with a crowded host would."""

    def environments(self) -> list[Environment]:
        return crowded()[1]

    def devices(self) -> list[Device]:
        return crowded()[0]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_client", Brokerless)


def offered(line: str) -> set[str]:
    *said, incomplete = line.split(" ")
    completion = ShellComplete(main, {}, NAME, VARIABLE)
    return {item.value for item in completion.get_completions(said, incomplete)}


def test_names_ids_and_devices_are_offered(broker: None) -> None:
    assert {"run", "shell", "release", "status"} <= offered("")
    assert {"--wait", "--fraction", "--gpus", "--save"} <= offered("run --")
    assert {HERE[:8], "x", NAMES[0]} <= offered("attach 0.5 --kernel ")
    assert offered("release -e a-note") == {NAMES[0]}
    assert not any("\x1b" in value for value in offered("release -e "))
    assert {"0", "1", "GPU-11111111"} <= offered("run --device ")
    assert offered("release --device GPU-2") == {"GPU-22222222"}


def test_without_a_broker_nothing_is_offered_and_none_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GENV_JUPYTER_HOME", str(tmp_path / "home"))
    assert offered("attach --kernel ") == set()
    assert not (tmp_path / "home").exists()


def test_program_is_completed_as_files_are() -> None:
    completion = ShellComplete(main, {}, NAME, VARIABLE)
    for said in (["run", "0.5", "--"], ["run", "--", "python"], ["run", "1", "--", "python", "-m"]):
        (item,) = completion.get_completions(said, "tr")
        assert item.type == "file", said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_both(shell: str) -> None:
    said = CliRunner().invoke(main, ["completion", shell])
    assert said.exit_code == 0
    assert "_JUPYTER_GPU_COMPLETE" in said.output and "jupyter-gpu" in said.output
    if shell == "bash":
        checked = subprocess.run(["bash", "-n"], input=said.output, text=True)
        assert checked.returncode == 0


def complete_in_bash(*words: str, before: str = "") -> Any:
    """Let bash complete the last word of a line, as Tab does."""
    script = CliRunner().invoke(main, ["completion", "bash"]).output
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"""
{before}
{script}
jupyter-gpu() {{ :; }}
env() {{ command env "$@"; }}
_jupyter_gpu_completion() {{ echo "asked: ${{COMP_WORDS[*]}} at $COMP_CWORD by $1"; }}
COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMPREPLY=()
_jupyter_gpu_in_jupyter jupyter "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
echo "replied: ${{COMPREPLY[*]}}"
"""
    ran = subprocess.run(["bash", "-c", ask], capture_output=True, text=True)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return ran.stdout


def test_jupyter_gpu_is_completed_and_jupyter_is_left_to_others() -> None:
    assert "asked: jupyter-gpu attach --kernel  at 3 by jupyter-gpu" in complete_in_bash(
        "jupyter", "gpu", "attach", "--kernel", ""
    )
    before = "other() { COMPREPLY=(theirs); }; complete -F other jupyter"
    assert "replied: theirs" in complete_in_bash("jupyter", "lab", "--", before=before)
    assert "asked" in complete_in_bash("jupyter", "gpu", "", before=before)


def test_a_name_is_cut_only_where_there_is_no_room() -> None:
    table = Table(("id", "name", "holds"), (("1", "n" * 60, "GPU 0"),), least=30)
    assert f"1   {'n' * 60}  GPU 0" in to_text([table])
    full = to_text([msgspec.structs.replace(table, rows=(("1", "n" * 90, "word " * 9),))])
    assert "n…" in full and max(map(columns, full.splitlines())) <= 80
