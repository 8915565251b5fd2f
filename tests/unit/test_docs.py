"""Whatever the documentation names exists, and every error code is documented."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import click
from traitlets.config import Configurable

from genv_jupyter.api import openapi
from genv_jupyter.api.client import Client
from genv_jupyter.broker.config import CLASSES
from genv_jupyter.cli.main import main
from genv_jupyter.errors import GpuError, all_errors
from genv_jupyter.kernel import parsing

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


def named(pattern: str) -> list[tuple[str, Any]]:
    """Return (page, match) of everything in the documentation that fits the pattern."""
    found = {
        (page.relative_to(ROOT).as_posix(), match)
        for page in PAGES
        for match in re.findall(pattern, text_of(page), re.M)
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
    for page, (owner, trait) in named(r"^c\.(\w+)\.(\w+) ="):
        known = configurable(owner).class_trait_names(config=True)
        assert trait in known, f"{page}: {owner}.{trait}"


def configurable(name: str) -> type[Configurable]:
    for kind in CLASSES:
        if kind.__name__ == name:
            return kind
    modules = ("genv_jupyter.server.app", "genv_jupyter.server.provisioner", "jupyterhub.app")
    modules += ("genv_jupyter.hub.reservations", "jupyterhub.spawner", "dockerspawner")
    for module in modules:
        found = getattr(importlib.import_module(module), name, None)
        if inspect.isclass(found):
            return found
    raise AssertionError(f"{name} is no configurable of ours")


def test_configuration_names_every_trait() -> None:
    """Each trait of the app is documented, and a kernelspec's settings are the provisioner's."""
    text = (ROOT / "docs/configuration.md").read_text()
    app, provisioner = configurable("GenvJupyterApp"), configurable("GenvProvisioner")
    own = {name for name in app.class_own_traits(config=True) if f"`{name}`" not in text}
    assert own == set()
    for kind in CLASSES:
        named = set(re.findall(rf"`{kind.__name__}\.(\w+)`", text))
        assert named == set(kind.class_own_traits(config=True)), kind.__name__
    sample = json.loads(re.search(r"```json\n(.*?)```", text, re.S)[1])["metadata"]
    listed = re.search(r"Its `config` takes (.*?):\n", text, re.S)[1]
    names = set(re.findall(r"`(\w+)`", listed)) | set(sample["kernel_provisioner"]["config"])
    assert names == set(provisioner.class_own_traits())


def test_magic_lines_are_understood() -> None:
    lines = [(page, line) for page, line in named(r"%%?gpu[^\n`]*") if not skipped(line)]
    assert len(lines) > 20
    for page, line in lines:
        words = re.split(r" {3,}| — |[.,;:)]+(?: |$)", line.lstrip("%").removeprefix("gpu"))[0]
        read = parsing.read_cell if line.startswith("%%") else parsing.read
        try:
            read(words.replace("…", "").strip())
        except GpuError as error:
            raise AssertionError(f"{page} says {line!r}: {error}") from None


def test_terminal_commands_are_understood() -> None:
    for page, line in named(r"jupyter gpu[^\n`)#\\|>]*"):
        words = re.split(r" {3,}", line)[0].split()[2:]
        if not words or words[0] in ("...", "…"):
            continue
        command = main.commands[words[0]]
        if not words[1:]:
            continue  # named, not shown
        try:
            command.make_context(words[0], words[1:], resilient_parsing=False)
        except click.UsageError as error:
            raise AssertionError(f"{page} says {line!r}: {error.message}") from None


def test_python_methods_exist() -> None:
    unknown = [
        (page, name) for page, name in named(r"client\.(\w+)\(") if not hasattr(Client, name)
    ]
    assert unknown == []


def skipped(line: str) -> bool:
    """Leave out prose that goes on after the bare name, such as '%gpu magic'."""
    return (
        re.match(r"%gpu(?: [a-z]+)? (?:in|of|shows|where|works|magic|and|is)\b", line) is not None
    )


def test_rest_table_is_the_api() -> None:
    """The routes documented are those of the OpenAPI file, less what faces say to the broker."""
    rows = re.findall(r"^\| `([A-Z]+) ([^`]+)` \|", (ROOT / "docs/rest.md").read_text(), re.M)
    documented = {(verb, f"/{path}") for verb, path in rows}
    described = {
        (verb.upper(), path)
        for path, verbs in openapi.document()["paths"].items()
        for verb in verbs
        if verb in ("get", "put", "post", "patch", "delete") and not path.startswith("/servers")
    }
    assert documented == described


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


def test_map_in_contributing_leads_to_modules() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and ".py`" in line]
    places = [ROOT / "genv_jupyter", ROOT / "labextension/src", ROOT / "genv_jupyter/isolation/smi"]
    named = {name for row in rows for name in re.findall(r"`([\w/]+\.(?:py|ts))`", row)}
    missing = [name for name in named if not any((place / name).is_file() for place in places)]
    assert len(rows) > 10 and missing == []


def test_pictures_are_those_that_a_script_takes() -> None:
    shown = {Path(name).stem for _, name in named(r"\]\(images/([\w.-]+)\)")}
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (made,) = re.findall(r"^PICTURES := (.+)$", makefile, re.M)
    assert shown == {one.partition("=")[0] for one in made.split()}
    assert {path.stem for path in (ROOT / "docs/images").iterdir()} == shown


def test_tests_that_are_named_exist() -> None:
    for page, (file, name) in named(r"`(tests/[\w/]+\.py)::(\w+)`"):
        path = ROOT / file
        assert path.is_file(), (page, file)
        assert re.search(rf"^(async )?def {name}\(", path.read_text(), re.M), (page, file, name)
