"""What is typed after `%gpu`, and how sizes and grants are said."""

from __future__ import annotations

import pytest

from genv_jupyter.errors import GpuError
from genv_jupyter.kernel import parsing
from genv_jupyter.kernel.magics import GpuMagicFailed
from genv_jupyter.kernel.parsing import FOREVER, TEXT, Command, read
from genv_jupyter.model import Request


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("attach 0.5", Request(fraction=0.5)),
        ("attach 1", Request(gpus=1)),
        ("attach 1.0", Request(gpus=1)),
        ("attach 2 --memory 10G", Request(gpus=2, memory="10G")),
        ("attach --memory '4 GiB'", Request(memory="4 GiB")),
        ('attach --name "my model" 0.25', Request(fraction=0.25, name="my model")),
        ("attach --device 0 --device GPU-1,GPU-2", Request(devices=("0", "GPU-1", "GPU-2"))),
        (
            "attach -d 0 -m 4G -n x -p 2",
            Request(devices=("0",), memory="4G", name="x", processes=2),
        ),
        ("attach 0.5 --mps", Request(fraction=0.5, mps="on")),
        ("attach 0.5 --no-mps", Request(fraction=0.5, mps="off")),
        ("attach", Request()),
        ("attach 1 --for 2h30m", Request(gpus=1, duration="2h30m")),
        ("attach 1 --wait", Request(gpus=1, wait=FOREVER)),
        ("attach --wait 0.5", Request(fraction=0.5, wait=FOREVER)),
        ("attach --wait 30m 0.5", Request(fraction=0.5, wait="30m")),
        ("attach 1 --wait=90", Request(gpus=1, wait="90")),
    ],
)
def test_attach_is_read(line: str, request_: Request) -> None:
    assert read(line) == Command(verb="attach", request=request_)


def test_other_verbs_are_read() -> None:
    assert read("") == read("status") == Command(verb="status")
    assert read("release") == read("detach") == Command(verb="detach")
    assert read("release --device GPU-1 --restart").restart
    assert read("attach 0.5 --restart").restart
    assert read("watch") == Command(verb="watch")
    assert read("watch off") == Command(verb="watch", off=True)
    assert read("queue") == Command(verb="queue") and read("leave") == Command(verb="leave")
    assert read("extend 1h") == Command(verb="extend", text="1h")
    assert read("ask") == Command(verb="ask")
    assert read("ask  how's 'an hour'?") == Command(verb="ask", text="how's 'an hour'?")
    assert read("--help") == read("attach 0.5 -h") == Command(verb="help")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("frob", "bad_request"),
        ("attach 'half", "bad_request"),
        ("attach --mem 4G", "bad_request"),
        ("attach 0.5 0.5", "bad_request"),
        ("attach x", "bad_request"),
        ("attach nan", "out_of_range"),
        ("attach 0", "out_of_range"),
        ("attach -1", "out_of_range"),
        ("attach 1.5", "out_of_range"),
        ("attach 1 --processes many", "bad_request"),
        ("attach 1 --wait 4G", "bad_request"),
        ("attach 1 --for soon", "bad_request"),
        ("attach 1 --for 0", "out_of_range"),
        ("extend", "bad_request"),
        ("extend 1h 2h", "bad_request"),
        ("extend a bit", "bad_request"),
        ("queue up", "bad_request"),
        ("devices all", "bad_request"),
        ("release 0.5", "bad_request"),
        ("watch on", "bad_request"),
        ("usage all", "bad_request"),
    ],
)
def test_what_cannot_be_read_has_a_code_and_a_hint(line: str, code: str) -> None:
    with pytest.raises(GpuError) as caught:
        read(line)
    assert caught.value.code == code
    assert caught.value.hint


def test_what_is_nearly_right_is_told_what_would_be() -> None:
    for line, said in {
        "atach 0.5": "Did you mean `%gpu attach`?",
        "attach 12G": "`--memory 12G`",
        "attach 4gib": "`--memory 4gib`",
    }.items():
        with pytest.raises(GpuError) as caught:
            read(line)
        assert said in caught.value.hint
    for line in ("zzz", "attach lots", "attach 1q"):
        with pytest.raises(GpuError) as caught:
            read(line)
        assert "Did you" not in caught.value.hint and "--memory" not in caught.value.hint
    assert read("help attach") == Command(verb="help")


def test_a_refusal_is_shown_in_lines_that_fit_and_loses_nothing() -> None:
    error = GpuError("What happened, to whom, and since when; " * 6, hint="Say --device 0. " * 9)
    lines = GpuMagicFailed(str(error), error)._render_traceback_()
    assert max(map(len, lines)) <= 78
    assert " ".join(lines).split() == str(error).split()
    assert any(line.startswith("Say --device") for line in lines)  # what to do begins a line
    assert GpuMagicFailed("restarting")._render_traceback_() == ["restarting"]


def test_help_names_every_verb_and_option() -> None:
    for verb in parsing.VERBS:
        assert verb in ("status", "help") or f"%gpu {verb}" in TEXT
    for options in parsing.OPTIONS.values():
        for option in options:
            assert option in TEXT
