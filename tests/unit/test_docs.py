"""Whatever the documentation names exists, and every error code is documented."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from genv_jupyter.errors import all_errors

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "examples/*.ipynb")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)


def text_of(page: Path) -> str:
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def named(pattern: str) -> list[tuple[str, str]]:
    """Return (page, match) of everything in the documentation that fits the pattern."""
    found = {
        (page.relative_to(ROOT).as_posix(), match)
        for page in PAGES
        for match in re.findall(pattern, text_of(page))
    }
    assert found, f"the documentation names nothing like {pattern}: this test checks nothing"
    return sorted(found)


def test_error_table_is_errors_py() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", (ROOT / "docs/errors.md").read_text(), re.M)
    assert len(rows) == len(set(rows))
    assert {code: int(status) for code, status in rows} == {
        code: error.status for code, error in all_errors().items()
    }


def test_environment_variables_exist() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "genv_jupyter").rglob("*.py"))
    code += (ROOT / "genv_jupyter_stub.py").read_text()
    unknown = [(page, name) for page, name in named(r"GENV_JUPYTER_[A-Z_]+") if name not in code]
    assert unknown == []


def test_every_public_environment_variable_is_documented() -> None:
    documented = {name for _, name in named(r"GENV_JUPYTER_[A-Z_]+")}
    assert {"GENV_JUPYTER_SIMULATE", "GENV_JUPYTER_HOME", "GENV_JUPYTER_SOCKET"} <= documented
    assert "GENV_JUPYTER_ENVIRONMENT" in documented


def test_traits_exist() -> None:
    for page, (module, owner, trait) in named(r"c\.((?:genv_jupyter\.)?)(\w+)\.(\w+) ="):
        assert not module
        assert trait in configurable(owner).class_trait_names(config=True), f"{page}: {owner}.{trait}"


def configurable(name: str) -> type:
    for module in ("genv_jupyter.server.app", "genv_jupyter.server.provisioner"):
        found = getattr(importlib.import_module(module), name, None)
        if inspect.isclass(found):
            return found
    raise AssertionError(f"{name} is no configurable of ours")


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.M))
    assert [(page, name) for page, name in named(r"`make ([a-z]+)") if name not in targets] == []


def test_links_lead_somewhere() -> None:
    dead = [
        (page, link)
        for page, link in named(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
        if not (ROOT / page).parent.joinpath(link).exists()
    ]
    assert dead == []


def test_files_named_in_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for name in set(re.findall(r"(?:genv_jupyter|labextension|tests|docs)/[\w./*-]*", text)):
        assert list(ROOT.glob(name.rstrip("/.") or name)), f"CONTRIBUTING.md names {name}"
