"""The tree of errors: drawn as it is, one code each, and the same on both sides of a door."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import genv_jupyter
from genv_jupyter import errors
from genv_jupyter.errors import GpuError, NoCapacity, all_errors, from_payload

LINE = re.compile(r"^ {4}((?:[│ ] {3})*(?:[├└]── )?)(\w+) +(\d{3}) (\w+)$", re.MULTILINE)


def drawn() -> dict[str, tuple[str | None, int, str]]:
    """Read the docstring: name -> (parent's name, status, code)."""
    found: dict[str, tuple[str | None, int, str]] = {}
    above: list[str] = []
    for indent, name, status, code in LINE.findall(errors.__doc__ or ""):
        depth = len(indent) // 4
        del above[depth:]
        found[name] = (above[-1] if above else None, int(status), code)
        above.append(name)
    return found


def test_docstring_draws_the_tree_as_it_is() -> None:
    real = {
        kind.__name__: (
            None if kind is GpuError else kind.__bases__[0].__name__,
            kind.status,
            kind.code,
        )
        for kind in all_errors().values()
    }
    assert drawn() == real


def test_every_error_has_a_code_of_its_own() -> None:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, GpuError)
    ]
    assert len({kind.code for kind in classes}) == len(classes) == len(all_errors())


def test_public_names_are_these() -> None:
    public = {
        name
        for name, value in vars(errors).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == errors.__name__
    }
    assert public == {kind.__name__ for kind in all_errors().values()} | {
        "all_errors",
        "from_payload",
    }


@pytest.mark.parametrize("kind", all_errors().values(), ids=lambda kind: kind.code)
def test_an_error_crosses_a_door_unchanged(kind: type[GpuError]) -> None:
    sent = kind("GPU 0 is held whole.", hint="Wait.", details={"reasons": {"GPU-1": "held"}})
    body = json.loads(json.dumps(sent.payload()))
    assert body.keys() == {"code", "message", "hint", "details"}
    got = from_payload(body, sent.status)
    assert type(got) is kind
    assert (got.message, got.hint, got.details) == (sent.message, sent.hint, sent.details)
    assert str(got) == "GPU 0 is held whole. Wait."


@pytest.mark.parametrize("body", [None, [], "x", {}, {"code": "unheard_of"}, {"details": 3}])
def test_an_unreadable_answer_becomes_a_plain_error(body: object) -> None:
    got = from_payload(body, 502)
    assert type(got) is GpuError
    assert "502" in got.message and got.details == {}


def test_what_a_face_derives_is_not_what_the_broker_said() -> None:
    class Mine(NoCapacity):
        pass

    assert type(from_payload(NoCapacity("full").payload(), 409)) is NoCapacity


def test_details_are_not_shared_between_errors() -> None:
    first, second = NoCapacity("a"), NoCapacity("b")
    first.details["holders"] = []
    assert second.details == {}


def test_every_refusal_says_what_to_do_next() -> None:
    package = Path(genv_jupyter.__file__).parent
    kinds = {kind.__name__ for kind in all_errors().values()}
    files = [*package.glob("*.py"), *(package / "api").glob("*"), *(package / "broker").glob("*")]
    mute = [
        f"{file.name}:{call.lineno}"
        for file in files
        if file.suffix == ".py"
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).rpartition(".")[2] in kinds
        and all(keyword.arg != "hint" for keyword in call.keywords)
    ]
    assert mute == []
