"""The broker's configuration: read as written, every mistake told, and none of them fatal."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import pytest
from traitlets import Bool
from traitlets.config import Config, Configurable

from genv_jupyter.broker.config import (
    CLASSES,
    BrokerConfig,
    PolicySettings,
    generate,
)
from genv_jupyter.broker.mps_settings import MpsDaemons
from genv_jupyter.broker.traits import Seconds
from genv_jupyter.errors import Unavailable
from genv_jupyter.policy import Policy
from genv_jupyter.units import MAX_SECONDS

GIB = 2**30


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The strongest directory of Jupyter's configuration."""
    found = tmp_path / "etc"
    found.mkdir(mode=0o755)
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(found))
    return found


def write(directory: Path, *lines: str, name: str = "jupyter_genv_config.py") -> Path:
    path = directory / name
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o644)
    return path


def test_without_a_file_everything_is_the_default(directory: Path) -> None:
    made = BrokerConfig.user()
    assert made.policy() == Policy()
    assert made.problems == []


def test_every_number_of_the_policy_can_be_set() -> None:
    """A field of Policy that nobody could set would be a constant."""
    assert set(PolicySettings.class_own_traits(config=True)) == set(Policy.__struct_fields__)


def test_every_setting_says_what_it_means() -> None:
    for kind in CLASSES:
        for name, trait in kind.class_own_traits(config=True).items():
            assert len(trait.help) > 20, f"{kind.__name__}.{name} has no help"


def test_values_are_read_as_requests_are(directory: Path) -> None:
    write(
        directory,
        "c.PolicySettings.memory_headroom = '1GiB'",
        "c.PolicySettings.mps_minimum = '4G'",
        "c.PolicySettings.start_deadline = '2m'",
        "c.PolicySettings.confirm_seconds = 0",
        "c.PolicySettings.memory_overcommit = '125%'",
        "c.PolicySettings.compute_overcommit = 1.2",
        "c.PolicySettings.mps = 'never'",
    )
    made = BrokerConfig.user()
    assert made.problems == []
    assert made.policy() == Policy(
        memory_headroom=GIB,
        mps_minimum=4 * 10**9,
        start_deadline=120.0,
        confirm_seconds=0.0,
        memory_overcommit=12_500,
        compute_overcommit=12_000,
        mps="never",
    )
    decided = made.policy()
    assert all(
        type(value) is not float or name.endswith(("deadline", "seconds"))
        for name, value in ((n, getattr(decided, n)) for n in Policy.__struct_fields__)
    )


def test_a_program_s_file_comes_after_a_person_s(directory: Path) -> None:
    write(directory, "c.PolicySettings.mps = 'never'", "c.PolicySettings.desktop_share = '1%'")
    write(directory, '{"PolicySettings": {"mps": "always"}}', name="jupyter_genv_config.json")
    decided = BrokerConfig.user().policy()
    assert (decided.mps, decided.desktop_share) == ("always", 100)


def test_all_mistakes_are_told_at_once_and_the_rest_stands(directory: Path) -> None:
    write(
        directory,
        "c.PolicySettings.memory_headroom = '1GiB'",
        "c.PolicySettings.start_deadlin = 3",
        "c.PolicySettings.mps = 'sometimes'",
        "c.PolicySettings.memory_overcommit = 1.00001",
        "c.PolicySettings.desktop_memory = 'much'",
        "c.PolicySetting.mps = 'auto'",
    )
    made = BrokerConfig.user()
    assert made.policy() == Policy(memory_headroom=GIB)
    told = "\n".join(made.problems)
    assert len(made.problems) == 5
    assert "no setting start_deadlin (did you mean start_deadline?)" in told
    assert "'sometimes'" in told and "'auto', 'always', 'never'" in told
    assert "finer than a hundredth of a percent" in told
    assert "'much' is not an amount of memory" in told
    assert "nothing called PolicySetting to configure (did you mean PolicySettings?)" in told


NONSENSE = (
    *(None, True, -1, 10**400, float("nan"), float("inf"), Decimal("sNaN"), 1j, object()),
    *("", "nan", "1e999", "5 parsecs", "9" * 5000, "\ud800", "1h\0", b"x", [], {}, [object()]),
)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda it: it.__name__)
def test_no_nonsense_stops_a_broker(kind: type[Configurable]) -> None:
    for name in kind.class_own_traits(config=True):
        for value in NONSENSE:
            made = BrokerConfig(Config({kind.__name__: {name: value}}))
            made.policy()
            found, trait = getattr(made.of(kind), name), kind.class_traits()[name]
            assert not isinstance(trait, Seconds) or 0 <= found <= MAX_SECONDS, (name, value)
            assert found is not True or isinstance(trait, Bool), (name, value)


@pytest.mark.parametrize(
    "line", ["c.PolicySettings.mps = (", "raise SystemExit(3)", "1 / 0", "\0"], ids=repr
)
def test_a_file_that_cannot_be_run_leaves_the_others(directory: Path, line: str) -> None:
    write(directory, line)
    write(directory, '{"PolicySettings": {"mps": "never"}}', name="jupyter_genv_config.json")
    made = BrokerConfig.user()
    assert made.policy() == Policy(mps="never")
    assert len(made.problems) == 1 and "jupyter_genv_config.py cannot be read" in made.problems[0]


def test_a_host_daemon_does_not_start_over_mistakes(tmp_path: Path) -> None:
    path = write(tmp_path, "c.PolicySettings.mps = 'x'", "c.PolicySettings.desktop_share = -1")
    with pytest.raises(Unavailable) as caught:
        BrokerConfig.host(path)
    assert "mps" in caught.value.message and "desktop_share" in caught.value.message


def test_a_host_daemon_runs_no_file_that_others_may_write(tmp_path: Path) -> None:
    path = write(tmp_path, "c.PolicySettings.mps = 'never'")
    assert BrokerConfig.host(path).policy().mps == "never"
    path.chmod(0o666)
    with pytest.raises(Unavailable, match="may be written by others"):
        BrokerConfig.host(path)
    path.chmod(0o644)
    tmp_path.chmod(0o777)
    with pytest.raises(Unavailable, match="may be written by others"):
        BrokerConfig.host(path)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file away")
def test_a_host_daemon_runs_no_file_of_another_user(tmp_path: Path) -> None:
    path = write(tmp_path, "c.PolicySettings.mps = 'never'")
    os.chown(path, 12345, 12345)
    with pytest.raises(Unavailable, match="uid 12345"):
        BrokerConfig.host(path)


def test_a_host_daemon_says_so_when_its_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no configuration at"):
        BrokerConfig.host(tmp_path / "nowhere.py")
    assert BrokerConfig.host(tmp_path).policy() == Policy()  # an empty directory is no mistake


def test_the_generated_file_is_the_default_and_can_be_uncommented(directory: Path) -> None:
    text = generate()
    write(directory, text)
    assert BrokerConfig.user().problems == []
    uncommented = text.replace("\n# c.", "\nc.")
    assert uncommented.count("\nc.") == sum(
        len(kind.class_own_traits(config=True)) for kind in CLASSES
    )
    write(directory, uncommented)
    made = BrokerConfig.user()
    assert made.problems == []
    assert made.policy() == Policy()


EXCLUSIVE = "c.MpsDaemons.exclusive_mode = True"


def test_a_user_changes_no_compute_mode(directory: Path) -> None:
    write(directory, EXCLUSIVE)
    made = BrokerConfig.user()
    (said,) = made.problems
    assert said.startswith("MpsDaemons.exclusive_mode: a compute mode is everybody's")
    assert not made.of(MpsDaemons).exclusive_mode


def test_only_a_daemon_of_root_changes_compute_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, EXCLUSIVE)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(Unavailable, match="only root may change a compute mode"):
        BrokerConfig.host(path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert BrokerConfig.host(path).of(MpsDaemons).exclusive_mode
    both = write(tmp_path, EXCLUSIVE, "c.MpsDaemons.pipe_directory = '/tmp/nvidia-mps'")
    with pytest.raises(Unavailable, match="pipe_directory names another's"):
        BrokerConfig.host(both)
