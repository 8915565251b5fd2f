"""`genv.toml`: found, trusted, understood, written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from genv_jupyter.errors import BadRequest
from genv_jupyter.kernel import project
from genv_jupyter.kernel.project import Project, filled, find, read, save
from genv_jupyter.model import Request


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory under a home of its own."""
    directory = tmp_path / "home" / "project" / "notebooks"
    directory.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(directory)
    return directory


def write(directory: Path, text: str, mode: int = 0o644) -> Path:
    path = directory / "genv.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def asked(notes: list[str] | None = None) -> Request | None:
    found = find(notes)
    return None if found is None else found.request


def test_nearest_file_counts(here: Path) -> None:
    assert asked() is None
    write(here.parent.parent, 'memory = "1G"')
    assert asked() == Request(memory="1G")
    write(here.parent, "fraction = 0.5\nprocesses = 2")
    assert asked() == Request(fraction=0.5, processes=2)
    write(here, 'gpus = 2\nname = "llm"\nduration = "2h30m"')
    assert asked() == Request(gpus=2, name="llm", duration="2h30m")


def test_search_ends_at_home_and_at_the_top_of_a_repository(here: Path) -> None:
    write(here.parents[2], "gpus = 1")
    assert asked() is None, "above the home directory"
    write(here.parents[1], "gpus = 1")
    assert asked() is not None
    (here.parent / ".git").mkdir()
    assert asked() is None, "above the repository"
    write(here.parent, "gpus = 2")
    assert asked() == Request(gpus=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu = 1", "unknown key, 'gpu'"),
        ("[gpus]\nx = 1", "gpus is a number of whole GPUs"),
        ("gpus = true", "gpus is a number of whole GPUs such as 1, not 'True'"),
        ("gpus = 1.5", "gpus is"),
        ("fraction = '0.5'", "fraction is a part of one GPU"),
        ("fraction = 1.2", "fraction is"),
        ("memory = '4 apples'", "memory is a size"),
        ("processes = 49", "processes is a whole number from 1 to 48"),
        ("duration = 'soon'", "duration is a time"),
        ("name = 3", "name is a text"),
        ("mps = true", 'mps is "auto", "on" or "off"'),
        (f"name = '{'x' * 300}'", "name is a text"),
        ("gpus = 1\ngpus = 2", "is not TOML"),
        ("gpus", "is not TOML"),
        ("gpus = 0.5\nfraction = 0.5", "Two fractions"),
        ("devices = ['0']", "unknown key, 'devices'"),
        pytest.param(f"a = {'[' * 4000}{']' * 4000}", "says what no request does", id="brackets"),
        pytest.param(f"gpus = {'9' * 5000}", "says what no request does", id="digits"),
    ],
)
def test_what_is_wrong_is_named(here: Path, text: str, said: str) -> None:
    path = write(here, text)
    with pytest.raises(BadRequest) as refused:
        find()
    assert said in refused.value.message and str(path) in refused.value.message
    assert refused.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="makes a file of another user: needs root")
def test_a_byte_order_mark_is_no_text(here: Path) -> None:
    write(here, "\ufeffgpus = 2\r\n")
    assert asked() == Request(gpus=2)
    save(Request(fraction=0.5), find())
    assert asked() == Request(fraction=0.5)


def test_file_of_another_user_does_not_matter(here: Path) -> None:
    write(here.parent, "fraction = 0.5")
    path = write(here, "nonsense")
    os.chown(path, 4711, 4711)
    notes: list[str] = []
    assert asked(notes) == Request(fraction=0.5)
    assert notes == [f"{path} is not read: it belongs to uid 4711."]
    mine = here / "mine.toml"
    path.rename(mine)
    os.chown(mine, 0, 0)
    path.symlink_to(mine)
    os.chown(path, 4711, 4711, follow_symlinks=False)
    assert asked() == Request(fraction=0.5), "a link that somebody else laid to a file of ours"


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_file_that_others_may_write_does_not_matter(here: Path, mode: int) -> None:
    path = write(here, "nonsense", mode)
    notes: list[str] = []
    assert asked(notes) is None
    assert "others may write it" in notes[0]
    path.chmod(0o644)
    with pytest.raises(BadRequest):
        find()


@pytest.mark.skipif(os.getuid() != 0, reason="makes a file of another group: needs root")
def test_group_counts_unless_it_is_the_users_own(here: Path) -> None:
    path = write(here, "gpus = 1", 0o664)
    assert asked() == Request(gpus=1), "root's group has root alone"
    os.chown(path, -1, 100)
    assert asked() is None


def test_no_file_no_text_and_a_pipe_are_passed_over(here: Path) -> None:
    notes: list[str] = []
    os.mkfifo(here / "genv.toml", 0o600)
    assert asked(notes) is None and "no regular file" in notes[0]
    (here / "genv.toml").unlink()
    (here / "genv.toml").write_bytes(b"\xff")
    assert asked(notes) is None and "UTF-8" in notes[1]
    (here / "genv.toml").write_text("#" * 70_000)
    assert asked(notes) is None and "too large" in notes[2]
    (here / "genv.toml").unlink()
    (here / "genv.toml").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert asked(notes) is None and "no regular file" in notes[3]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.skipif(os.getuid() != 0, reason="plays another user: needs root")
def test_directory_that_is_closed_to_us_is_passed_over(tmp_path: Path) -> None:
    closed, opened = tmp_path / "closed", tmp_path / "closed" / "opened"
    opened.mkdir(parents=True)
    closed.chmod(0o700)
    code = (
        "import os, sys\n"
        "from genv_jupyter.kernel import project\n"
        "os.chdir(sys.argv[1])\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "notes = []\n"
        "print(project.find(notes), notes[0])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(opened)], capture_output=True, text=True, check=False
    )
    assert ran.stdout.startswith(f"None {opened}/genv.toml is not read: "), ran.stderr


def test_command_line_comes_first_then_the_file_then_the_default(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert filled(Request(), None) == Request(gpus=1)
    monkeypatch.setenv("GENV_JUPYTER_DEFAULT_REQUEST", "4G")
    assert filled(Request(), None) == Request(memory="4G")
    found = Project(here, Request(fraction=0.5, name="llm", processes=2))
    assert filled(Request(), found) == found.request
    assert filled(Request(memory="2G", name="x"), found) == Request(
        memory="2G", name="x", processes=2
    )
    assert filled(Request(devices=("0",)), found).fraction is None
    assert filled(Request(), Project(here, Request(name="llm"))) == Request(memory="4G", name="llm")


def test_saving_keeps_what_else_is_there(here: Path) -> None:
    assert save(Request(gpus=1), find()) == here / "genv.toml"
    assert (here / "genv.toml").read_text() == "gpus = 1\n"
    before = "# for everybody\n\n  gpus = 2  # two\nname = 'a # b' # who\r\nprocesses=3\n# the end"
    path = write(here, before, 0o640)
    save(Request(fraction=0.5, name='x"y\\é'), find())
    assert path.read_text().splitlines() == [
        *("# for everybody", "", "# two", 'name = "x\\"y\\\\é" # who'),
        *("processes=3", "# the end", "fraction = 0.5"),
    ]
    assert asked() == Request(fraction=0.5, name='x"y\\é', processes=3)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    save(Request(memory="4G"), find())
    assert asked() == Request(memory="4G", name='x"y\\é', processes=3)
    assert list(here.iterdir()) == [path], "no temporary file is left"


def test_saving_writes_the_file_that_was_found(here: Path) -> None:
    above = write(here.parent, "gpus = 2")
    assert save(Request(gpus=1), find()) == above
    assert not (here / "genv.toml").exists()


@pytest.mark.parametrize("text", ["name = '''\na'''\ngpus = 1", '"gpus" = 1'])
def test_saving_does_no_harm_to_what_it_does_not_understand(here: Path, text: str) -> None:
    path = write(here, text)
    with pytest.raises(BadRequest, match="was not written"):
        save(Request(gpus=2, name="b"), find())
    assert path.read_text() == text


def test_saving_does_not_replace_a_file_that_is_not_read(here: Path) -> None:
    path = write(here, "gpus = 2", 0o666)
    with pytest.raises(BadRequest, match="others may write it"):
        save(Request(gpus=1), find())
    assert path.read_text() == "gpus = 2"
    with pytest.raises(BadRequest, match="holds no devices"):
        save(Request(devices=("0",)), None)
    with pytest.raises(BadRequest, match="4 apples"):
        save(Request(memory="4 apples"), None)


def test_a_crash_while_saving_leaves_the_old_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(here, "gpus = 2")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(project.os, "fsync", full)
    with pytest.raises(BadRequest, match="No space left"):
        save(Request(gpus=1), find())
    assert path.read_text() == "gpus = 2" and list(here.iterdir()) == [path]


def test_reading_says_which_file(here: Path) -> None:
    with pytest.raises(BadRequest, match=r"^/a/genv\.toml"):
        read("x = 1", Path("/a/genv.toml"))


def test_whether_under_mps_is_kept(here: Path) -> None:
    path = save(Request(fraction=0.5, mps="off"), find())
    assert path.read_text() == 'fraction = 0.5\nmps = "off"\n'
    assert filled(Request(), find()) == Request(fraction=0.5, mps="off")
    assert filled(Request(memory="4G", mps="on"), find()).mps == "on"
    save(Request(fraction=0.25), find())
    assert asked() == Request(fraction=0.25, mps="off"), "what is not said stays"
    save(Request(fraction=0.25, mps="on"), find())
    assert asked() == Request(fraction=0.25, mps="on")
