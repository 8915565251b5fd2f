"""Which errors are of a GPU's memory, and which only look so: by type and text, through chains."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from genv_jupyter.kernel.memory_errors import find

GIB = 2**30


def kind(name: str, base: type[BaseException] = Exception, /, **members: Any) -> Any:
    """Make an error type with the whole name of a framework's."""
    module, _, short = name.rpartition(".")
    return type(short, (base,), {"__module__": module, **members})


def brief(value: Any) -> str:
    """Name a test by a value, without an address in it: every run has the same names."""
    said = f"{type(value).__name__}-{value}" if isinstance(value, BaseException) else str(value)
    return re.sub(r" object at 0x\w+", "", said)[:50]


def enum(name: str, member: str) -> Any:
    return kind(name, object, name=member)()  # type: ignore[arg-type]


TORCH = kind("torch.OutOfMemoryError", RuntimeError)
OLD_TORCH = kind("torch.cuda.OutOfMemoryError", RuntimeError)
ACCELERATOR = kind("torch.AcceleratorError", RuntimeError)
CUPY = kind("cupy.cuda.memory.OutOfMemoryError", MemoryError)
EXHAUSTED = kind("tensorflow.python.framework.errors_impl.ResourceExhaustedError")
INTERNAL = kind("tensorflow.python.framework.errors_impl.InternalError")
XLA = kind("jaxlib.xla_extension.XlaRuntimeError", RuntimeError)
JAX = kind("jaxlib._jax.JaxRuntimeError", RuntimeError)
NUMBA = kind("numba.cuda.cudadrv.driver.CudaAPIError")
RAY = type("RayTaskError(OutOfMemoryError)", (TORCH,), {"__module__": "ray.exceptions"})

MEANT: list[tuple[str, int | None, BaseException]] = [
    (
        "PyTorch",
        20 * GIB,
        TORCH(
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 23.64 "
            "GiB of which 11.81 MiB is free. Including non-PyTorch memory, this process has 23.6 "
            "GiB memory in use."
        ),
    ),
    ("PyTorch", 20 * 2**20, OLD_TORCH("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; …")),
    ("PyTorch", None, TORCH("Caught OutOfMemoryError in replica 0 on device 0.\nOriginal …")),
    ("PyTorch", None, RAY("ray::train() (pid=1)\ntorch.OutOfMemoryError: CUDA out of memory.")),
    (
        "PyTorch",
        None,
        ACCELERATOR(
            "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the documentation"
        ),
    ),
    ("CUDA", 2 * GIB, RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8 GiB")),
    ("CUDA", None, RuntimeError("CUDA error: out of memory")),
    ("CUDA", None, RuntimeError("CUDA driver error: out of memory")),
    ("CUDA", None, RuntimeError("cuda runtime error (2) : out of memory at /pytorch/aten/src/THC")),
    ("CUDA", None, RuntimeError("HIP out of memory. Tried to allocate a lot")),
    (
        "CUDA",
        None,
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ),
    ("CUDA", None, RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")),
    ("CUDA", None, RuntimeError("Triton Error [CUDA]: out of memory")),
    ("CUDA", None, RuntimeError("parallel_for failed: cudaErrorMemoryAllocation: out of memory")),
    (
        "CUDA",
        2 * GIB,
        RuntimeError(
            "Caught RuntimeError in pin memory thread for device 0.\nTraceback …\n"
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
        ),
    ),
    (
        "PyTorch",
        None,
        kind("torch.distributed.DistBackendError", RuntimeError)(
            "NCCL error …\nLast error:\nCuda failure 2 'out of memory'"
        ),
    ),
    (
        "CuPy",
        8_000_000_000,
        CUPY("Out of memory allocating 8,000,000,000 bytes (allocated so far: 1,024 bytes)."),
    ),
    (
        "CuPy",
        None,
        kind("cupy_backends.cuda.api.runtime.CUDARuntimeError", RuntimeError)(
            "cudaErrorMemoryAllocation: out of memory"
        ),
    ),
    (
        "CuPy",
        None,
        kind("cupy_backends.cuda.libs.cublas.CUBLASError", RuntimeError)(
            "CUBLAS_STATUS_ALLOC_FAILED"
        ),
    ),
    (
        "TensorFlow",
        None,
        EXHAUSTED(
            "OOM when allocating tensor with shape[64,2016,9,9] and type float on "
            "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n"
            '\t [[Node: x = _Recv[recv_device="/device:CPU:0"]]]'
        ),
    ),
    ("TensorFlow", None, EXHAUSTED("{{function_node …}} failed to allocate memory [Op:AddV2]")),
    (
        "TensorFlow",
        None,
        INTERNAL(
            "Failed copying input tensor from CPU:0 to GPU:0 in order to run AddV2: Dst tensor is "
            "not initialized."
        ),
    ),
    (
        "JAX",
        4770354232,
        XLA("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.\nBuf …"),
    ),
    (
        "JAX",
        int(74.5 * GIB),
        JAX("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 74.50GiB."),
    ),
    ("JAX", None, XLA("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory")),
    (
        "RMM",
        None,
        MemoryError(
            "std::bad_alloc: CUDA error at: /include/rmm/mr/device/cuda_memory_resource.hpp:68: "
            "cudaErrorMemoryAllocation out of memory"
        ),
    ),
    (
        "RMM",
        80,
        MemoryError(
            "std::bad_alloc: out_of_memory: CUDA error (failed to allocate 80 bytes) at: …"
        ),
    ),
    (
        "RMM",
        None,
        MemoryError("std::bad_alloc: RMM failure at: pool.hpp:179: Maximum pool size exceeded"),
    ),
    ("Numba", None, NUMBA("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY")),
    (
        "PyCUDA",
        None,
        kind("pycuda._driver.MemoryError", MemoryError)("cuMemAlloc failed: out of memory"),
    ),
    (
        "XGBoost",
        None,
        kind("xgboost.core.XGBoostError", ValueError)(
            "[12:00:00] bulk_allocator.cu:30: Memory allocation error on worker 0: "
            "std::bad_alloc: cudaErrorMemoryAllocation: out of memory"
        ),
    ),
    (
        "ONNX Runtime",
        None,
        kind("onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException", RuntimeError)(
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : CUDA failure 2: out of memory ; GPU=0"
        ),
    ),
    (
        "OpenCV",
        None,
        kind("cv2.error")("OpenCV(4.9) (-217:Gpu API call) out of memory in function"),
    ),
    (
        "CUDA",
        None,
        kind("cuda.core._utils.cuda_utils.CUDAError")("CUDA_ERROR_OUT_OF_MEMORY: The API call …"),
    ),
    ("CUDA", None, RuntimeError("CUDA error code=2(b'CUDA_ERROR_OUT_OF_MEMORY')")),
    ("CUDA", None, Exception("it failed: CUresult.CUDA_ERROR_OUT_OF_MEMORY")),
    (
        "CUDA",
        None,
        Exception(enum("cuda.bindings.driver.CUresult", "CUDA_ERROR_OUT_OF_MEMORY")),
    ),
    (
        "CUDA",
        None,
        AssertionError((enum("cuda.bindings.runtime.cudaError_t", "cudaErrorMemoryAllocation"),)),
    ),
]

OTHERS: list[BaseException] = [
    MemoryError(),
    MemoryError("Unable to allocate 1.00 TiB for an array with shape (1, 2) and type float64"),
    kind("numpy._core._exceptions._ArrayMemoryError", MemoryError)("Unable to allocate 1.00 TiB"),
    MemoryError("std::bad_alloc"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("No CUDA GPUs are available"),
    RuntimeError("I have read about the words CUDA out of memory"),
    RuntimeError("out of memory"),
    RuntimeError(""),
    ValueError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    AssertionError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    AssertionError("assert 'CUDA_ERROR_OUT_OF_MEMORY' == 'CUDA_SUCCESS'"),
    KeyError("CUDA error: out of memory"),
    Exception("CUDA out of memory"),
    NotImplementedError("CUDA out of memory"),  # derived from RuntimeError
    kind("__main__.OutOfMemoryError")("CUDA out of memory"),
    kind("builtins.OutOfMemoryError", RuntimeError)("mine"),
    kind("mytorch.OutOfMemoryError", RuntimeError)("CUDA out of memory"),
    TORCH("XPU out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 1.00 GB)"),
    EXHAUSTED(
        "OOM when allocating tensor with shape[1,416,416,3] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu"
    ),
    EXHAUSTED("/data/train.tfrecord; No space left on device"),
    INTERNAL("Blas GEMM launch failed"),
    XLA("INVALID_ARGUMENT: Out of memory is not the trouble here"),
    NUMBA("[700] Call to cuMemcpyHtoD results in CUDA_ERROR_ILLEGAL_ADDRESS"),
    kind("triton.runtime.errors.OutOfResources")("out of resource: shared memory, Required: 98304"),
    Exception(enum("cuda.bindings.driver.CUresult", "CUDA_ERROR_ILLEGAL_ADDRESS")),
    Exception(enum("mine.CUresult", "CUDA_ERROR_OUT_OF_MEMORY")),
    OSError(12, "Cannot allocate memory"),
    OSError(28, "No space left on device"),
    SystemExit("CUDA out of memory"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize(("framework", "asked", "error"), MEANT, ids=brief)
def test_errors_of_gpu_memory_are_known(
    framework: str, asked: int | None, error: BaseException
) -> None:
    failure = find(error)
    assert failure is not None
    assert (failure.framework, failure.cause, failure.asked) == (framework, "memory", asked)
    assert failure.error is error


@pytest.mark.parametrize("error", OTHERS, ids=brief)
def test_other_errors_are_left_alone(error: BaseException) -> None:
    assert find(error) is None


def raised(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


OOM = TORCH("CUDA out of memory. Tried to allocate 1.00 GiB")


def caused() -> None:
    raise KeyError("batch") from OOM


def during() -> None:
    try:
        raise OOM
    except RuntimeError:
        raise KeyError("in the handler") from OOM.__cause__


def hidden() -> None:
    try:
        raise OOM
    except RuntimeError:
        raise KeyError("a fallback that is missing") from None


def in_context() -> None:
    try:
        raise OOM
    except RuntimeError:
        {}["missing"]


def grouped() -> None:
    raise ExceptionGroup("workers", [ValueError("1"), ExceptionGroup("more", [KeyError(), OOM])])


@pytest.mark.parametrize("act", [caused, in_context, grouped])
def test_what_an_error_came_from_counts(act: Callable[[], None]) -> None:
    failure = find(raised(act))
    assert failure is not None and failure.error is OOM


def test_what_is_not_shown_does_not_count() -> None:
    assert find(raised(hidden)) is None
    assert find(raised(during)) is None, "`from None` by another name"


def test_a_chain_without_an_end_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert find(first) is None
    first = ValueError("0")
    last: BaseException = first
    for number in range(1000):
        last.__cause__ = ValueError(str(number))
        last = last.__cause__
    last.__cause__ = OOM
    assert find(first) is None, "too far away to be the reason"


def test_errors_that_cannot_be_read_are_left_alone() -> None:
    def fail(self: object) -> str:
        raise RuntimeError("no text")

    assert find(kind("torch.cuda.Odd", RuntimeError, __str__=fail)("x")) is None
    assert find(RuntimeError("x" * 10**7)) is None


@pytest.mark.parametrize(("error", "certain"), [(OOM, True), (XLA(MEANT[23][2].args[0]), False)])
def test_words_that_are_also_of_the_host_are_not_certain(
    error: BaseException, certain: bool
) -> None:
    failure = find(error)
    assert failure is not None and failure.certain is certain


def test_odd_arguments_and_amounts_are_no_trouble() -> None:
    class Odd(RuntimeError):
        @property
        def args(self) -> tuple[object, ...]:  # type: ignore[override]
            raise ZeroDivisionError

    assert find(Odd()) is None
    failure = find(RuntimeError("CUDA out of memory. Tried to allocate ,,, GiB"))
    assert failure is not None and failure.asked is None
