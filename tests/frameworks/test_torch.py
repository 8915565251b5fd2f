"""PyTorch's real wheel for CUDA: its parser takes our text, its lazy initialisation our fraction.

NVIDIA's CUDA runtime does not start on a fake driver, so behind PyTorch's own Python code four
functions of its C library are replaced where a test initialises it.
"""

from __future__ import annotations

import pytest

from tests.frameworks.conftest import Start

pytestmark = pytest.mark.timeout(600)  # the first of them fetches the wheel

TOTAL = 24 * 2**30
IMPORT = """
import warnings
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import torch
"""
PRETEND = """
calls, held = [], 0
class Properties:
    total_memory = 24 * 2**30
torch._C._cuda_init = lambda: None
torch._C._cuda_setMemoryFraction = lambda part, index: calls.append((round(part, 3), index))
torch.cuda.device_count, torch.cuda.current_device = lambda: 1, lambda: 0
torch.cuda.get_device_properties = lambda index: Properties
torch.cuda.memory_reserved = lambda index: held
queued = torch.cuda._queued_calls  # PyTorch's own ask the device what it can do
queued[:] = [call for call in queued if "torch" not in call[0].__module__]
"""
SETTINGS = "torch._C._accelerator_getAllocatorSettings()"


def part(kernel) -> float:
    """Compute the fraction of the kernel's grant."""
    return kernel.value("caps.budget(os.environ)") / TOTAL


def test_its_parser_takes_the_variable_and_nothing_is_initialised(start_torch: Start) -> None:
    kernel = start_torch(PYTORCH_ALLOC_CONF="max_split_size_mb:128")
    assert kernel.run("%gpu attach 0.5").ok
    expected = f"max_split_size_mb:128,per_process_memory_fraction:{int(part(kernel) * 1e4) / 1e4}"
    ran = kernel.run(IMPORT)
    assert ran.ok and ran.stderr == "", ran.stderr
    assert kernel.value(SETTINGS) == expected
    assert kernel.value("torch.cuda.is_initialized(), untouched()") == (False, True)
    look = f"import torch; print({SETTINGS})"
    assert kernel.value(f"child({look!r})") == expected, "children of this Python keep to it too"
    refused = kernel.run("torch._C._accelerator_setAllocatorSettings('no_such_key:1')")
    assert "Unrecognized key" in refused.error, "its parser does look"


def test_lazy_initialisation_sets_what_is_attached_by_then(start_torch: Start) -> None:
    kernel = start_torch()
    assert kernel.run("%gpu attach 0.5").ok
    assert kernel.run(IMPORT + PRETEND).ok
    assert kernel.run("%gpu attach 0.25").ok, "after the import, before the initialisation"
    assert kernel.value("calls, torch.cuda.is_initialized()") == ([], False)
    assert kernel.run("torch.cuda.init()").ok
    assert kernel.value("calls") == [(round(part(kernel), 3), 0)]


def test_imported_before_the_attach(start_torch: Start) -> None:
    kernel = start_torch()
    assert kernel.run(IMPORT + PRETEND).ok
    assert kernel.run("%gpu attach 0.5").ok
    assert kernel.run("torch.cuda.init()").ok
    assert kernel.value("calls") == [(round(part(kernel), 3), 0)]


def test_user_code_may_be_stricter_and_not_laxer(start_torch: Start) -> None:
    kernel = start_torch()
    assert kernel.run("%gpu attach 0.5").ok
    assert kernel.run(IMPORT + PRETEND).ok
    laxer = kernel.run("torch.cuda.set_per_process_memory_fraction(0.9)")
    assert "90% of the device is more than is attached here" in laxer.stderr
    ours = (round(part(kernel), 3), 0)
    assert kernel.value("calls") == [ours, (0.9, 0), ours]
    stricter = kernel.run("torch.cuda.memory.set_per_process_memory_fraction(0.1, 'cuda:0')")
    assert (stricter.ok, stricter.stderr) == (True, "")
    assert kernel.value("calls[-1]") == (0.1, 0)
    wrong = kernel.run("torch.cuda.set_per_process_memory_fraction(2.0)")
    assert "Invalid fraction value" in wrong.error
    assert kernel.run("%gpu attach 0.75").ok
    assert kernel.value("calls[-1]") == (0.1, 0), "more room is no reason to undo the user's own"


def test_users_stricter_variable_stays(start_torch: Start) -> None:
    kernel = start_torch(PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.1")
    assert kernel.run("%gpu attach 0.5").ok
    assert kernel.run(IMPORT + PRETEND).ok
    assert kernel.value(SETTINGS) == "per_process_memory_fraction:0.1"
    assert kernel.run("torch.cuda.init()").ok
    assert kernel.value("calls") == [], "its own parser has set it"


def test_another_limit_reaches_a_living_allocator_and_is_said(start_torch: Start) -> None:
    kernel = start_torch()
    assert kernel.run("%gpu attach 0.5").ok
    assert kernel.run(IMPORT + PRETEND + "torch.cuda.init(); held = 11 * 2**30").ok
    less = " ".join(kernel.run("%gpu attach 0.25").text.split())
    assert "PyTorch takes 5.4 GiB at most from now on; it holds 11 GiB" in less
    assert kernel.value("calls[-1]") == (round(part(kernel), 3), 0)
    more = " ".join(kernel.run("%gpu attach 0.75").text.split())
    assert "PyTorch takes 17.1 GiB at most from now on." in more
    assert "PyTorch takes 24 GiB" in " ".join(kernel.run("%gpu attach 1").text.split())
    assert kernel.value("calls[-1]") == (1.0, 0)
    assert kernel.value("[n for n in os.environ if 'ALLOC_CONF' in n]") == []
