"""By what a kernel was started, read from the command line of its parent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from genv_jupyter.kernel import origin

SHELL = SimpleNamespace(user_ns={})


@pytest.mark.parametrize(
    ("command", "starter"),
    [
        ("/venv/bin/python /venv/bin/jupyter-nbconvert --execute a.ipynb", "nbconvert"),
        ("python -m nbconvert --execute a.ipynb", "nbconvert"),
        ("python -m jupyter nbconvert a.ipynb", "nbconvert"),
        ("/venv/bin/python3 /venv/bin/papermill a.ipynb b.ipynb", "papermill"),
        ("/venv/bin/python /venv/bin/jupyter-execute a.ipynb", "execute"),
        ("/venv/bin/python /venv/bin/jupyter-lab --no-browser", "server"),
        ("/venv/bin/python /venv/bin/jupyterhub-singleuser", "server"),
        ("python -m jupyter_server", "server"),
        ("python -m jupyterlab", "server"),
        ("/venv/bin/python /venv/bin/jupyter-kernelgateway", "gateway"),
        ("python -m jupyter enterprisegateway", "gateway"),
        ("python manage.py run server", ""),
        ("python -c run", ""),
        ("/usr/bin/papermill-like a.ipynb", ""),
        ("spyder", ""),
    ],
)
def test_parent_is_known_by_its_command_line(command: str, starter: str) -> None:
    assert origin.named(command.split()) == starter


@pytest.mark.parametrize("pid", [None, "", "not-a-number", "0", "999999999"])
def test_parent_that_cannot_be_read_is_somebody(
    monkeypatch: pytest.MonkeyPatch, pid: str | None
) -> None:
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    if pid is not None:
        monkeypatch.setenv("JPY_PARENT_PID", pid)
    assert origin.starter(SHELL) == ""


@pytest.mark.parametrize(
    ("starter", "start", "cure"),
    [
        ("nbconvert", "nbconvert has started this kernel", "`jupyter gpu run`"),
        ("server", "The Jupyter server has started this kernel without", "Install it where"),
        ("gateway", "A kernel gateway has started this kernel, without", "again after a restart"),
        ("VS Code", "VS Code has started this kernel by itself", "Existing Jupyter Server"),
        ("", "This kernel was not started by a Jupyter server with", "again after a restart"),
    ],
)
def test_each_says_what_happened_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, starter: str, start: str, cure: str
) -> None:
    monkeypatch.setattr(origin, "starter", lambda shell: starter)

    def said(**facts: Any) -> list[str]:
        return origin.remarks(SHELL, None, **{"terminal": False, "pool": None, **facts})

    (sentence,) = said()
    assert sentence.startswith(start) and "nothing is hidden here" in sentence
    assert cure in sentence
    assert "only what that names" in said(pool="0")[1]
    assert said(terminal=True)[0].startswith("Not started by us")
