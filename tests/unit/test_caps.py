"""A grant's memory in the variables of frameworks: merged, the stricter wins, and taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genv_jupyter.isolation import caps
from genv_jupyter.isolation.caps import settle
from genv_jupyter.isolation.environ import Cap, environ_of

GIB = 2**30
NEW = {"torch": (2, 10, 0), "jaxlib": (0, 4, 33)}
OLD = {"torch": (2, 9, 1), "jaxlib": (0, 4, 31)}
HALF = {caps.LIMIT: str(12 * GIB), caps.TOTAL: str(24 * GIB)}
FRACTION = "0.4791"  # (12 GiB - 512 MiB) / 24 GiB, rounded down
TORCH, OLD_TORCH = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
JAX, OLD_JAX = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
CUPY = "CUPY_GPU_MEMORY_LIMIT"
KEY = "per_process_memory_fraction"


def settled(versions: Any = NEW, **theirs: str) -> dict[str, str]:
    env = {**HALF, **theirs}
    settle(env, versions)
    return env


def test_every_framework_is_told() -> None:
    env = settled()
    assert env[TORCH] == f"{KEY}:{FRACTION}"
    assert env[JAX] == FRACTION
    assert env["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert env["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert env[CUPY] == str(12 * GIB - 512 * 2**20)
    assert OLD_TORCH not in env and OLD_JAX not in env


def test_old_versions_are_told_what_they_understand() -> None:
    env = settled(OLD)
    assert TORCH not in env and OLD_TORCH not in env, "2.9 would not start with the key"
    assert env[OLD_JAX] == FRACTION and JAX not in env


def test_what_is_not_installed_gets_no_variable_that_depends_on_its_version() -> None:
    env = settled({})
    assert not {TORCH, OLD_TORCH, JAX, OLD_JAX} & env.keys()
    assert CUPY in env


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ("expandable_segments:True", f"expandable_segments:True,{KEY}:{FRACTION}"),
        (f"{KEY}:0.9,max_split_size_mb:128", f"max_split_size_mb:128,{KEY}:{FRACTION}"),
        (f" {KEY} : 0.2 ,max_split_size_mb:128", f" {KEY} : 0.2 ,max_split_size_mb:128"),
        (
            "roundup_power2_divisions:[256:1,512:2,>:8],backend:native",
            f"roundup_power2_divisions:[256:1,512:2,>:8],backend:native,{KEY}:{FRACTION}",
        ),
        (f"{KEY}:nonsense", f"{KEY}:{FRACTION}"),
        ("", f"{KEY}:{FRACTION}"),
    ],
)
@pytest.mark.parametrize("name", [TORCH, OLD_TORCH])
def test_pytorchs_other_keys_stay(name: str, theirs: str, expected: str) -> None:
    env = settled(**{name: theirs})
    assert env[name] == expected
    assert ({TORCH, OLD_TORCH} - {name}).isdisjoint(env), "PyTorch reads one of them only"


def test_pytorchs_old_name_is_the_one_it_reads_first() -> None:
    env = settled(**{TORCH: f"{KEY}:0.9", OLD_TORCH: "max_split_size_mb:128"})
    assert env[TORCH] == f"{KEY}:0.9"
    assert env[OLD_TORCH] == f"max_split_size_mb:128,{KEY}:{FRACTION}"


@pytest.mark.parametrize(
    ("versions", "theirs", "expected"),
    [
        (NEW, {JAX: "0.2"}, {JAX: "0.2"}),
        (NEW, {JAX: "3.2"}, {JAX: FRACTION}),
        (NEW, {OLD_JAX: "0.2"}, {OLD_JAX: "0.2"}),
        (NEW, {OLD_JAX: ".9"}, {OLD_JAX: FRACTION}),
        (NEW, {JAX: "0.9", OLD_JAX: "0.2"}, {JAX: "0.2"}),
        (OLD, {JAX: "0.2"}, {OLD_JAX: "0.2"}),
        (OLD, {OLD_JAX: "0.2"}, {OLD_JAX: "0.2"}),
        (NEW, {JAX: "0.75+"}, {JAX: FRACTION}),
    ],
)
def test_jax_gets_one_of_its_two_names(
    versions: Any, theirs: dict[str, str], expected: dict[str, str]
) -> None:
    env = settled(versions, **theirs)
    assert {name: env[name] for name in (JAX, OLD_JAX) if name in env} == expected
    env.pop(caps.LIMIT)
    settle(env, versions)
    assert {name: env[name] for name in (JAX, OLD_JAX) if name in env} == theirs


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [("1000000", True), ("10%", True), ("90%", False), ("0", False), (str(20 * GIB), False)],
)
def test_cupys_own_limit_stays_if_it_is_stricter(theirs: str, kept: bool) -> None:
    assert (settled(**{CUPY: theirs})[CUPY] == theirs) is kept


def test_several_devices_share_the_smallest() -> None:
    env = {caps.LIMIT: f"{12 * GIB},{4 * GIB}", caps.TOTAL: f"{24 * GIB},{80 * GIB}"}
    settle(env, NEW)
    assert env[CUPY] == str(4 * GIB - 512 * 2**20)
    assert env[JAX] == "0.0437"  # 3.5 of 80
    assert caps.budgets(env) == [12 * GIB - 512 * 2**20, 4 * GIB - 512 * 2**20]


def test_device_that_does_not_tell_its_total_still_limits_bytes() -> None:
    env = {caps.LIMIT: str(4 * GIB), caps.TOTAL: ""}
    settle(env, NEW)
    assert env[CUPY] == str(4 * GIB - 512 * 2**20)
    assert JAX not in env and TORCH not in env


def test_small_limit_leaves_something() -> None:
    assert caps.budget({caps.LIMIT: str(600 * 2**20)}) == 300 * 2**20
    assert caps.fraction({caps.LIMIT: "1000", caps.TOTAL: str(24 * GIB)}) == "0.0001"


def test_another_limit_replaces_ours_and_none_brings_back_what_was_there() -> None:
    env = settled(**{TORCH: "expandable_segments:True", CUPY: "90%"})
    env[caps.LIMIT] = str(6 * GIB)
    settle(env, NEW)
    assert env[JAX] == "0.2291"
    assert env[TORCH] == f"expandable_segments:True,{KEY}:0.2291"
    del env[caps.LIMIT], env[caps.TOTAL]
    settle(env, NEW)
    assert env == {TORCH: "expandable_segments:True", CUPY: "90%"}


def test_what_a_cell_sets_afterwards_is_not_taken_back() -> None:
    env = settled()
    env[OLD_TORCH] = "max_split_size_mb:64"
    env[CUPY] = "1000"
    settle(env, NEW)
    assert env[OLD_TORCH] == f"max_split_size_mb:64,{KEY}:{FRACTION}", "it would hide our own"
    assert TORCH not in env
    caps.restore(env)
    assert (env[OLD_TORCH], env[CUPY]) == ("max_split_size_mb:64", "1000")


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"CUPY_GPU_MEMORY_LIMIT": 1}', "null"])
def test_memory_of_ours_that_was_tampered_with_does_no_harm(text: str) -> None:
    env = {caps.BEFORE: text, CUPY: "5"}
    settle(env, NEW)
    assert env == {CUPY: "5"}


NAMES = [TORCH, OLD_TORCH, JAX, OLD_JAX, CUPY, "XLA_PYTHON_CLIENT_PREALLOCATE"]
NAMES += ["TF_FORCE_GPU_ALLOW_GROWTH"]
VALUES = st.sampled_from(
    ["", "0.1", "0.9", "10%", "true", "false", f"{KEY}:0.1", "a:[1,2],b:c", "1e400", "nan", "-1"]
)


@given(
    theirs=st.dictionaries(st.sampled_from(NAMES), VALUES),
    versions=st.sampled_from([NEW, OLD, {}]),
    limits=st.lists(st.one_of(st.just(""), st.integers(1, 2**40).map(str)), max_size=3),
)
def test_whatever_is_there_comes_back(
    theirs: dict[str, str], versions: Any, limits: list[str]
) -> None:
    env = {**theirs, caps.LIMIT: ",".join(limits), caps.TOTAL: ",".join(["80000000000"] * 3)}
    settle(env, versions)
    once = dict(env)
    settle(env, versions)
    assert env == once, "settling twice is settling once"
    if any(limits) and versions:
        assert (JAX in env) + (OLD_JAX in env) == 1
    caps.restore(env)
    assert {name: value for name, value in env.items() if name in NAMES} == theirs


def test_versions_are_read_from_what_is_installed_and_nothing_is_imported(tmp_path: Path) -> None:
    def place(name: str, *entries: str) -> str:
        for entry in ("torch", "jaxlib", *entries):
            (tmp_path / name / entry).mkdir(parents=True)
        return str(tmp_path / name)

    first = place("first", "torch-2.10.0+cu128.dist-info", "jaxlib-0.10.2.dist-info")
    assert caps.installed([first]) == {"torch": (2, 10, 0), "jaxlib": (0, 10, 2)}
    early = place("early", "torch-2.10.0a0+5228986c39.nv25.dist-info", "torchaudio-9.9.dist-info")
    assert caps.installed([early]) == {"torch": (2, 10, -1)}
    assert caps.installed([early, first])["torch"] == (2, 10, -1), "as the import would find it"
    debian = place("debian", "torch-1.13.1.egg-info", "jaxlib-0.4-py3.11.egg-info")
    assert caps.installed([debian]) == {"torch": (1, 13, 1), "jaxlib": (0, 4, 0)}
    assert caps.installed([str(tmp_path / "missing"), str(tmp_path), ""]) == {}


def test_environment_names_the_limits_of_its_devices_in_their_order() -> None:
    parts = {"GPU-a": Cap(5, 50), "GPU-b": Cap(6, None)}
    env = environ_of("e", ["GPU-b", "GPU-a"], hide=True, pool=None, revision=1, caps=parts)
    assert (env[caps.LIMIT], env[caps.TOTAL]) == ("6,5", ",50")
    whole = environ_of("e", ["GPU-b"], hide=True, pool=None, revision=1)
    assert whole[caps.LIMIT] is None and whole[caps.TOTAL] is None
    assert environ_of("e", [], hide=True, pool=None, revision=1, caps=parts)[caps.LIMIT] is None


def test_memory_of_ours_is_one_variable_of_json() -> None:
    assert json.loads(settled(**{CUPY: "90%"})[caps.BEFORE])[CUPY] == ["90%", str(12348030976)]
