"""Which errors mean that a GPU's memory is full, or that MPS failed: told by type and text alone.

Nothing is imported for it, least of all a framework: a type is known by the name of its module and
its own. What a table of ``SIGNS`` does not know stays unexplained: a sentence too few is better
than one under an error of another kind. Further kinds of trouble are further signs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

Cause = Literal["memory", "mps"]

_LONGEST = 20_000
_DEEPEST = 64


class Sign(NamedTuple):
    """How one framework says it.

    Attributes
    ----------
    framework
        Who says so.
    types
        What the whole name of the error's type matches, or of a type it is derived from.
    text
        What is found in its text.
    certain
        False where the same words are said of the host's memory: believed only in a process that
        has initialised CUDA.
    """

    framework: str
    types: str
    text: str = ""
    certain: bool = True
    cause: Cause = "memory"


class Failure(NamedTuple):
    """An error that was recognised; ``asked`` is how many bytes were wanted, where it says so."""

    framework: str
    cause: Cause
    asked: int | None
    certain: bool
    error: BaseException


# The text of some error, quoted by whoever passes it on from a thread or another process.
_QUOTED = r"^(?:[\w.]+(?:Error|Exception): )?"
_NAMES = (
    r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CU(?:BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED"
)
_CUDA = "|".join(
    (
        rf"{_QUOTED}(?:CUDA|HIP) out of memory",
        rf"{_QUOTED}(?i:CUDA|HIP) (?:runtime |driver )?error(?: ?\(2\) ?)?: out of memory",
        r"Triton Error \[CUDA\]: out of memory",
        r"Cuda failure (?:2 )?'out of memory'",
        r"cudaMalloc error out of memory",
        r"CUDA failure 2: out of memory",
        _NAMES,
    )
)

_MPS_NAMES = r"CUDA_ERROR_MPS_[A-Z_]+|cudaErrorMps[A-Z]\w+"
_MPS = "|".join(
    (
        r"CUDA.{0,40} error(?: ?\(?8(?:0[5-9]|10)\)?)?: (?:the )?MPS (?:client|server) ",
        r"\b[Ee]rror 8(?:0[5-9]|10): (?:the )?MPS (?:client|server) ",
        r"MPS client failed to connect to the MPS control daemon",
    )
)
"""Not ``MPS`` alone: Apple's framework of that name is another thing."""

SIGNS: tuple[Sign, ...] = (
    Sign("PyTorch", r"torch\.(?:cuda\.|_C\.)?OutOfMemoryError", r"^(?!XPU|MPS)"),
    Sign("PyTorch", r"(?:torch|triton)\..*", _CUDA),
    Sign("CuPy", r"cupy\.cuda\.memory\.OutOfMemoryError"),
    Sign("CuPy", r"(?:cupy|cupyx|cupy_backends)\..*", rf"{_NAMES}|CUFFT_ALLOC_FAILED"),
    Sign(
        "JAX",
        r"(?:jaxlib|jax)\..*(?:XlaRuntimeError|JaxRuntimeError)",
        rf"RESOURCE_EXHAUSTED: .*[Oo]ut of memory|{_NAMES}",
        certain=False,
    ),
    Sign(
        "TensorFlow",
        r"tensorflow\..*ResourceExhaustedError",
        # "OOM when allocating tensor … on …/device:CPU:0 by allocator cpu" is the host's memory.
        r"OOM when allocating(?![^\n]*device:CPU)|failed to allocate memory|GPU_\d+_bfc"
        r"|Out of memory (?:while trying to allocate|allocating)",
        certain=False,
    ),
    Sign(
        "TensorFlow",
        r"tensorflow\..*InternalError",
        rf"Dst tensor is not initialized|{_NAMES}",
        certain=False,
    ),
    Sign("Numba", r"numba(?:_cuda)?\..*CudaAPIError", r"CUDA_ERROR_OUT_OF_MEMORY"),
    Sign(
        "RMM",
        r"builtins\.MemoryError|(?:rmm|cudf|cuml|pylibcudf)\..*",
        r"std::bad_alloc: (?:out_of_memory|CUDA error|RMM failure)|cudaErrorMemoryAllocation",
    ),
    Sign("PyCUDA", r"pycuda\._driver\.MemoryError"),
    Sign("ONNX Runtime", r"onnxruntime\..*", rf"CUDA failure 2\b|{_NAMES}"),
    Sign(
        "ONNX Runtime",
        r"onnxruntime\..*",
        r"Failed to allocate memory for requested buffer|Available memory of \d+ is smaller",
        certain=False,
    ),
    Sign("XGBoost", r"xgboost\..*XGBoostError", r"cudaErrorMemoryAllocation"),
    Sign("LightGBM", r"lightgbm\..*LightGBMError", r"\[CUDA\] out of memory"),
    Sign("OpenCV", r"cv2\.error", r"Gpu API call\) out of memory"),
    Sign("CUDA", r"cuda\.(?:core|bindings)\..*", _NAMES),
    # Of whoever has only CUDA's result in the hand: code of the user, and small libraries.
    Sign("CUDA", r"builtins\.RuntimeError", _CUDA),
    Sign("CUDA", r"builtins\.Exception", rf"(?:CUresult|cudaError_t)\.(?:{_NAMES})"),
    Sign("PyTorch", r"(?:torch|triton)\..*", rf"{_MPS}|{_MPS_NAMES}", cause="mps"),
    Sign("CUDA", r"builtins\.RuntimeError", _MPS, cause="mps"),
    Sign("CUDA", r".*", _MPS_NAMES, cause="mps"),
)

_ASKED = re.compile(
    r"(?:tried to allocate|trying to allocate|failed to allocate|out of memory allocating)"
    r"(?: request for)? (\d[\d,]*(?:\.\d+)?) ?(bytes|[KMGT]i?B)?",
    re.IGNORECASE,
)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def find(error: BaseException) -> Failure | None:
    """Return what ran out of memory, or failed in MPS, in an error or in what it came from.

    Pure but for ``str()`` of the errors. The outermost that is known is returned.
    """
    for each in chain(error):
        text = _text(each)
        for sign in SIGNS:
            if _fits(sign, each, text):
                return Failure(sign.framework, sign.cause, _asked(text), sign.certain, each)
        for argument in _arguments(each):
            if (cause := _says_so(argument)) is not None:
                return Failure("CUDA", cause, None, True, each)
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the members of a group, and what each came from; each once."""
    todo, seen = [error], set[int]()
    while todo and len(seen) < _DEEPEST:
        each = todo.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            todo.extend(each.exceptions)
        if each.__cause__ is not None:
            todo.append(each.__cause__)
        elif each.__context__ is not None and not each.__suppress_context__:
            todo.append(each.__context__)


def _fits(sign: Sign, error: BaseException, text: str) -> bool:
    own, *bases = type(error).__mro__
    # Half of all errors are derived from RuntimeError: that one counts only as itself.
    kinds = [own, *(kind for kind in bases if kind.__module__ != "builtins")]
    if not any(re.fullmatch(sign.types, f"{it.__module__}.{it.__qualname__}") for it in kinds):
        return False
    return re.search(sign.text, text, re.MULTILINE) is not None


def _says_so(argument: Any) -> Cause | None:
    """Return what a result of CUDA itself means that was raised: ``CUresult``, ``cudaError_t``."""
    parts: Sequence[Any] = argument if isinstance(argument, tuple) else (argument,)
    for part in parts:
        kind = type(part)
        if kind.__name__ in ("CUresult", "cudaError_t") and kind.__module__.startswith("cuda."):
            name = str(getattr(part, "name", ""))
            if name in _NAMES.split("|"):
                return "memory"
            return "mps" if re.fullmatch(_MPS_NAMES, name) else None
    return None


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST]
    except Exception:  # somebody's own __str__: an error without a text is no reason to fail
        return ""


def _arguments(error: BaseException) -> tuple[Any, ...]:
    try:
        return tuple(error.args)
    except Exception:  # somebody's own property: nothing is said under errors of another kind
        return ()


def _asked(text: str) -> int | None:
    found = _ASKED.search(text)
    if found is None:
        return None
    unit = (found[2] or "").lower()
    amount = float(found[1].replace(",", "")) * _UNITS["" if unit == "bytes" else unit[:1]]
    return int(amount) if 0 < amount < 2**60 else None


def watch(shell: Any) -> Callable[[], None]:
    """Look at every error of an IPython from now on; return what ends that."""

    def after_cell(result: Any = None) -> None:
        error = getattr(result, "error_in_exec", None)
        if error is not None:
            explain(shell, error)

    shell.events.register("post_run_cell", after_cell)
    return lambda: shell.events.unregister("post_run_cell", after_cell)


def explain(shell: Any, error: BaseException) -> None:
    """Show a block under the traceback, if this is about a GPU's memory or MPS; never raises.

    Called after every cell that failed, so it costs next to nothing where it is not.
    """
    try:
        failure = find(error)
        if failure is None:
            return
        if failure.cause == "mps":
            from genv_jupyter.kernel import mps_errors

            mps_errors.show(shell, failure)
            return
        from genv_jupyter.isolation import live

        if failure.certain or live.cuda_state() == "initialized":
            from genv_jupyter.kernel import oom

            oom.show(shell, failure)
    except Exception as trouble:  # the user's own error is what matters: it stays the last word
        print(f"GPU: no more can be said of this error ({trouble!r}).", file=sys.stderr)
