"""The probe against a CUDA driver: it tells the truth, and never initialises anything."""

from __future__ import annotations

from tests.fakedriver.fixtures import MakeDriver, fake_driver
from tests.fakedriver.remote import Remote

__all__ = ["fake_driver"]

IMPORT = "from genv_jupyter.isolation import live"
LOADED = "any('libcuda.so' in line for line in open('/proc/self/maps'))"
NO_DEVICE, NOT_INITIALIZED = 100, 3


def test_probe_neither_loads_nor_initialises(fake_driver: MakeDriver) -> None:
    with Remote(fake_driver()) as process:
        process(IMPORT)
        assert process("live.cuda_state()") == "not_initialized"
        process("done = live.apply_environ({'CUDA_VISIBLE_DEVICES': None})")
        assert process(LOADED) is False
        assert process("cuda.cuDeviceGetCount()")[0] == NOT_INITIALIZED, "loaded by this"
        assert process(LOADED) is True
        assert process("live.cuda_state()") == "not_initialized"
        assert process("cuda.cuDeviceGetCount()")[0] == NOT_INITIALIZED


def test_probe_sees_an_initialised_driver_without_any_context(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver) as process:
        process(IMPORT)
        process("cuda.cuInit(0)")
        assert driver.contexts() == []
        assert process("live.cuda_state()") == "initialized"
        assert process("in_fork(live.cuda_state)") == "initialized", (
            "the driver itself says 3 there"
        )
        process("done = live.apply_environ({'CUDA_VISIBLE_DEVICES': ''})")
        assert process("done['applied']") == "at_restart"


def test_initialisation_that_failed_while_hidden_is_named(fake_driver: MakeDriver) -> None:
    driver = fake_driver()
    with Remote(driver, CUDA_VISIBLE_DEVICES="") as process:
        process(IMPORT)
        assert process("cuda.cuInit(0)")[0] == NO_DEVICE
        assert process("live.cuda_state()") == "not_initialized"
        uuid = driver.uuids[1]
        process(f"done = live.apply_environ({{'CUDA_VISIBLE_DEVICES': {uuid!r}}})")
        assert process("done['applied']") == "live"
        assert process("done['stubborn']") == ["CUDA"]


def test_expression_of_the_server_sees_it_too(fake_driver: MakeDriver) -> None:
    from genv_jupyter.isolation import live

    with Remote(fake_driver()) as process:
        assert process(live.expression(None)) == '{"cuda": "not_initialized"}'
        process("cuda.cuInit(0)")
        assert process(live.expression(None)) == '{"cuda": "initialized"}'
