"""What `%gpu` says of CUDA's state and of who started the kernel, in real kernels."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from genv_jupyter.isolation import live
from genv_jupyter.model import Request
from tests.integration.driven import driven_server, fake_driver  # noqa: F401 (fixtures)
from tests.integration.helped import eventually
from tests.integration.kernels import Kernel, Ran, Server

__all__ = ["fake_driver"]

INITIALIZE = """
import os
from cuda.bindings import driver as cuda
assert int(cuda.cuInit(0)[0]) == 0
"""
CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def flat(ran: Ran) -> str:
    """Return what is read, in a notebook and in a terminal; the same, and in 80 columns there."""
    assert ran.ok, ran
    assert max(map(len, ran.text.splitlines())) <= 80, ran.text
    text = " ".join(ran.text.split())
    html = re.sub(r"<[^>]+>", "\n", ran.html)
    for remark in re.findall(r"(?:Granted|Effective|Edited): [^!]*", text):
        assert remark.strip().replace("'", "&#x27;") in html
    return text


def labels(server: Server) -> list[str]:
    return [f"GPU {index} ({uuid[:12]})" for index, uuid in enumerate(server.driver.uuids)]


# -- granted, effective, edited --------------------------------------------------------------------


def test_grant_that_came_too_late_is_told_from_what_cuda_has_read(server: Server) -> None:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach --memory 4G --device 0").ok
    assert kernel.run(INITIALIZE).ok
    assert "Effective" not in flat(kernel.run("%gpu")), "nothing differs"
    second = server.driver.uuids[1]
    # The sidebar's "attach and restart", before the restart.
    wanted = Request(memory="4G", devices=(second,))
    server.client.attach(kernel.id, wanted, cuda="initialized", restart=True)
    text = flat(kernel.run("%gpu"))
    assert f"Granted: {labels(server)[1]}." in text
    assert f"Effective: {labels(server)[0]}, which CUDA read when it initialised here." in text
    assert "Restart the kernel to see the grant, which is kept." in text
    assert "Edited" not in text
    kernel.run(f"os.environ[{VISIBLE!r}] = '7'")
    text = flat(kernel.run("%gpu"))
    assert text.index("Granted:") < text.index("Effective:") < text.index("Edited:")
    kernel.restart()
    assert kernel.run(INITIALIZE).ok
    assert "Effective" not in flat(kernel.run("%gpu"))


def test_edited_variable_needs_no_restart_where_cuda_sees_the_grant(server: Server) -> None:
    kernel = server.kernel("llm")
    assert kernel.run("%gpu attach 2").ok
    assert kernel.run(INITIALIZE).ok
    before = kernel.value(f"os.environ[{VISIBLE!r}]")
    kernel.run(f"os.environ[{VISIBLE!r}] = '0'")
    text = flat(kernel.run("%gpu"))
    assert "Edited: CUDA_VISIBLE_DEVICES is '0', changed by hand. CUDA has read it before" in text
    assert "Effective" not in text, "CUDA sees what is granted"
    doctor = " ".join(kernel.run("%gpu doctor").text.split())
    assert f"initialized in this process, where it sees {', '.join(labels(server))}" in doctor
    again = flat(kernel.run("%gpu attach 2"))
    assert "Edited" not in again and "restart" not in again
    assert kernel.value(f"os.environ[{VISIBLE!r}]") == before
    assert [grant.applied for grant in kernel.environment().grants] == ["live", "live"]


def test_too_late_in_a_kernel_of_nobody_says_what_to_do(server: Server, tmp_path: Path) -> None:
    with Kernel(tmp_path / "alone") as kernel:
        assert kernel.run(INITIALIZE).ok
        text = flat(kernel.run("%gpu"))
        assert "Granted: nothing." in text
        assert f"Effective: {', '.join(labels(server))}, which CUDA read" in text
        assert "restart, and attach first" in text
        late = kernel.run("%gpu attach 1")
        assert " ".join(late.traceback) == late.error and "\n" not in late.error
        assert "CUDA is already initialised in this kernel" in late.error
        assert "Restart it by hand, and attach before anything uses CUDA." in late.error
        assert "--restart" not in late.error, "nobody would restart it"


@pytest.mark.parametrize("policy", ["hide", "all"])
def test_kernel_without_a_grant_lets_pytorch_ask_nvml(tmp_path: Path, policy: str) -> None:
    look = f"import os\nos.environ.get({CHECK!r})"
    unattached = {"GENV_JUPYTER_ENVIRONMENT": "id", "GENV_JUPYTER_UNATTACHED": policy}
    with Kernel(tmp_path, unattached) as kernel:
        assert kernel.value(look) == "1"
    with Kernel(tmp_path, {**unattached, CHECK: "0"}) as kernel:
        assert kernel.value(look) == "0", "the user's own"
    with Kernel(tmp_path, {"GENV_JUPYTER_ENVIRONMENT": "id"}) as kernel:
        assert kernel.run(look).text in ("", "None"), "with a grant, or of nobody"


def test_what_remembers_is_said_in_the_next_cell_where_the_sidebar_attached(
    server: Server,
) -> None:
    kernel = server.kernel("llm")
    kernel.run("import sys, types; sys.modules['jax'] = types.ModuleType('jax')")
    attached = server.client.attach(kernel.id, Request(fraction=0.5))
    assert attached.environ is not None
    expression = live.expression(attached.environ)  # as a server has it evaluated
    kernel.client.execute("", silent=True, user_expressions={"it": expression}, reply=True)
    said = kernel.run("1 + 1").stderr
    assert said.startswith("GPU: jax was loaded while GPUs were hidden here")
    assert said.count("\n") == 1
    assert kernel.run("1 + 1").stderr == "", "once"
    assert "jax was loaded" in flat(kernel.run("%gpu"))
    assert kernel.run("%gpu release").ok
    shown = kernel.run("%gpu attach 0.5")
    assert "jax was loaded" in flat(shown) and shown.stderr == "", "said in the view"


# -- started by others -----------------------------------------------------------------------------


def test_kernel_of_vs_code_says_how_to_do_better(server: Server, tmp_path: Path) -> None:
    with Kernel(tmp_path / "alone") as kernel:
        kernel.run("__vsc_ipynb_file__ = '/home/alice/plots.ipynb'")  # as its Jupyter extension
        text = flat(kernel.run("%gpu"))
        assert "VS Code has started this kernel by itself" in text
        assert 'or let VS Code use an "Existing Jupyter Server" with genv-jupyter' in text
        assert "This notebook (plots.ipynb) has a GPU" in flat(kernel.run("%gpu attach 0.5\n%gpu"))


DROPPED = dict.fromkeys(
    ("GENV_JUPYTER_ENVIRONMENT", "GENV_JUPYTER_UNATTACHED", "CUDA_VISIBLE_DEVICES")
)
LOST = "variables did not reach this kernel: a gateway or a script on the way has dropped them."


def test_kernel_whose_variables_were_dropped_is_known_all_the_same(server: Server) -> None:
    kernel = server.kernel("llm", **DROPPED)
    text = flat(kernel.run("%gpu"))
    assert f"{LOST} So nothing is hidden here. Attach before anything uses CUDA." in text
    assert "Edited" not in text, "nobody has"
    assert LOST not in flat(kernel.run("%gpu attach 0.5"))
    kernel.restart()  # with a grant, and without its variables again
    assert f"{LOST} They are set now." in flat(kernel.run("%gpu"))
    (grant,) = kernel.environment().grants
    assert grant.applied == "live"
    assert kernel.value(f"__import__('os').environ[{VISIBLE!r}]") == grant.device
    assert "variables" not in flat(kernel.run("%gpu"))
    kernel.restart()
    assert kernel.run(INITIALIZE).ok
    text = flat(kernel.run("%gpu"))
    assert f"{LOST} Granted:" in text.replace(" ! ", " ")
    assert f"Effective: {', '.join(labels(server))}, which CUDA read" in text
    assert "Edited" not in text, "here neither"


def test_kernel_that_a_server_of_ours_started_without_a_broker_is_not_called_foreign(
    server: Server, tmp_path: Path
) -> None:
    with Kernel(tmp_path / "alone", {"GENV_JUPYTER_NOTICE": "The broker is down."}) as kernel:
        text = flat(kernel.run("%gpu"))
        assert "The broker is down." in text
        assert "started" not in text


def notebook(directory: Path) -> Path:
    cells = ["%load_ext genv_jupyter\n%gpu", "%gpu attach 0.5"]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path = directory / "run.ipynb"
    nbformat.write(made, path)
    return path


def check_run(path: Path, sentence: str) -> None:
    looked, attached = (
        " ".join(cell.outputs[0].data["text/plain"].split())
        for cell in nbformat.read(path, as_version=4).cells
    )
    assert sentence in looked
    assert "Attach before anything uses CUDA" in looked
    assert attached.startswith("Attached.") and "in force" in attached


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("nbconvert", "nbconvert --to notebook --execute --inplace run.ipynb"),
        ("papermill", "papermill -k python3 run.ipynb run.ipynb"),
    ],
)
def test_headless_run_is_named_and_its_grant_ends_with_it(
    server: Server, tmp_path: Path, name: str, command: str
) -> None:
    path = notebook(tmp_path)
    tool, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    check_run(path, f"{name} has started this kernel, and no Jupyter server: nothing is hidden")
    eventually(lambda: not [it for it in server.client.environments() if it.grants])


def test_nbclient_in_a_program_is_somebody(server: Server, tmp_path: Path) -> None:
    path = notebook(tmp_path)
    made = nbformat.read(path, as_version=4)
    NotebookClient(made, timeout=60).execute()
    nbformat.write(made, path)
    check_run(path, "This kernel was not started by a Jupyter server with genv-jupyter")
