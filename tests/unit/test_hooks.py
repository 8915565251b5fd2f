"""Hooks behind imports: whatever is odd around them, the user's import goes on."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import io
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import genv_jupyter_stub
from genv_jupyter.isolation.caps import LIMIT
from genv_jupyter.kernel import frameworks


class Shell:
    """As much of IPython as the stub touches."""

    events = types.SimpleNamespace(register=lambda name, function: None)
    Completer = types.SimpleNamespace(custom_matchers=[])
    input_transformers_cleanup = types.SimpleNamespace(append=lambda function: None)

    def register_magic_function(self, *_: object) -> None:
        pass


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[genv_jupyter_stub.Stub]:
    """A stub with a limit to keep, and a module of the user's that is named as a framework."""
    (tmp_path / "cupy.py").write_text("here = True")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(frameworks.caps, "settle", lambda *_: None)
    monkeypatch.setitem(frameworks._HOOKS, "cupy", ("CuPy", _fail))
    monkeypatch.setenv(LIMIT, "1000")
    yield genv_jupyter_stub.Stub(Shell())
    sys.modules.pop("cupy", None)


def _fail(module: Any) -> list[str]:
    raise RuntimeError("no such thing here")


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise RuntimeError("nothing can be written")


@pytest.mark.parametrize("stream", ["closed", "broken", "none"])
def test_a_line_that_cannot_be_written_does_not_break_an_import(
    stub: genv_jupyter_stub.Stub, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", {"closed": closed, "broken": Broken(), "none": None}[stream])
    assert importlib.import_module("cupy").here


def test_the_loader_can_be_copied_and_pickled(stub: genv_jupyter_stub.Stub) -> None:
    spec = importlib.util.find_spec("cupy")
    assert spec is not None and isinstance(spec.loader, frameworks._Loader)
    for loader in (copy.copy(spec.loader), pickle.loads(pickle.dumps(spec.loader))):
        assert loader.get_filename() == spec.origin


@pytest.mark.parametrize("odd", [5, types.SimpleNamespace()], ids=["number", "namespace"])
def test_an_odd_thing_among_the_modules_does_not_keep_others_from_being_told(
    odd: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(frameworks.caps, "settle", lambda *_: None)
    monkeypatch.setattr(
        frameworks, "_HOOKS", {name: (name, lambda it: told.append(it) or []) for name in "ab"}
    )
    other = types.ModuleType("b")
    monkeypatch.setitem(sys.modules, "a", odd)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "b", other)
    assert frameworks.follow() == []
    assert told[-1] is other


def test_a_line_does_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    genv_jupyter_stub.say("GPU: \x1b[2J\x9b1m\u202ex\r\n holds it.")
    assert capsys.readouterr().err == "GPU: \ufffd[2J\ufffd1m\ufffdx holds it.\n"
