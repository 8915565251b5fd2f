"""Compile the two libraries, once for each state of their sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
CACHE = Path(__file__).parent / "_build"

_SHARED = ("json.c", "scenario.c", "state.c")
LIBRARIES = {
    "libcuda.so.1": (*_SHARED, "visible.c", "cuda.c", "entry.c", "context.c", "mps.c"),
    "libnvidia-ml.so.1": (
        *_SHARED,
        *("nvml.c", "nvml_count.c", "nvml_usage.c", "nvml_smi.c", "nvml_events.c", "nvml_absent.c"),
    ),
}
_FLAGS = (
    *("-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-Wno-format-truncation"),
)


class CannotBuild(Exception):
    """The compiler or NVIDIA's headers are missing, or the sources do not compile."""


def build(cache_dir: Path = CACHE) -> Path:
    """Return a directory with both libraries, compiling them if these sources never were.

    Parameters
    ----------
    cache_dir
        Where builds are kept, one directory for each state of sources, headers and flags. Any
        number of processes may build at once.

    Raises
    ------
    CannotBuild
        With the sentence that says what is missing, or the compiler's words.
    """
    includes = _include_dirs()
    done = cache_dir / _fingerprint(includes)
    if done.is_dir():
        return done
    compiler = shutil.which("gcc")
    if compiler is None:
        raise CannotBuild("The fake driver needs gcc: apt-get install gcc libc6-dev")
    cache_dir.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="tmp-", dir=cache_dir))
    try:
        for name, sources in LIBRARIES.items():
            _compile(compiler, fresh / name, sources, includes)
        try:
            fresh.rename(done)
        except OSError:  # another process was first, with the same result
            if not done.is_dir():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return done


def _include_dirs() -> tuple[Path, ...]:
    spec = importlib.util.find_spec("nvidia")  # a namespace package that several wheels fill
    roots = [] if spec is None else [Path(root) for root in spec.submodule_search_locations or ()]
    found = []
    for header, wheel in (("cuda.h", "nvidia-cuda-runtime"), ("nvml.h", "nvidia-nvml-dev")):
        places = sorted(place for root in roots for place in root.glob(f"*/include/{header}"))
        if not places:
            raise CannotBuild(f"The fake driver needs {header}: pip install {wheel}")
        found.append(places[-1].parent)
    return tuple(dict.fromkeys(found))


def _fingerprint(includes: tuple[Path, ...]) -> str:
    digest = hashlib.sha256(repr((_FLAGS, LIBRARIES, os.uname().machine)).encode())
    headers = [path for include in includes for path in include.glob("*.h") if _ours(path)]
    for path in [*sorted(SOURCES.iterdir()), *sorted(headers)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _ours(header: Path) -> bool:
    return header.name in ("cuda.h", "nvml.h")


def _compile(
    compiler: str, target: Path, sources: tuple[str, ...], includes: tuple[Path, ...]
) -> None:
    command = [compiler, *_FLAGS, f"-Wl,-soname,{target.name}", "-o", str(target)]
    command += [str(SOURCES / name) for name in sources]
    for include in includes:
        command += ["-isystem", str(include)]
    result = subprocess.run([*command, "-ldl"], capture_output=True, text=True, check=False)
    if result.returncode:
        raise CannotBuild(f"{target.name} does not compile:\n{result.stderr}")
