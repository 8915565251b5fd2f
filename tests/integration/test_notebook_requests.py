"""Requests in the metadata of notebooks, which their kernels are given from the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

from genv_jupyter.server import remembered
from tests.integration.servers import (
    CONFIG,
    IPYKERNEL,
    AddKernelspec,
    Server,
    started_with,
)


@pytest.fixture
def jp_server_config(request: pytest.FixtureRequest) -> Config:
    """Notebooks are asked, unless the test says otherwise."""
    config = Config(json.loads(json.dumps(CONFIG)))
    config.GenvJupyterApp.notebook_requests = getattr(request, "param", True)
    return config


def write(root: Path, request: Any, name: str = "kept.ipynb") -> str:
    book = {
        "cells": [],
        "metadata": {"genv_jupyter": {"request": request}, "kernelspec": {"name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (root / name).write_text(json.dumps(book))
    return name


async def test_a_notebook_that_is_opened_again_has_what_it_needs_from_the_start(
    server: Server, jp_root_dir: Path
) -> None:
    _, kernel = await server.open_notebook(write(jp_root_dir, {"memory": "4G"}))
    environment = await server.known(kernel, applied="live")
    (grant,) = environment["grants"]
    assert (grant["memory"], environment["request"]["memory"]) == (4_000_000_000, "4G")
    assert (await started_with(server, kernel))["CUDA_VISIBLE_DEVICES"] == grant["device"]


async def test_a_notebook_comes_before_its_kernelspec(
    server: Server, jp_root_dir: Path, add_kernelspec: AddKernelspec
) -> None:
    spec = add_kernelspec("half", IPYKERNEL, config={"fraction": 0.5})
    _, kernel = await server.open_notebook(write(jp_root_dir, {"fraction": 0.25}), spec)
    (grant,) = (await server.known(kernel, applied="live"))["grants"]
    assert grant["compute"] == 2500
    _, other = await server.open_notebook(write(jp_root_dir, None, "none.ipynb"), spec)
    (grant,) = (await server.known(other, applied="live"))["grants"]
    assert grant["compute"] == 5000


@pytest.mark.parametrize("jp_server_config", [False], indirect=True)
async def test_notebooks_are_not_asked_unless_that_is_wanted(
    server: Server, jp_root_dir: Path
) -> None:
    _, kernel = await server.open_notebook(write(jp_root_dir, {"gpus": 2}))
    assert "CUDA_VISIBLE_DEVICES" not in await started_with(server, kernel)
    assert (await server.environment(kernel))["grants"] == []


@pytest.mark.parametrize("request_", [{"gpus": -1}, {"fractoin": 0.5}, "half", [1]])
async def test_what_is_no_request_stops_no_kernel_and_is_said(
    server: Server, jp_root_dir: Path, request_: object
) -> None:
    _, kernel = await server.open_notebook(write(jp_root_dir, request_))
    env = await started_with(server, kernel)
    assert env["GENV_JUPYTER_NOTICE"]
    assert (await server.environment(kernel))["grants"] == []


async def test_what_is_no_notebook_asks_for_nothing(tmp_path: Path) -> None:
    kept = tmp_path / write(tmp_path, {"gpus": 1})
    found = await remembered.remembered(str(kept))
    assert found is not None
    assert found.gpus == 1
    (tmp_path / "broken.ipynb").write_text('{"metadata": ')
    (tmp_path / "odd.ipynb").write_text('{"cells": [{"metadata": {"genv_jupyter": 1}}]}')
    (tmp_path / "folder.ipynb").mkdir()
    kept.rename(tmp_path / "kept.json")
    names = ("broken.ipynb", "odd.ipynb", "folder.ipynb", "kept.json", "gone.ipynb")
    for name in names:
        assert await remembered.remembered(str(tmp_path / name)) is None
    assert await remembered.remembered(None) is None


async def test_a_notebook_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write(tmp_path, {"gpus": 1})
    monkeypatch.setattr(remembered, "MOST_BYTES", (tmp_path / name).stat().st_size - 1)
    assert await remembered.remembered(str(tmp_path / name)) is None
