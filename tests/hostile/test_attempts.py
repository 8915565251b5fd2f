"""What a curious user tries besides the API's own verbs: the CLI, files, ids and claims."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.isolation.environ import MARKER
from tests.hostile.puppets import Puppet
from tests.hostile.stages import Stage, code_of
from tests.hostile.table import SECRET, World
from tests.integration.daemons import Daemon, User, unprivileged

NOT_YOURS, ADMINS = "belongs to", "administrators"


def said_by(user: User, *words: str, **environ: str) -> tuple[int, str]:
    """Run ``jupyter gpu`` as a user; return its status and all that it says."""
    command = [*unprivileged(user), sys.executable, "-m", "genv_jupyter.cli", *words]
    done = subprocess.run(
        command,
        env={**os.environ, "HOME": "/nonexistent", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


COMMANDS: list[tuple[list[str], str]] = [
    (["attach", "0.5", "--kernel", "{kernel}"], NOT_YOURS),
    (["release", "--kernel", "{kernel}"], NOT_YOURS),
    (["extend", "--kernel", "{kernel}", "1h"], NOT_YOURS),
    (["keep", "--kernel", "{kernel}"], NOT_YOURS),
    (["ask", "--kernel", "{kernel}"], NOT_YOURS),
    (["leave", "--kernel", "{waiting}"], "is that of"),
    (["drain", "0"], ADMINS),
    (["undrain", "0"], ADMINS),
    (["audit"], ADMINS),
    (["quota", "list"], ADMINS),
    (["quota", "set", "user:{owner}", "--devices", "1"], ADMINS),
    (["quota", "show", "{owner}"], ADMINS),
]


@pytest.mark.parametrize(("words", "why"), COMMANDS, ids=lambda it: it[0] if it else "")
def test_the_command_line_is_refused_in_words(
    stage: Stage, users: dict[str, User], words: list[str], why: str
) -> None:
    world = stage.set(more=True)
    waiting = next(it["environment"] for it in stage.told("owner", "GET", "queue"))
    before = stage.state(world)
    filled = [it.format(kernel=world.kernel, waiting=waiting, owner=world.owner) for it in words]
    status, said = said_by(users["bob"], *filled)
    assert (status, why in said) == (1, True), said
    assert "Traceback" not in said and SECRET not in said
    assert stage.state(world) == before
    stage.clear(world)


def test_a_marker_is_a_name_and_no_key(stage: Stage, users: dict[str, User]) -> None:
    """Whoever carries another's environment in their variables is told whose it is."""
    world = stage.set(more=False)
    before = stage.state(world)
    for words in (["release"], ["attach", "0.5"], ["keep"]):
        status, said = said_by(users["bob"], *words, **{MARKER: world.kernel})
        assert (status, NOT_YOURS in said) == (1, True), said
    assert stage.state(world) == before
    stage.clear(world)


# -- files ----------------------------------------------------------------------------------------

MODES = {"broker.sock": 0o666, "hub.sock": 0o666, "run": 0o755, "hub": 0o755}
"""What others get through. Besides, there is a program that they may run, in ``bin``; everything
else is the daemon's alone.
"""


def programs(daemon: Daemon) -> Path:
    return daemon.socket.parent / "bin"


def walked(daemon: Daemon) -> list[Path]:
    """Return all that a daemon has made."""
    tops = [daemon.state, daemon.socket.parent]
    return [path for top in tops for path in (top, *top.rglob("*"))]


def test_whatever_the_daemon_makes_is_its_own(stage: Stage, daemon: Daemon) -> None:
    world = stage.set(more=True)
    found = walked(daemon)
    assert {"ledger.sqlite", "broker.sock", "broker.sock.lock"} <= {path.name for path in found}
    for path in found:
        entry = path.lstat()
        assert entry.st_uid == os.getuid(), path
        mode, kind = stat.S_IMODE(entry.st_mode), stat.S_IFMT(entry.st_mode)
        allowed = MODES.get(path.name, 0o700 if kind == stat.S_IFDIR else 0o600)
        allowed = 0o755 if programs(daemon) in (path, *path.parents) else allowed
        assert mode & ~allowed == 0, (path, oct(mode))
        assert kind in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFSOCK), path
    stage.clear(world)


@pytest.mark.parametrize("who", ["other", "nobody", "rootless", "contained", "owner", "admin"])
def test_nobody_gets_at_the_files(
    stage: Stage, actors: dict[str, Puppet], daemon: Daemon, who: str
) -> None:
    """Administrators of GPUs neither: they are not root."""
    run = daemon.socket.parent
    for path in walked(daemon):
        public = path in (run, run / "hub") or programs(daemon) in (path, *path.parents)
        may = ("read and list" if path.is_dir() else "read") if public else "nothing"
        assert actors[who].open(str(path)) == may, path
    assert daemon.socket.exists() and daemon.state.exists()


# -- ids ------------------------------------------------------------------------------------------


def register(stage: Stage, actor: str, **more: Any) -> str:
    """Register a server of somebody's own."""
    server = str(uuid.uuid4())
    body = {"pid": stage.actors[actor].pid, "version": "1", **more}
    stage.told(actor, "PUT", f"servers/{server}", body)
    return server


def tell(stage: Stage, actor: str, path: str, body: Any) -> tuple[int, str | None]:
    """Tell something of a kernel; return the answer."""
    said = stage.actors[actor].call("PUT", path, json.dumps(body).encode())
    return said.status, code_of(said)


def holders(stage: Stage) -> dict[str, str]:
    """Return who holds something: by environment."""
    devices = stage.told("admin", "GET", "devices")
    return {grant["environment"]: grant["user"] for it in devices for grant in it["grants"]}


@pytest.mark.parametrize("phase", ["starting", "running", "restarting", None])
def test_another_s_kernel_in_one_s_own_server_leads_nowhere(
    stage: Stage, phase: str | None
) -> None:
    world = stage.set(more=False)
    before = stage.state(world)
    server = register(stage, "other")
    pid = stage.actors["other"].spawn()
    report = {"phase": phase, "launch": 99, "pid": pid, "applied": "live", "visible": ""}
    path = f"servers/{server}/kernels/{world.kernel}"
    assert tell(stage, "other", path, report) == (403, "not_yours")
    said = stage.actors["other"].call("DELETE", path)
    assert said.status == 200  # no kernel of that server
    assert stage.state(world) == before
    stage.actors["other"].end(pid)
    stage.clear(world)


def test_an_ended_kernel_s_id_is_a_new_kernel_s(stage: Stage) -> None:
    """Whoever uses it: there is nothing behind it any more."""
    world = stage.set(more=False)
    stage.clear(world)
    for path in (f"environments/{world.kernel}", f"usage?environment={world.kernel}"):
        assert code_of(stage.actors["owner"].call("GET", path)) == "unknown_environment"
    server = register(stage, "other")
    pid = stage.actors["other"].spawn()
    path = f"servers/{server}/kernels/{world.kernel}"
    late = {"kernel_state": "idle", "launch": 1}
    assert tell(stage, "other", path, late) == (404, "unknown_environment")
    assert tell(stage, "other", path, {"phase": "starting"}) == (200, None)
    assert tell(stage, "other", path, {"phase": "running", "pid": pid}) == (200, None)
    made = stage.told("other", "GET", f"environments/{world.kernel}")
    assert (made["grants"], made["request"], made["name"]) == ([], None, None)
    said = stage.actors["owner"].call("GET", f"environments/{world.kernel}")
    assert code_of(said) == "not_yours"
    stage.actors["other"].end(pid)


def test_what_another_left_is_not_inherited(stage: Stage) -> None:
    """By the id of the kernel before, nor by that of a reservation."""
    world = stage.set(more=False)
    asked = {"user": world.owner, "request": {"memory": "1G"}, "within": 60}
    reserved = stage.told("admin", "POST", "reservations", asked)["id"]
    server = register(stage, "other", reservation=reserved)
    pid, kernel = stage.actors["other"].spawn(), str(uuid.uuid4())
    path = f"servers/{server}/kernels/{kernel}"
    first = {"phase": "starting", "previous": world.kernel}
    assert tell(stage, "other", path, first) == (200, None)
    assert tell(stage, "other", path, {"phase": "running", "pid": pid}) == (200, None)
    assert holders(stage) == {world.kernel: world.owner, reserved: world.owner}
    stage.clear(world)
    assert holders(stage) == {reserved: world.owner}
    made = stage.told("other", "GET", f"environments/{kernel}")
    assert (made["previous"], made["grants"]) == (None, [])
    stage.told("admin", "DELETE", f"environments/{reserved}")
    stage.actors["other"].end(pid)


@pytest.mark.parametrize("name", ["../../etc/passwd", "x", "", "0" * 400, "ledger.sqlite"])
def test_an_id_is_no_path(stage: Stage, name: str) -> None:
    server = register(stage, "other")
    quoted = name.replace("/", "%2F") or "%20"
    path = f"servers/{server}/kernels/{quoted}"
    assert tell(stage, "other", path, {"phase": "starting"}) == (400, "bad_request")


def test_what_is_wanted_of_a_server_nobody_else_hears(stage: Stage) -> None:
    world, mark = stage.set(more=False), str(uuid.uuid4())
    listeners = ("other", "nobody", "rootless", "contained", "server")
    for who in listeners:
        stage.actors[who].listen(world.server)
    stage.told("owner", "POST", f"environments/{world.kernel}/restart")
    drained = {"maintenance": True, "reason": mark}  # what everybody hears of, while it is so
    stage.told("admin", "PATCH", f"devices/{world.device}", drained)
    for who in listeners:
        lines = [json.loads(line) for line in stage.actors[who].heard(mark)]
        wanted = {(it["kernel"], it["action"]) for line in lines for it in line["wants"]}
        assert bool(wanted) == (who == "server"), who
        assert who != "server" or (world.kernel, "restart") in wanted
    stage.told("admin", "PATCH", f"devices/{world.device}", {"maintenance": False})
    stage.clear(world)


# -- reports that are not true --------------------------------------------------------------------


def held(stage: Stage, world: World) -> list[str]:
    return [
        it["state"] for it in stage.told("owner", "GET", f"environments/{world.kernel}")["grants"]
    ]


def test_a_device_in_use_is_not_freed_by_a_forged_report(stage: Stage) -> None:
    """Not by another process of the same user; the kernel's server is believed."""
    world = stage.set(more=False)
    seen = stage.told("owner", "DELETE", f"environments/{world.kernel}")
    assert [it["state"] for it in seen["grants"]] == ["draining"]
    environ = seen["environ"]
    true = {
        "applied": "live",
        "cuda": "not_initialized",
        "revision": int(environ["GENV_JUPYTER_REVISION"]),
        "visible": environ["CUDA_VISIBLE_DEVICES"],
    }
    stage.told("owner", "PATCH", f"environments/{world.kernel}", true)
    assert held(stage, world) == ["draining"]
    path = f"servers/{world.server}/kernels/{world.kernel}"
    assert tell(stage, "owner", path, true) == (403, "not_yours")
    own = register(stage, "owner")
    path = f"servers/{own}/kernels/{world.kernel}"
    assert tell(stage, "owner", path, true) == (409, "conflict")
    second = path.replace(world.kernel, str(uuid.uuid4()))
    taken = {"phase": "running", "pid": world.pid}  # its memory would count as the second's
    assert tell(stage, "owner", second, taken) == (409, "conflict")
    assert held(stage, world) == ["draining"]
    stage.told("server", "PATCH", f"environments/{world.kernel}", true)
    assert held(stage, world) == []
    stage.clear(world)
