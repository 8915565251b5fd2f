"""The libraries are compiled once, or it is said why they cannot be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakedriver import (
    CannotBuild,
    build,
    building,
)


def test_builders_at_the_same_time_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        done = set(pool.map(build, [tmp_path] * 2))
    assert list(tmp_path.iterdir()) == list(done)
    assert sorted(path.name for path in done.pop().iterdir()) == sorted(building.LIBRARIES)


def test_missing_compiler_or_header_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotBuild, match="gcc"):
        build(tmp_path / "cache")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotBuild, match="pip install nvidia-cuda-runtime"):
        build(tmp_path / "cache")
