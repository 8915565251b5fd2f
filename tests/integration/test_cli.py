"""`jupyter gpu`: small, real, and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.kernels import Kernel, Server, next_want


def jupyter_gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "genv_jupyter.cli", *arguments], capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    return done


def test_views_and_json(broker_home: Path, tmp_path: Path) -> None:
    assert "There is none" in jupyter_gpu("envs").stdout
    with Kernel(tmp_path) as kernel:
        assert kernel.run("%gpu attach 0.5 --name demo").ok
        devices = jupyter_gpu("devices").stdout
        assert "demo" in devices and "12 GiB, 50 % of compute" in devices and "SIMULATED" in devices
        assert "demo" in jupyter_gpu("envs").stdout
        (made,) = json.loads(jupyter_gpu("envs", "--json").stdout)
        assert made["name"] == "demo"
        assert "12 GiB" in jupyter_gpu("status", "-e", made["id"][:6]).stdout
        assert "Limits" in jupyter_gpu("doctor").stdout
        health = jupyter_gpu("health", "--json")
        assert (health.returncode, json.loads(health.stdout)["environments"]) == (0, 1)


def test_attach_and_release_reach_a_running_kernel(broker_home: Path, tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        kernel = server.kernel("llm")
        attached = jupyter_gpu("attach", "--memory", "4G", "--environment", "llm.ipynb")
        assert attached.returncode == 0
        assert "being applied" in attached.stdout
        want = next_want(server, "apply")
        assert want.kernel == kernel.id and want.environ is not None
        # This server of the tests applies nothing: the next look of the kernel itself does.
        assert "in force" in kernel.run("%gpu").text
        assert kernel.value("__import__('os').environ['CUDA_VISIBLE_DEVICES']").startswith("GPU-")
        assert jupyter_gpu("release", "-e", kernel.id).returncode == 0
        assert "has no GPU" in kernel.run("%gpu").text
        assert kernel.environment().state == "released"
        restarted = jupyter_gpu("attach", "1", "-e", kernel.id, "--restart")
        assert "takes effect at restart" in restarted.stdout
        assert next_want(server, "restart").kernel == kernel.id


@pytest.mark.parametrize(
    ("line", "code", "status"),
    [
        ("attach 1.5 -e x", "out_of_range", 2),
        ("attach 0.5 --gpus 1 -e x", "bad_request", 2),
        ("attach 0.5 -e 6d5d4f1e-0000-4000-8000-000000000001", "unknown_environment", 1),
        ("attach 0.5", "bad_request", 2),
        ("release -e ../../etc", "unknown_environment", 1),
        ("drain \udcff", "unknown_device", 1),
        ("drain 0 --reason=\udcff", "bad_request", 2),
        ("quota show \udcff", "unknown_user", 1),
    ],
)
def test_errors_are_one_line_or_json(broker_home: Path, line: str, code: str, status: int) -> None:
    said = jupyter_gpu(*line.split())
    assert said.returncode == status
    assert said.stderr.startswith("Error: ") and said.stderr.count("\n") == 1
    as_json = jupyter_gpu(*line.split(), "--json")
    assert as_json.returncode == status
    body = json.loads(as_json.stdout)
    assert body["code"] == code and body["hint"]


@pytest.mark.parametrize("arguments", [("drain", ""), ("broker", "--socket", "/")])
def test_names_of_nothing_are_refused_in_words(broker_home: Path, arguments: tuple[str]) -> None:
    said = jupyter_gpu(*arguments)
    assert said.returncode in (1, 2)
    assert said.stderr.startswith("Error: ") and "openapi" not in said.stderr


def test_health_tells_scripts_of_a_driver_in_trouble(
    broker_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GENV_JUPYTER_SIMULATE")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    health = jupyter_gpu("health")
    trouble = json.loads(jupyter_gpu("health", "--json").stdout)["driver"]
    assert health.returncode == (3 if trouble else 0)


def test_an_interrupt_before_anything_is_begun_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import time; print('begun', flush=True); time.sleep(600)")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "genv_jupyter.cli"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[1] == b""
    assert process.returncode == -signal.SIGINT
