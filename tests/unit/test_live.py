"""What runs inside a living process: it probes, sets, and leaves nothing behind."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import types

import pytest

from genv_jupyter.isolation import live

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
    live.apply_environ({"CUDA_VISIBLE_DEVICES": "GPU-1", CHECK: own})
    live.apply_environ({"CUDA_VISIBLE_DEVICES": ""})
    assert os.environ[CHECK] == (own or "1")


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
