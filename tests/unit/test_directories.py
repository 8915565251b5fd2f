"""Where the broker keeps its files: whose they are, and who else is kept out."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from genv_jupyter.broker import directories
from genv_jupyter.errors import Unavailable


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_that_is_made_is_ours_alone(tmp_path: Path) -> None:
    assert mode_of(directories.private(tmp_path / "gpu")) == 0o700


def test_the_mode_of_a_directory_that_is_there_is_left_alone(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    shown.chmod(0o755)
    assert mode_of(directories.private(shown)) == 0o755


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_where_others_may_write_nothing_is_kept(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(Unavailable, match="Others may write") as refusal:
        directories.private(shared)
    assert refusal.value.hint
    assert mode_of(shared) == mode


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(Unavailable, match="not a directory of yours"):
        directories.private(tmp_path / "link")


def test_a_directory_that_others_could_replace_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    mine = directories.private(shared / "course" / "mine")
    monkeypatch.setenv("GENV_JUPYTER_HOME", str(mine))
    for group, mode in ((os.getgid(), 0o777), (100, 0o775)):
        if group != os.getgid() and os.getuid() != 0:
            continue  # only root gives files to any group
        os.chown(shared, -1, group)
        shared.chmod(mode)
        with pytest.raises(Unavailable, match="another directory in the place of") as refusal:
            directories.live_directory("")
        assert f"chmod +t {shared}" in refusal.value.hint
    shared.chmod(0o1777)
    assert directories.live_directory("").parent == mine
    (tmp_path / "link").symlink_to(shared / "course")
    monkeypatch.setenv("GENV_JUPYTER_HOME", str(tmp_path / "link" / "mine"))
    assert directories.live_directory("").parent == mine, "the link may be laid anew"


@pytest.mark.skipif(os.getuid() != 0, reason="knows that root's group has root alone")
def test_a_group_that_is_the_users_alone_may_write_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a umask of 002 has it, where each user has a group."""
    mine = directories.private(tmp_path / "work" / "mine")
    (tmp_path / "work").chmod(0o775)
    monkeypatch.setenv("GENV_JUPYTER_HOME", str(mine))
    assert directories.live_directory("").parent == mine


@pytest.mark.skipif(os.getuid() != 0, reason="makes a directory of another user: needs root")
def test_a_directory_in_somebody_elses_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = directories.private(tmp_path / "theirs" / "mine")
    os.chown(tmp_path / "theirs", 4711, 4711)
    monkeypatch.setenv("GENV_JUPYTER_HOME", str(mine))
    with pytest.raises(Unavailable, match="uid 4711"):
        directories.live_directory("")


def test_each_set_of_simulated_devices_has_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENV_JUPYTER_HOME", str(directories.private(tmp_path / "gpu")))
    kinds = ("", "2x24GiB", "1x80GiB")
    assert len({directories.live_directory(kind) for kind in kinds}) == len(kinds)
    assert directories.records_path("") != directories.records_path("2x24GiB")


def test_a_broker_that_is_leaving_is_waited_for(tmp_path: Path) -> None:
    leaving = directories.lock(tmp_path)
    timer = threading.Timer(0.1, os.close, (leaving,))
    timer.start()
    os.close(directories.lock(tmp_path, seconds=60))
    timer.join()


def test_a_directory_that_another_broker_keeps_is_refused(tmp_path: Path) -> None:
    held = directories.lock(tmp_path)
    try:
        with pytest.raises(Unavailable, match="Another GPU broker"):
            directories.lock(tmp_path, seconds=0)
    finally:
        os.close(held)


def test_the_socket_of_a_dead_broker_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    path = directories.private(tmp_path / "gpu") / "broker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    directories.claim_socket(path)
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        with pytest.raises(BlockingIOError):
            directories.claim_socket(path)
        assert path.exists()


def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.tex"
    precious.write_text("\\maketitle")
    with pytest.raises(Unavailable, match="is no socket"):
        directories.claim_socket(precious)
    assert precious.read_text()
