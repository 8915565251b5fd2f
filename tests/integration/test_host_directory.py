"""A daemon on a host whose directory service hangs: nobody waits for the answer about another.

The daemon is a real one. What hangs is the C library's look-up of one user, by a library that is
loaded before it: Python asks as it does on any host.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.errors import BrokerDown, NotYours, Unavailable
from genv_jupyter.model import Environment, EnvironmentPatch, NewEnvironment, Request
from tests.integration.daemons import Daemon, User, as_user, make_users, serving

LITTLE, WHOLE = Request(memory="500M"), Request(gpus=1)
SECONDS = 30.0

HANGS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Waits for as long as there is a file of that name: hold-UID, hold-NAME. */
static void wait_for(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/hold-%s", getenv("HOLDS"), name);
    while (access(path, F_OK) == 0) usleep(10000);
}

int getpwuid_r(uid_t uid, struct passwd *entry, char *room, size_t size, struct passwd **found) {
    int (*real)(uid_t, struct passwd *, char *, size_t, struct passwd **);
    char number[32];
    snprintf(number, sizeof number, "%u", uid);
    wait_for(number);
    *(void **)&real = dlsym(RTLD_NEXT, "getpwuid_r");
    return real(uid, entry, room, size, found);
}

int getgrouplist(const char *user, gid_t group, gid_t *groups, int *count) {
    int (*real)(const char *, gid_t, gid_t *, int *);
    wait_for(user);
    *(void **)&real = dlsym(RTLD_NEXT, "getgrouplist");
    return real(user, group, groups, count);
}
"""


@pytest.fixture(scope="module")
def users() -> Iterator[dict[str, User]]:
    yield from make_users()


class Hanging(Daemon):
    """A daemon before whose C library ours is loaded."""

    holds: Path

    def start(self) -> None:
        self.holds = self.top / "holds"
        self.holds.mkdir(exist_ok=True)
        source, library = self.holds / "hangs.c", self.holds / "hangs.so"
        source.write_text(HANGS)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(library))
            patch.setenv("HOLDS", str(self.holds))
            super().start()

    def restart(self) -> None:
        """End it in good order, and start it anew."""
        self.stop()
        self.start()

    @contextlib.contextmanager
    def holding(self, name: object) -> Iterator[None]:
        """Let look-ups of a name or uid hang."""
        hold = self.holds / f"hold-{name}"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()


@pytest.fixture
def daemon(users: dict[str, User]) -> Iterator[Hanging]:
    admins = f"c.Access.admin_groups = ['{users['adm'].name}ins']"
    said = (admins, "c.Access.identity_seconds = 0", "c.QuotaSettings.default = {'devices': 2}")
    with pytest.MonkeyPatch.context() as patch, serving(patch, *said, kind=Hanging) as made:
        yield made


@pytest.fixture
def sleepers() -> Iterator[Callable[[User], int]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(user: User) -> int:
        process = subprocess.Popen(["sleep", "600"], user=user.uid, group=user.gid)
        started.append(process)
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def work(user: User, pid: int, request: Request = LITTLE) -> Environment:
    """Attach a process as its user."""

    def call() -> Environment:
        client = Client(start=False)
        made = client.create(NewEnvironment(kind="command", pid=pid))
        return client.attach(made.id, request)

    return as_user(user, call)


def until(call: Callable[[], Any], *errors: type[Exception]) -> Any:
    """Do something again until it is no longer refused."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return call()
        except errors:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("by", ["uid", "name"], ids=["account", "groups"])
def test_a_directory_service_that_hangs_for_one_user_holds_up_nobody_else(
    daemon: Hanging, users: dict[str, User], sleepers: Callable[[User], int], by: str
) -> None:
    ann, bob, cat = (users[it] for it in ("ann", "bob", "cat"))
    held = work(bob, sleepers(bob))
    work(cat, sleepers(cat))
    renamed = EnvironmentPatch(name="renamed")
    with daemon.holding(getattr(cat, by)), daemon.holding(getattr(ann, by)):
        for user in (cat, bob, cat, bob):  # whoever is known goes on as well
            assert work(user, sleepers(user)).grants
        with pytest.raises(Unavailable, match="does not answer who you are"):
            work(ann, sleepers(ann))
        assert work(bob, sleepers(bob)).grants
    until(lambda: work(ann, sleepers(ann)), Unavailable)
    with pytest.raises(NotYours):
        as_user(cat, lambda: Client(start=False).patch(held.id, renamed))


def test_whose_is_what_an_earlier_daemon_left_is_known_to_the_first_decision(
    daemon: Hanging, users: dict[str, User], sleepers: Callable[[User], int]
) -> None:
    """Else what ann holds would not count for her group, and the other device be kept for it."""
    ann, cat = users["ann"], users["cat"]
    lab = ann.name.removesuffix("ann") + "lab"
    daemon.configure(f"c.QuotaSettings.groups = {{{lab!r}: {{'guaranteed': 1}}}}")
    daemon.restart()
    work(ann, sleepers(ann), WHOLE)
    daemon.restart()
    assert work(cat, sleepers(cat), WHOLE).grants


def test_who_was_taken_out_of_a_group_sees_no_more_on_an_open_stream(
    daemon: Hanging, users: dict[str, User]
) -> None:
    adm, admins = users["adm"], f"{users['adm'].name}ins"
    read, write = os.pipe()
    ended = threading.Event()

    def listen() -> None:
        stream = Client(start=False).events()
        os.write(write, b".")
        with contextlib.suppress(BrokerDown):  # as it sees it who is cut off
            while stream.read_line():
                pass

    def story() -> None:
        as_user(adm, listen)
        ended.set()

    threading.Thread(target=story, daemon=True).start()
    assert os.read(read, 1) == b"."
    subprocess.run(["gpasswd", "--delete", adm.name, admins], check=True)
    try:
        assert ended.wait(SECONDS)
    finally:
        subprocess.run(["usermod", "--append", "--groups", admins, adm.name], check=True)
        daemon.stop()  # whatever still listens ends
