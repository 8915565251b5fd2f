"""What runs inside a living process: it probes, sets, and leaves nothing behind."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.isolation import caps, live
from genv_jupyter.isolation.environ import environ_of
from genv_jupyter.server import variables

CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


@pytest.fixture(autouse=True)
def _own_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(live, "_seen_initialized", False)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", CHECK):
        os.environ.pop(name, None)


def test_apply_sets_and_unsets() -> None:
    os.environ["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST"
    result = live.apply_environ({"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_ORDER": None})
    assert result["cuda"] == "not_initialized"
    assert result["applied"] == "live"
    assert result["visible"] == os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert "CUDA_DEVICE_ORDER" not in os.environ


def test_apply_reaches_what_c_code_reads() -> None:
    code = (
        "import ctypes; from genv_jupyter.isolation import live;"
        "live.apply_environ({'CUDA_VISIBLE_DEVICES': 'GPU-7'});"
        "get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p;"
        "print(get(b'CUDA_VISIBLE_DEVICES').decode())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "GPU-7"


def test_apply_changes_nothing_once_cuda_is_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_seen_initialized", True)
    os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-1"
    result = live.apply_environ({"CUDA_VISIBLE_DEVICES": "GPU-2", "CUDA_DEVICE_ORDER": "X"})
    assert result["applied"] == "at_restart"
    assert result["visible"] == "GPU-1"
    assert "CUDA_DEVICE_ORDER" not in os.environ
    same = live.apply_environ({"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert (same["cuda"], same["applied"]) == ("initialized", "live")


def test_initialized_crosses_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_seen_initialized", True)
    child = os.fork()
    if child == 0:
        os._exit(0 if live.cuda_state() == "initialized" else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_snippet_is_old_python_and_standard_library_only() -> None:
    tree = ast.parse(live.SNIPPET, feature_version=(3, 8))
    imported = {
        name.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
    } | {
        str(node.module).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert imported <= set(sys.stdlib_module_names)


def test_expression_works_where_nothing_of_ours_is_installed() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": 'GPU-it\'s "quoted"', "CUDA_DEVICE_ORDER": None}
    code = (
        "import os, sys; before = set(globals());"
        f"print({live.expression(environ)});"
        "assert set(globals()) - before == {'before'}, globals();"
        "assert 'genv_jupyter' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert json.loads(done.stdout)["visible"] == environ["CUDA_VISIBLE_DEVICES"]
    assert json.loads(eval(live.expression(None))) == {"cuda": "not_initialized"}


def test_pytorch_that_remembers_a_number_of_devices_counts_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older versions do, whoever they asked (a stand-in for them)."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch = types.ModuleType("torch")
    torch.cuda = types.ModuleType("torch.cuda")
    torch.cuda.device_count = functools.lru_cache(lambda: len(os.environ["CUDA_VISIBLE_DEVICES"]))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert torch.cuda.device_count() == 0
    live.apply_environ({"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert torch.cuda.device_count() > 0


@pytest.mark.parametrize("own", [None, "0"])
def test_hiding_lets_pytorch_ask_nvml_unless_the_user_said_otherwise(own: str | None) -> None:
    if own is not None:
        os.environ[CHECK] = own
    live.apply_environ({"CUDA_VISIBLE_DEVICES": "GPU-1"})
    live.apply_environ({"CUDA_VISIBLE_DEVICES": ""})
    assert os.environ[CHECK] == (own or "1")


# -- what a broker may decide ----------------------------------------------------------------------

GRANTED = {"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
TAKEN_OVER = {
    "LD_PRELOAD": "/tmp/evil.so",
    "PYTHONPATH": "/tmp/evil",
    "PATH": "/tmp/evil:/usr/bin",
    "HOME": None,
    "GENV_JUPYTER_HOST_SOCKET": "/tmp/evil/broker.sock",
    caps.BEFORE: '{"LD_PRELOAD": ["/tmp/evil.so", null]}',
}


def test_a_living_process_takes_no_other_variables_of_a_broker_than_are_its_to_decide() -> None:
    before = dict(os.environ)
    live.apply_environ({**TAKEN_OVER, **GRANTED, caps.LIMIT: None})
    assert dict(os.environ) == before | GRANTED
    code = f"{live.expression({**TAKEN_OVER, **GRANTED, caps.LIMIT: None})}; import os; "
    code += "print(os.environ == before)"
    code = f"import os; before = dict(os.environ); before.update({GRANTED!r}); {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_a_kernel_is_started_with_no_other_variables_of_a_broker() -> None:
    env = {"PATH": "/usr/bin", "HOME": "/home/ann"}
    variables.put(env, variables.granted({**TAKEN_OVER, **GRANTED}), {})
    assert env == {"PATH": "/usr/bin", "HOME": "/home/ann", **GRANTED}


def test_each_name_that_a_broker_may_decide_is_one_that_it_needs() -> None:
    some = environ_of("e", ["GPU-1"], hide=True, pool=None, revision=1, programs="/p")
    assert set(some) == live.BROKERS


@pytest.fixture
def places() -> Iterator[Path]:
    """A directory that is this user's, in one of everybody's."""
    with tempfile.TemporaryDirectory(prefix="gj-live-") as name:
        Path(name, "bin").mkdir(mode=0o755)
        yield Path(name).resolve()


def programs_of(path: Path | str) -> str | None:
    return live.accepted({live.PROGRAMS: str(path)})[live.PROGRAMS]


def test_programs_are_taken_from_where_only_root_and_this_user_put_them(places: Path) -> None:
    directory = places / "bin"
    assert programs_of(directory) == str(directory)
    os.environ["PATH"], os.environ[live.PROGRAMS] = f"{directory}:/bin", str(directory)
    for mode in (0o775, 0o757, 0o1777):
        directory.chmod(mode)
        assert programs_of(directory) is None
    live.apply_environ({**GRANTED, live.PROGRAMS: str(directory)})
    assert (os.environ["PATH"], os.environ.get(live.PROGRAMS)) == ("/bin", None)
    directory.chmod(0o755)
    (places / "file").touch(0o755)
    (places / f"{os.pathsep}b").mkdir()
    for other in (
        places / "file",
        places / "none",
        places / f"{os.pathsep}b",
        "bin",
        "/bin\0x",
        "",
    ):
        assert programs_of(other) is None


@pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: files of others; making them needs root")
def test_programs_are_taken_from_nowhere_that_another_has_a_hand_in(places: Path) -> None:
    directory, link = places / "bin", places / "link"
    os.chown(directory, 65533, -1)
    assert programs_of(directory) is None, "it is another's"
    os.chown(directory, 0, -1)
    link.symlink_to(directory)
    assert programs_of(link) == str(link)
    os.chown(link, 65533, -1, follow_symlinks=False)
    assert programs_of(link) is None, "another can change where that leads to"
    os.chown(places, 65533, -1)
    assert programs_of(directory) is None, "another can put one in its place"
    os.chown(places, 0, -1)
    places.chmod(0o775)
    assert programs_of(directory) is None, "so can others of its group"
    places.chmod(0o755)
    assert programs_of(directory) == str(directory)


def test_digits_of_a_uuid() -> None:
    assert live.digits("MIG-5555ABCD-00-11") == "5555abcd0011"


def environ(revision: int, visible: str, environment: str = "e1") -> dict[str, str | None]:
    return {
        "GENV_JUPYTER_ENVIRONMENT": environment,
        "GENV_JUPYTER_REVISION": str(revision),
        "CUDA_VISIBLE_DEVICES": visible,
    }


def test_what_waited_in_a_queue_does_not_undo_what_came_after_it() -> None:
    live.apply_environ(environ(9, "GPU-2"))
    late = live.apply_environ(environ(8, "GPU-1"))
    assert (late["applied"], late["revision"], late["visible"]) == ("live", 9, "GPU-2")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-2"
    after = live.apply_environ(environ(10, "GPU-3"))
    assert (after["revision"], after["visible"]) == (10, "GPU-3")


def test_the_revision_of_another_environment_is_no_obstacle() -> None:
    live.apply_environ(environ(9, "GPU-2", "the one this was started from"))
    assert live.apply_environ(environ(3, "GPU-1"))["revision"] == 3
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"


@pytest.mark.parametrize("nonsense", ["", "x", "-1", "9" * 5000])
def test_a_revision_that_is_none_is_no_obstacle(nonsense: str) -> None:
    os.environ |= {"GENV_JUPYTER_ENVIRONMENT": "e1", "GENV_JUPYTER_REVISION": nonsense}
    assert live.apply_environ(environ(3, "GPU-1"))["visible"] == "GPU-1"


def test_a_mere_revision_is_live_where_cuda_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    live.apply_environ(environ(3, "GPU-1"))
    monkeypatch.setattr(live, "_seen_initialized", True)
    assert live.apply_environ(environ(4, "GPU-1"))["applied"] == "live"
    late = live.apply_environ(environ(5, "GPU-2"))
    assert (late["applied"], late["revision"], late["visible"]) == ("at_restart", 5, "GPU-1")
    assert os.environ["GENV_JUPYTER_REVISION"] == "4"
