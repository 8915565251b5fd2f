"""Telling frameworks of the memory limit where no variable does, as soon as they are imported.

Nothing here imports a framework or initialises CUDA: what must be said to an initialised framework
waits until it initialises itself, and is said at once only where it has. No error of ours breaks an
import or an initialisation; one line says that the limit is not kept.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from genv_jupyter.isolation import caps, live
from genv_jupyter.units import format_memory
from genv_jupyter_stub import say

_AT_RESTART = "{} keeps the limit that it started with until the kernel is restarted."


class Torch:
    """PyTorch: the fraction of its caching allocator, exact, since its own total is known here.

    The variable (PyTorch 2.10 and later) serves children. The smallest counts of the grant, of the
    variable that somebody else has set, and of what user code asks for.
    """

    def __init__(self) -> None:
        self._torch: Any = None
        self._real: Any = None
        self._variable = 1.0
        self._theirs: dict[int, float] = {}
        self._set: dict[int, float] = {}

    def __call__(self, torch: Any) -> list[str]:
        cuda = torch.cuda
        alive = cuda.is_initialized()
        if self._torch is None:
            self._torch, self._real = torch, cuda.set_per_process_memory_fraction
            cuda.set_per_process_memory_fraction = self._wrapped()
            cuda.memory.set_per_process_memory_fraction = cuda.set_per_process_memory_fraction
            if not alive:
                cuda._lazy_call(self._started)
        return self._keep() if alive else []

    def _started(self) -> None:
        """CUDA is being initialised by PyTorch: an error in here would end that."""
        with _loudly("PyTorch"):
            self._keep()

    def _wrapped(self) -> Callable[..., None]:
        @functools.wraps(self._real)
        def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
            self._real(fraction, device)
            self._asked(fraction, device)

        return set_per_process_memory_fraction

    def _asked(self, fraction: float, device: Any) -> None:
        """User code has asked for a fraction: the stricter wins."""
        with _loudly("PyTorch"):
            cuda = self._torch.cuda
            if device is None:
                index = cuda.current_device()
            else:
                index = cuda._utils._get_device_index(device, optional=True)
            self._theirs[index] = self._set[index] = float(fraction)
            if self._keep():
                say(
                    f"GPU: {fraction:.0%} of the device is more than is attached here: PyTorch "
                    f"keeps to {self._set[index]:.0%}. `%gpu attach` with more raises it."
                )

    def _keep(self) -> list[str]:
        cuda = self._torch.cuda
        sizes = caps.budgets(os.environ)
        if not self._set:
            self._variable = caps.torch_fraction(os.environ)
        told = []
        for index in range(cuda.device_count()):
            size = sizes[index] if index < len(sizes) else None
            goal = self._theirs.get(index, self._variable)
            total = cuda.get_device_properties(index).total_memory
            if size is not None:
                goal = min(goal, size / total)
            if goal == self._set.get(index, self._variable):
                continue
            self._real(goal, index)
            self._set[index] = goal
            most, held = int(goal * total), cuda.memory_reserved(index)
            line = f"PyTorch takes {format_memory(most)} at most from now on"
            more = f"; it holds {format_memory(held)} (%gpu empty-cache)" if held > most else ""
            told.append(f"{line}{more}.")
        return told


class TensorFlow:
    """TensorFlow: a logical device with a memory limit, made when its runtime starts.

    Not earlier: user code may still ask for memory growth, which it refuses for a logical device.
    """

    def __init__(self) -> None:
        self._context: Any = None
        self._kept: list[int | None] = []

    def __call__(self, tensorflow: Any) -> list[str]:
        context = sys.modules["tensorflow.python.eager.context"]
        if self._context is None:
            self._context = context
            self._wrap(context.Context)
        started = getattr(context, "_context", None)
        if started is None or not started._initialized or self._kept == _mebibytes():
            return []
        return [_AT_RESTART.format("TensorFlow")]

    def _wrap(self, kind: Any) -> None:
        real = kind.ensure_initialized

        @functools.wraps(real)
        def ensure_initialized(context: Any) -> Any:
            if not context._initialized:
                with _loudly("TensorFlow"):
                    self._limit(context)
            return real(context)

        kind.ensure_initialized = ensure_initialized

    def _limit(self, context: Any) -> None:
        new = self._context.LogicalDeviceConfiguration
        self._kept = _mebibytes()
        for gpu, limit in zip(context.list_physical_devices("GPU"), self._kept, strict=False):
            theirs = context.get_logical_device_configuration(gpu) or []
            asked = sum(part.memory_limit for part in theirs)
            if limit is None or (theirs and asked <= limit):
                continue
            parts = [new(memory_limit=limit)]
            if theirs:
                parts = [p._replace(memory_limit=p.memory_limit * limit // asked) for p in theirs]
            context.set_logical_device_configuration(gpu, parts)


def _mebibytes() -> list[int | None]:
    return [None if size is None else size >> 20 for size in caps.budgets(os.environ)]


class CuPy:
    """CuPy reads its variable when a pool is first used; a pool that lives is told."""

    def __init__(self) -> None:
        self._set = 0

    def __call__(self, cupy: Any) -> list[str]:
        text = os.environ.get(caps.CUPY, "")
        wanted = int(text) if text.isdigit() else 0
        before, self._set = self._set, wanted
        if before == wanted or live.cuda_state() != "initialized":
            return []
        if len(caps.budgets(os.environ)) > 1:
            return [_AT_RESTART.format("CuPy")]  # each device has a pool, made when it is used
        pool = cupy.get_default_memory_pool()
        if pool.get_limit() != before:
            return []  # user code has set its own
        pool.set_limit(size=wanted)
        return [f"CuPy takes {format_memory(wanted)} at most from now on."] if wanted else []


class Rmm:
    """RMM: a limit on the resource of each device; nothing is allocated for it.

    A resource that user code sets later replaces it.
    """

    def __init__(self) -> None:
        self._ours: dict[int, Any] = {}

    def __call__(self, rmm: Any) -> list[str]:
        told = []
        sizes = caps.budgets(os.environ)
        for index in self._ours.keys() | range(len(sizes)):
            size = sizes[index] if index < len(sizes) else None
            now, ours = rmm.mr.get_per_device_resource(index), self._ours.get(index)
            if ours is not None and now is ours:
                if ours.get_allocation_limit() == size:
                    continue
                if ours.get_allocated_bytes():
                    told.append(_AT_RESTART.format("RMM"))
                    continue
                now = ours.get_upstream()
            elif type(now) is not rmm.mr.CudaMemoryResource:
                continue  # user code has chosen one
            if size is not None:
                now = self._ours[index] = rmm.mr.LimitingResourceAdaptor(now, size)
            else:
                self._ours.pop(index, None)
            rmm.mr.set_per_device_resource(index, now)
        return told


class Jax:
    """JAX reads its variable when it first looks for devices; this only says when that was."""

    def __init__(self) -> None:
        self._seen: tuple[str | None, ...] | None = None

    def __call__(self, jax: Any) -> list[str]:
        names = (caps.JAX, caps.OLD_JAX)
        before, self._seen = self._seen, tuple(os.environ.get(name) for name in names)
        bridge = sys.modules.get("jax._src.xla_bridge")
        if before == self._seen or "cuda" not in getattr(bridge, "_backends", ()):
            return []
        return [_AT_RESTART.format("JAX")]


class Vllm:
    """vLLM takes a share of the *whole* device, told as an argument: a hint is all there is."""

    def __init__(self) -> None:
        self._told = ""

    def __call__(self, vllm: Any) -> list[str]:
        share = caps.fraction(os.environ)
        if share is None or share == self._told:
            return []
        self._told = share
        say(
            "GPU: vLLM takes most of the whole device by default, and fails where less is "
            f"attached: say LLM(..., gpu_memory_utilization={int(float(share) * 100) / 100:.2f})."
        )
        return []


_HOOKS: dict[str, tuple[str, Callable[[Any], list[str]]]] = {
    "torch": ("PyTorch", Torch()),
    "tensorflow": ("TensorFlow", TensorFlow()),
    "jax": ("JAX", Jax()),
    "cupy": ("CuPy", CuPy()),
    "rmm": ("RMM", Rmm()),
    "vllm": ("vLLM", Vllm()),
}


def follow() -> list[str]:
    """Have the frameworks of this process keep to the limit that its variables name now.

    Returns
    -------
    list of str
        What changed, or could not, in those that hold memory already; one sentence each.
    """
    caps.settle(os.environ, caps.installed())
    return [line for name in _HOOKS for line in _tell(name, sys.modules.get(name))]


def _tell(name: str, module: ModuleType | None, *, importing: bool = False) -> list[str]:
    if module is None:
        return []
    if not importing and getattr(getattr(module, "__spec__", None), "_initializing", False):
        return []  # half there, in another thread; its hook comes behind its import
    label, hook = _HOOKS[name]
    try:
        return hook(module)
    except Exception as error:
        _complain(label, error)
        return []


@contextlib.contextmanager
def _loudly(framework: str) -> Iterator[None]:
    """Whatever goes wrong in here, the user's import or call goes on, and a line says so."""
    try:
        yield
    except Exception as error:
        _complain(framework, error)


def _complain(framework: str, error: Exception) -> None:
    say(
        f"GPU: {framework} could not be told of the memory that is attached here, and may take "
        f"more: {type(error).__name__}: {error}"
    )


class _Loader:
    """Stands before a framework's loader for one import, then steps aside."""

    def __init__(self, name: str, spec: Any) -> None:
        self._name, self._spec, self._loader = name, spec, spec.loader

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._spec.loader = module.__loader__ = self._loader
        with _loudly(self._name):  # a cell may have changed the variables since
            caps.settle(os.environ, caps.installed())
        self._loader.exec_module(module)
        for line in _tell(self._name, module, importing=True):
            say(f"GPU: {line}")


def hooked(name: str, spec: Any) -> Any:
    """Return a framework's spec with our hook behind its import."""
    if name in _HOOKS and hasattr(spec.loader, "exec_module"):
        spec.loader = _Loader(name, spec)
    return spec
