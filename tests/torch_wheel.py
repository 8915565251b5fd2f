"""PyPI's PyTorch for CUDA, without the 2 GB of NVIDIA's libraries that its import asks for.

The wheel is the real one, and so is CUDA's runtime (``nvidia-cuda-runtime``). What else the dynamic
linker wants (cuBLAS, cuDNN, NCCL ...) computes, which no test of ours does: hollow libraries with
the same names and symbols stand in for it, and abort when one is called.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.wheels import run, unpacked

_NVIDIA = re.compile(r"lib(cu|nv|nccl).*\.so\.\d+")
_REAL = re.compile(r"lib(cuda|cudart|nvidia-ml)\.so\.\d+")
_SYMBOL = re.compile(
    r"(cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvshmem|cuFile|nvrtc|nvJitLink|cupti)\w+"
    r"|_Z\w*nvshmem\w*"
)


def torch_environ(*libraries: Path) -> dict[str, str]:
    """Return the variables with which this interpreter finds PyTorch.

    Fetching it takes 550 MB once, and it has 1.2 GB on disk.

    Parameters
    ----------
    libraries
        Directories that the dynamic linker searches before ours: a driver.
    """
    folder = unpacked("torch", "torch>=2.6,<3", _hollow_out)
    paths = [*libraries, folder / "hollow", _cuda_runtime(folder)]
    return {"PYTHONPATH": str(folder), "LD_LIBRARY_PATH": ":".join(map(str, paths))}


def _hollow_out(folder: Path) -> None:
    libraries = [*(folder / "torch" / "lib").glob("*.so")]
    asked = {name for library in libraries for name in _needed(library)}
    symbols = {name for library in libraries for name in _undefined(library)}
    hollow = folder / "hollow"
    hollow.mkdir()
    source = hollow / "hollow.c"
    calls = "".join(f"void {name}(void) {{ abort(); }}\n" for name in sorted(symbols))
    source.write_text(f"#include <stdlib.h>\n{calls}")
    for name in sorted(asked):
        if _NVIDIA.fullmatch(name) and not _REAL.fullmatch(name):
            flags = ["-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
            run(["gcc", *flags, "-o", str(hollow / name), str(source)])


def _needed(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run(["readelf", "-d", str(library)]))


def _undefined(library: Path) -> list[str]:
    lines = run(["nm", "-D", "--undefined-only", str(library)]).split("\n")
    names = (line.split()[-1].partition("@")[0] for line in lines if line)
    return [name for name in names if _SYMBOL.fullmatch(name)]


def _cuda_runtime(folder: Path) -> Path:
    """Return the directory of NVIDIA's own CUDA runtime, of the version that this PyTorch wants."""
    library = folder / "torch" / "lib" / "libc10_cuda.so"
    if not library.exists():
        pytest.skip("NOT TESTED with PyTorch: the wheel for this machine is not one for CUDA")
    (wanted,) = (name for name in _needed(library) if "cudart" in name)
    spec = importlib.util.find_spec("nvidia")
    for root in (spec and spec.submodule_search_locations) or ():
        for found in Path(root).glob(f"*/lib/{wanted}"):
            return found.parent
    return pytest.skip(f"NOT TESTED with PyTorch: it wants {wanted}, and another is installed")
