"""`pip install --no-deps` beside ipykernel and msgspec: `%gpu` needs nothing more in a kernel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from tests.integration.servers import AddKernelspec, Server, Talk, another_process
from tests.packaging.building import Archives, environment, pip, run

ABSENT = ("sqlalchemy", "alembic", "click", "pynvml", "jupyter_server", "jupyterlab")
"""What a server, its broker and the command need, and ipykernel does not bring."""


@pytest.fixture(scope="session")
def alone(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has ipykernel, msgspec and our wheel, and no more."""
    python = environment(tmp_path_factory.mktemp("alone"), "ipykernel", "msgspec")
    pip(python, "--no-deps", str(archives.wheel))
    found = f"print([n for n in {ABSENT} if __import__('importlib.util').util.find_spec(n)])"
    assert run(str(python), "-c", found).strip() == "[]", "or this shows nothing"
    return python


def ipython(python: Path, line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one line in IPython, as somebody types it in a terminal."""
    return subprocess.run(
        [python.with_name("ipython"), "--no-banner", "--colors=NoColor", "-c", line],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def said(ran: subprocess.CompletedProcess[str]) -> str:
    text = " ".join((ran.stdout + ran.stderr).split())
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("line", ["%gpu", "%gpu attach 0.5", "%gpu devices"])
def test_where_no_broker_runs_none_can_be_started_and_that_is_said(
    alone: Path, clean: Path, line: str
) -> None:
    text = said(ipython(alone, line, clean))
    assert "The GPU broker cannot run in this Python environment" in text
    assert "No module named" in text
    assert "start JupyterLab with genv-jupyter" in text
    assert "pip install genv-jupyter" in text


def test_the_doctor_says_it_too_and_the_command_where_it_is_missing(
    alone: Path, clean: Path
) -> None:
    doctor = said(ipython(alone, "%gpu doctor", clean))
    assert "cannot run in this Python environment" in doctor
    assert "CUDA not initialized in this process" in doctor
    command = subprocess.run(
        [alone.with_name("jupyter-gpu"), "status"], cwd=clean, capture_output=True, text=True
    )
    assert command.returncode == 3
    assert "only the kernel part of genv-jupyter is installed here" in said(command)


def test_a_terminal_there_uses_the_broker_that_runs(alone: Path, clean: Path) -> None:
    with_all = Client()
    with_all.health()
    assert "SIMULATED" in said(ipython(alone, "%gpu devices", clean))
    attached = said(ipython(alone, "%gpu attach 0.5", clean))
    assert attached.startswith("Out[0]: Attached.")
    assert "in force" in attached
    assert "GPU doctor" in said(ipython(alone, "%gpu doctor", clean))


async def test_a_notebook_there_is_like_any_other(
    alone: Path, clean: Path, add_kernelspec: AddKernelspec, server: Server
) -> None:
    argv = (str(alone), "-m", "ipykernel_launcher", "-f", "{connection_file}")
    # pytest-jupyter gives its servers this environment's packages; a real one has no such thing.
    name = add_kernelspec("alone", argv, env={"PYTHONPATH": ""})
    kernel = await server.start_kernel(name)
    async with server.talk(kernel) as talk:
        ours = await talk.evaluate("__import__('genv_jupyter').__file__")
        assert str(alone.parents[1]) in ours
        visible = "__import__('os').environ.get('CUDA_VISIBLE_DEVICES')"
        assert await talk.evaluate(visible) == "''", "the startup file came with the wheel"
        assert "has no GPU: they are hidden" in await gpu(talk, "")
        assert (await gpu(talk, "attach 0.5")).startswith("Attached.")
        environment = await server.known(kernel, applied="live")
        [grant] = environment["grants"]
        assert await talk.evaluate(visible) == repr(grant["device"])
        assert "50 %" in await gpu(talk, "devices")
        assert "of this user" in await gpu(talk, "doctor")
        assert (await talk.run("%gpu attach 1.5"))["status"] == "error"
    assert (await server.gpu("POST", f"environments/{kernel}/restart")).status == 202
    after = await another_process(server, kernel, environment["pid"])
    assert [one["device"] for one in after["grants"]] == [grant["device"]]
    async with server.talk(kernel) as talk:
        assert (await gpu(talk, "attach 0.5")).startswith("Attached already.")
        assert (await gpu(talk, "release")).startswith("Released.")
        assert await talk.evaluate(visible) == "''"


async def gpu(talk: Talk, line: str) -> str:
    """Return what a line of `%gpu` shows, its breaks taken out."""
    return " ".join((await talk.evaluate(f"get_ipython().run_line_magic('gpu', {line!r})")).split())
