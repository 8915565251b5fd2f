"""The real wheels of JAX, TensorFlow, CuPy and RMM, and a stand-in for vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.conftest import Start
from tests.frameworks.wheels import REQUIREMENTS

pytestmark = pytest.mark.timeout(600)  # the first of them fetches the wheels

MIB = 2**20


def test_documentation_names_the_versions_that_are_tried() -> None:
    table = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    for requirement in REQUIREMENTS:
        version = requirement.partition("==")[2]
        assert f"| {version} |" in table, requirement


def test_jax_takes_the_fraction_and_still_finds_its_devices(start: Start) -> None:
    kernel = start(XLA_PYTHON_CLIENT_MEM_FRACTION="0.9", XLA_CLIENT_MEM_FRACTION="0.8")
    kernel.run("from jaxlib import xla_client")
    both = kernel.run("xla_client.generate_pjrt_gpu_plugin_options()")
    assert "ValueError" in "".join(both.traceback), "what the user had set is refused by JAX"
    assert kernel.run("%gpu attach 0.5").ok
    options = kernel.value("xla_client.generate_pjrt_gpu_plugin_options()")
    exact = kernel.value("caps.budget(os.environ)") / (24 * 2**30)
    assert options["memory_fraction"] == pytest.approx(exact, abs=1e-4)
    assert options["memory_fraction"] <= exact
    assert options["preallocate"] is False
    assert kernel.value("[n for n in os.environ if 'MEM_FRACTION' in n]") == [
        "XLA_CLIENT_MEM_FRACTION"
    ]
    assert kernel.value("__import__('jax').devices()[0].platform") == "cpu"
    assert kernel.value("untouched()")
    assert kernel.run("%gpu release").ok
    assert kernel.value("[os.environ[n] for n in sorted(os.environ) if 'MEM_FRACTION' in n]") == [
        "0.8",
        "0.9",
    ], "it is the user's own again"


GPU = """
import tensorflow as tf
from tensorflow.python.eager import context
gpu = tf.config.PhysicalDevice(name="/physical_device:GPU:0", device_type="GPU")
there = context.context()
there._initialize_physical_devices()
there._physical_devices.append(gpu)
there._visible_device_list.append(gpu)
there._memory_growth_map[gpu] = None
def given():
    options = there.config.gpu_options
    return [list(v.memory_limit_mb) for v in options.experimental.virtual_devices]
"""


def test_tensorflow_starts_with_a_logical_device_although_growth_was_asked_for(
    start: Start,
) -> None:
    kernel = start(TF_CPP_MIN_LOG_LEVEL="3")
    assert kernel.run("%gpu attach 0.5").ok
    ran = kernel.run(GPU)
    assert ran.ok, ran
    assert "could not be told" not in ran.stderr
    assert kernel.value("there._initialized, untouched()") == (False, True)
    grown = kernel.run("tf.config.experimental.set_memory_growth(gpu, True)")
    assert grown.ok, "what most notebooks do first works as without us"
    assert kernel.value("given()") == []
    assert kernel.run("%gpu attach 0.25").ok, "the last one before its runtime starts counts"
    assert kernel.value("int(tf.constant(1) + 1)") == 2
    limit = kernel.value("caps.budget(os.environ)") // MIB
    assert kernel.value("given()") == [[limit]]
    assert kernel.value("os.environ['TF_FORCE_GPU_ALLOW_GROWTH']") == "true"
    later = " ".join(kernel.run("%gpu attach 0.5").text.split())
    assert "TensorFlow keeps the limit that it started with" in later


@pytest.mark.parametrize(("asked", "stays"), [((1000, 500), True), ((9000, 9000), False)])
def test_tensorflows_own_logical_devices_stay_if_they_are_stricter(
    start: Start, asked: tuple[int, int], stays: bool
) -> None:
    kernel = start(TF_CPP_MIN_LOG_LEVEL="3")
    assert kernel.run("%gpu attach 0.5").ok
    assert kernel.run(GPU).ok
    kernel.run(
        "new = tf.config.LogicalDeviceConfiguration\n"
        f"tf.config.set_logical_device_configuration(gpu, [new(memory_limit=m) for m in {asked}])"
    )
    assert kernel.value("int(tf.constant(1) + 1)") == 2
    (given,) = kernel.value("given()")
    limit = kernel.value("caps.budget(os.environ)") // MIB
    assert sum(given) <= limit
    assert (tuple(given) == asked) is stays
    assert len(given) == 2


def test_cupy_takes_the_bytes(start: Start) -> None:
    kernel = start()
    assert kernel.run("%gpu attach 0.5").ok
    ran = kernel.run("import cupy; from cupy.cuda.memory import _parse_limit_string as parsed")
    assert (ran.ok, ran.stderr) == (True, ""), ran
    expected = kernel.value("caps.budget(os.environ)")
    assert kernel.value("parsed()['size']") == expected, "it reads the variable when it is asked"
    assert (
        kernel.value(
            "child('from cupy.cuda import memory as m; print(m._parse_limit_string())')"
        ).count(str(expected))
        == 1
    )
    assert kernel.value("untouched()")


def test_rmm_is_limited_before_cuda_starts_and_follows(start: Start) -> None:
    kernel = start()
    assert kernel.run("%gpu attach 0.5").ok
    ran = kernel.run("import rmm; now = rmm.mr.get_per_device_resource")
    assert (ran.ok, ran.stderr) == (True, ""), ran
    limit = "now(0).get_allocation_limit() == caps.budget(os.environ)"
    assert kernel.value(limit)
    assert kernel.run("%gpu attach 0.25").ok
    assert kernel.value(limit)
    assert kernel.value("untouched()")
    assert kernel.run("%gpu release").ok
    assert kernel.value("type(now(0)).__name__") == "CudaMemoryResource"
    mine = "mine = rmm.mr.TrackingResourceAdaptor(rmm.mr.CudaMemoryResource())"
    assert kernel.run(f"{mine}; rmm.mr.set_per_device_resource(0, mine)").ok
    assert kernel.run("%gpu attach 0.5").ok
    assert kernel.value("now(0) is mine"), "what user code has chosen stays"


def test_vllm_is_given_a_hint(start: Start, tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("ready = True\n")
    kernel = start(PYTHONPATH=str(tmp_path))
    assert kernel.run("%gpu attach 0.5").ok
    assert "gpu_memory_utilization=0.4" in kernel.run("import vllm; assert vllm.ready").stderr
    assert kernel.run("import importlib; importlib.reload(vllm)").stderr == "", "said once"
