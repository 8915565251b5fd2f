"""Terminals and running notebooks: where one is, what a project asks for, restarts from outside."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.isolation import inherited
from genv_jupyter.model import NewEnvironment
from tests.integration.kernels import Kernel
from tests.integration.kernels import Server as ServerOfKernels
from tests.integration.servers import Server
from tests.integration.terminals import GPU, Terminal, jupyter_gpu


def test_terminal_outside_says_so_and_what_to_do(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Terminal([*GPU, "status"]) as terminal:
        said = terminal.expect("GPU 1: all free")
        assert said.startswith("This terminal is in no GPU environment.")
        assert "jupyter gpu run 0.5 -- python train.py" in said
        assert all(len(line) <= 80 for line in said.splitlines())
    assert jupyter_gpu("status", "--json").stdout == "null\n"
    monkeypatch.setenv("GENV_JUPYTER_ENVIRONMENT", "6d5d4f1e-0000-4000-8000-000000000001")
    ended = " ".join(jupyter_gpu("status").stdout.split())
    assert "The environment that it was started in (6d5d4f1e) has ended." in ended


def test_terminal_inside_shows_what_it_has(broker_home: Path) -> None:
    inner = ["run", "-q", "0.5", "-n", "train", "--", *GPU, "status"]
    page = jupyter_gpu(*inner).stdout
    assert page.startswith("This is in a GPU environment.") and "12 GiB, 50 % of compute" in page
    assert json.loads(jupyter_gpu(*inner, "--json").stdout)["kind"] == "command"


def test_environments_are_found_by_name_and_never_guessed(broker_home: Path) -> None:
    nested = f"{' '.join(GPU)} envs >/dev/null; {' '.join(GPU)}"
    two = ["run", "-q", "0.5", "-n", "same", "--", "sh", "-c"]
    once = jupyter_gpu(*two, f"{nested} status -e same --json")
    assert json.loads(once.stdout)["name"] == "same"
    inner = f"{nested} run -q -n same 0.25 -- sh -c '{' '.join(GPU)} release -k same; exit $?'; :"
    twice = jupyter_gpu(*two, inner)
    assert "'same' may be any of 2: same (" in twice.stderr and "Say the id." in twice.stderr
    refused = jupyter_gpu(*two, f"{' '.join(GPU)} attach 1 -k same")
    assert refused.returncode == 1 and "A command sees what it was started with" in refused.stderr


def test_shell_is_not_told_that_it_has_what_it_will_never_see(broker_home: Path) -> None:
    inside = {**os.environ, "SHELL": "/bin/sh"}
    line = f"{' '.join(GPU)} attach 0.7; echo status $?; {' '.join(GPU)} status"
    said = subprocess.run(
        [*GPU, "shell", "-q", "0.5"], input=line, env=inside, capture_output=True, text=True
    )
    assert "A shell sees what it was started with" in said.stderr
    assert "jupyter gpu shell" in said.stderr and "status 1" in said.stdout
    assert "50 % of compute" in said.stdout, "what it had is untouched"


def test_variables_of_a_command_that_has_ended_are_not_believed(broker_home: Path) -> None:
    """They are inherited by what the command leaves behind, and by whoever copies them."""
    code = (
        "import os; from genv_jupyter.isolation.inherited import command; "
        "print(command(), os.getppid())"
    )
    run = ["run", "-q", "0.5", "--"]
    inside = jupyter_gpu(*run, "sh", "-c", f'{sys.executable} -c "{code}"; :').stdout.split()[0]
    assert inside != "None"
    shown = jupyter_gpu(*run, "env").stdout
    environ = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    assert environ["GENV_JUPYTER_COMMAND"].partition("-")[0].isdigit()
    outside = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert outside.stdout.split()[0] == "None"


def test_pool_of_what_is_started_inside_is_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-granted")
    assert inherited.pool() == "GPU-granted"
    monkeypatch.setenv("GENV_JUPYTER_ENVIRONMENT", "x")
    assert inherited.pool() is None, "no server above has one"
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    monkeypatch.setenv("GENV_JUPYTER_COMMAND", "1-1")
    assert inherited.pool() is None
    monkeypatch.setenv("GENV_JUPYTER_POOL", "0")
    assert inherited.pool() == "0"


def test_project_file_and_the_magic(broker_home: Path, tmp_path: Path) -> None:
    with Kernel(tmp_path, {"GENV_JUPYTER_DEFAULT_REQUEST": "2"}) as kernel:
        kernel.run(f"import os; os.chdir({str(tmp_path)!r})")
        (tmp_path / "genv.toml").write_text("fraction = 0.25\nname = 'llm'\n")
        first = kernel.run("%gpu attach")
        assert "6 GiB, 25 % of compute" in first.text, first
        (tmp_path / "genv.toml").write_text("fraction = 0.75\n")
        assert "Attached already." in kernel.run("%gpu attach").text, "what it has comes first"
        kernel.run("%gpu release")
        (tmp_path / "genv.toml").write_text("fractio = 0.75\n")
        wrong = kernel.run("%gpu attach")
        assert "unknown key, 'fractio'" in "".join(wrong.traceback)
        (tmp_path / "genv.toml").write_text("# ours\nfraction = 0.75\n")
        (tmp_path / "genv.toml").chmod(0o666)
        passed = kernel.run("%gpu attach")
        assert "others may write it" in passed.stderr and "all of it" in passed.text
        (tmp_path / "genv.toml").chmod(0o644)
        saved = kernel.run("%gpu attach --memory 4G --save")
        assert f"Saved in {tmp_path / 'genv.toml'}." in saved.stdout
        assert (tmp_path / "genv.toml").read_text() == '# ours\nmemory = "4G"\n'


def test_project_of_a_terminal_names_no_notebook_elsewhere(
    broker_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "genv.toml").write_text('fraction = 0.5\nname = "llm"\nduration = "2h"\n')
    new = NewEnvironment(kind="kernel", pid=os.getpid(), name="other.ipynb")
    kernel = Client().create(new).id
    attached = jupyter_gpu("attach", "0.25", "-k", kernel, "--json", cwd=tmp_path)
    found = json.loads(attached.stdout)
    assert (found["name"], found["request"]["fraction"]) == ("other.ipynb", 0.25), found
    again = json.loads(jupyter_gpu("attach", "-k", kernel, "--json", cwd=tmp_path).stdout)
    assert (again["name"], again["request"]["fraction"]) == ("other.ipynb", 0.25), "as it had it"


def test_program_from_a_hidden_notebook_has_an_environment_of_its_own(
    broker_home: Path, tmp_path: Path
) -> None:
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    with ServerOfKernels(tmp_path) as server:
        kernel = server.kernel("nb")
        assert kernel.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']") == ""
        command = shlex.join([*GPU, "run", "-q", "0.5", "--", sys.executable, "-c", code])
        assert kernel.run(f"!{command}").stdout.startswith("GPU-")
        assert kernel.environment().grants == (), "the notebook still has none"


async def test_restart_from_a_terminal_says_what_came_back(
    server: Server, jp_asyncio_loop: Any
) -> None:
    kernel = await server.start_kernel()
    before = server.direct(kernel).pid

    def restart() -> subprocess.CompletedProcess[str]:
        return jupyter_gpu("attach", "0.5", "-k", kernel[:8], "--restart", "--json")

    plain = await asyncio.to_thread(jupyter_gpu, "attach", "0.5", "--kernel", kernel)
    assert plain.returncode == 0 and "Attached." in plain.stdout
    assert "being applied" not in plain.stdout, "it waits until the kernel has seen it"
    async with server.talk(kernel) as talk:
        await talk.run("import sys; sys.modules['jax'] = sys; 1")
    released = await asyncio.to_thread(jupyter_gpu, "release", "-k", kernel)
    assert "Released." in released.stdout
    ran = await asyncio.to_thread(jupyter_gpu, "attach", "1", "-k", kernel, "--restart")
    assert ran.returncode == 0, ran.stderr
    after = server.direct(kernel)
    assert f"the kernel is back, as process {after.pid}" in ran.stdout
    assert after.pid != before and after.applied == "live" and after.grants[0].exclusive
    assert "all of it (24 GiB)" in ran.stdout and Client().health().environments == 1
    assert json.loads((await asyncio.to_thread(restart)).stdout)["id"] == kernel
