"""Who users are while the host's directory service is slow: nobody waits for another's answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from traitlets.config import Config

from genv_jupyter.broker import host, identity
from genv_jupyter.broker.config import BrokerConfig
from genv_jupyter.broker.identity import Access, Identities
from genv_jupyter.broker.lookups import Lookups
from genv_jupyter.broker.quota_settings import QuotaSettings
from genv_jupyter.errors import GpuError, NoCapacity, Unavailable, UnknownUser
from genv_jupyter.isolation import accounts
from genv_jupyter.isolation.accounts import Account
from genv_jupyter.model import NewEnvironment, Principal, Request
from genv_jupyter.reserving import NewReservation
from genv_jupyter.rootd import relay
from tests.unit.brokers import HALF, WHOLE, Bench, Kernel, bench

ME = os.getuid()
ADMIN = Principal(realm="local", id="0", name="root", admin=True)
BOB = Principal(realm="hub", id="bob", name="bob")
SECONDS = 30.0
"""For which is waited before something is taken to hang."""


class Directory:
    """A directory service that answers when it is let."""

    def __init__(self) -> None:
        self.groups: tuple[str, ...] = ("lab",)
        self.asked: list[int] = []
        self.now = 1000.0
        self.open, self.begun = threading.Event(), threading.Event()
        self.open.set()
        self.access = Access(config=Config(Access={"admin_groups": ["gpu"]}))
        self.users = Identities(lambda: self.access, lambda: self.now, self.answer)

    def answer(self, uid: int) -> Account:
        self.asked.append(uid)
        self.begun.set()
        assert self.open.wait(SECONDS)
        return Account("ann" if uid == ME else f"u{uid}", self.groups)

    def hang(self) -> None:
        self.open.clear()
        self.begun.clear()


@pytest.fixture
def directory() -> Iterator[Directory]:
    made = Directory()
    yield made
    made.open.set()


def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for an answer waits for a moment only."""
    monkeypatch.setattr(identity, "PATIENCE", 0.05)
    monkeypatch.setattr(identity, "SOON", 0.05)


# -- what is known ------------------------------------------------------------------------------


def test_what_is_stale_is_used_and_looked_up_once_beside_it(directory: Directory) -> None:
    users = directory.users
    assert users.of(f"local:{ME}").groups == ("lab",)
    directory.hang()
    directory.now += 30
    directory.groups = ()
    for _ in range(5):
        assert users.of(f"local:{ME}").groups == ("lab",)
    assert directory.begun.wait(SECONDS)
    looking = users.begin(ME)
    directory.open.set()
    looking.result(SECONDS)
    assert users.of(f"local:{ME}").groups == ()
    assert directory.asked == [ME, ME]


def test_what_is_too_old_is_not_believed_and_said_in_words(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = directory.users
    users.look_up(ME)
    directory.hang()
    patience(monkeypatch)
    directory.now += 299.9
    assert users.look_up(ME).groups == ("lab",), "an outage is no reason to refuse"
    directory.now += 0.1
    users.waits = 0.0
    for ask in (users.of, lambda _: users.look_up(ME), lambda _: users.sure(ME)):
        with pytest.raises(Unavailable, match="does not answer who you are") as refused:
            ask(f"local:{ME}")
        assert refused.value.status == 503
    assert users.last(f"local:{ME}").groups == ("lab",), "to count by, what was known last"
    directory.open.set()
    assert users.begin(ME).result(SECONDS) is None
    assert users.of(f"local:{ME}").name == "ann"


def test_the_age_of_an_answer_is_that_of_the_question(directory: Directory) -> None:
    users = directory.users
    directory.hang()
    looking = users.begin(ME)
    assert directory.begun.wait(SECONDS)
    directory.now += 300
    directory.open.set()
    looking.result(SECONDS)
    assert users.known(ME) is not None
    assert users.expired(ME)


def test_a_decision_has_a_moment_however_short_the_settings_are(directory: Directory) -> None:
    said = {"identity_seconds": 0, "outage_seconds": 0}
    directory.access = Access(config=Config(Access=said))
    directory.users.look_up(ME)
    assert directory.users.stale(ME)
    directory.now += 9.9
    assert directory.users.sure(ME).name == "ann"
    directory.now += 0.1
    assert directory.users.expired(ME)


def test_one_of_whom_nothing_is_known_is_in_no_group_and_may_nothing(directory: Directory) -> None:
    users = directory.users
    users.waits = 0.0
    users.told.put("local:77", ("thesis",))
    directory.hang()
    assert (users.last("local:77").name, users.last("local:77").groups) == ("77", ("thesis",))
    assert not users.has_account(77)
    with pytest.raises(Unavailable):
        users.of("local:77")


def test_a_failure_leaves_what_is_known(directory: Directory) -> None:
    users = directory.users
    users.look_up(ME)

    def fail(uid: int) -> Account:
        raise OSError("no route to host")

    users.ask = fail
    directory.now += 30
    assert users.look_up(ME).groups == ("lab",)
    assert users.stale(ME)


def test_new_settings_and_what_a_hub_says_are_taken_in_at_once(directory: Directory) -> None:
    users = directory.users
    assert not users.look_up(ME).admin
    directory.hang()
    directory.access = Access(config=Config(Access={"admin_groups": ["lab"]}))
    users.forget()
    assert users.sure(ME).admin
    assert users.stale(ME)
    users.learn_groups(ME, ("thesis",))
    assert users.sure(ME).groups == ("lab", "thesis")
    assert users.stale(ME), "the host has said nothing new"


def test_names_are_asked_for_with_patience(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def hang(name: str) -> None:
        answered.wait(SECONDS)

    with monkeypatch.context() as patch:
        patch.setattr(accounts, "named", hang)
        patience(patch)
        with pytest.raises(Unavailable, match="does not answer whether it knows a user 'cat'"):
            directory.users.named("cat")
        answered.set()
    monkeypatch.setattr(accounts, "named", lambda name: None)
    with pytest.raises(UnknownUser):
        directory.users.named("dog")


# -- looking up ---------------------------------------------------------------------------------


def test_so_many_look_ups_run_at_once_and_hold_no_process() -> None:
    lookups, opened, full = Lookups(2), threading.Event(), threading.Semaphore(0)
    daemons: list[bool] = []

    def ask() -> str:
        daemons.append(threading.current_thread().daemon)
        full.release()
        assert opened.wait(SECONDS)
        return "answered"

    answers: list[Future[Any]] = [lookups.begin(str(number), ask) for number in range(5)]
    for _ in range(2):
        assert full.acquire(timeout=SECONDS)
    assert not full.acquire(timeout=0.05), "a third has begun"
    assert lookups.begin("4", ask) is answers[4]
    assert not answers[4].cancel(), "one who leaves takes nobody's answer along"
    opened.set()
    assert [it.result(SECONDS) for it in answers] == ["answered"] * 5
    assert daemons == [True] * 5


def test_whoever_has_waited_for_long_does_not_wait_again() -> None:
    lookups, opened = Lookups(1), threading.Event()
    answer = lookups.begin("a", lambda: opened.wait(SECONDS))
    answer.asked -= 5
    assert answer.left(5) == 0
    assert answer.left(SECONDS) > 0
    opened.set()


def test_those_of_whom_nothing_is_known_keep_nobody_else_waiting(directory: Directory) -> None:
    """Anybody may send many uids of which the host knows nothing, and it may hang over each."""
    users, hanging = directory.users, threading.Event()

    def answer(uid: int) -> Account:
        if uid > 2**30:
            hanging.wait(SECONDS)
        return directory.answer(uid)

    users.ask = answer
    users.look_up(ME)
    for number in range(identity.AT_ONCE + 1):
        users.begin(2**30 + 1 + number)
    directory.now += 300
    directory.groups = ("other",)
    assert users.look_up(ME).groups == ("other",)
    hanging.set()


def test_an_error_is_told_to_who_waits_and_the_next_question_is_a_new_one() -> None:
    lookups = Lookups(1)

    def fail() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        lookups.begin("a", fail).result(SECONDS)
    assert lookups.begin("a", lambda: 7).result(SECONDS) == 7


_PRELOADED = r"""
#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <unistd.h>
int getgrouplist(const char *user, gid_t group, gid_t *groups, int *count) {
    char said;
    if (*count < 70) {
        int pipe = open(getenv("GATE"), O_RDONLY);
        if (read(pipe, &said, 1) != 1) abort();
        *count = 70;
        return -1;
    }
    for (int number = 0; number < 70; number++) groups[number] = group + number;
    *count = 70;
    return 70;
}
"""

_STORY = """
import sys, threading
from genv_jupyter.isolation import accounts
found = []
asking = threading.Thread(target=lambda: found.extend(accounts.group_ids("ann", 5)), daemon=True)
asking.start()
with open(sys.argv[1], "w") as gate:  # waits until the other thread is inside
    gate.write("x")
asking.join()
assert found == list(range(5, 75)), found
"""


def compiled(code: str, where: Path) -> Path:
    """Make a library that is loaded before the C library."""
    source, library = where.with_suffix(".c"), where.with_suffix(".so")
    source.write_text(code)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_others_run_while_the_host_looks_for_groups(tmp_path: Path) -> None:
    """In CPython's own os.getgrouplist nobody does: this would never end."""
    library, gate = compiled(_PRELOADED, tmp_path / "slow"), tmp_path / "gate"
    os.mkfifo(gate)
    environ = {**os.environ, "LD_PRELOAD": str(library), "GATE": str(gate)}
    subprocess.run([sys.executable, "-c", _STORY, gate], env=environ, check=True, timeout=SECONDS)


def test_groups_are_those_that_the_system_names() -> None:
    entry = accounts.named("root")
    assert entry is not None
    assert sorted(accounts.group_ids("root", 0)) == sorted(os.getgrouplist("root", 0))
    assert accounts.of_uid(0).name == "root"
    assert accounts.of_uid(2**31 - 7) == Account(str(2**31 - 7), ())
    assert accounts.named("no\0body") is None


_FAILS = r"""
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
int getpwuid_r(uid_t uid, struct passwd *entry, char *room, size_t size, struct passwd **found) {
    *found = NULL;
    if (uid == 1) return EIO;
    if (uid == 2) return ENOENT;
    if (size < 5000) return ERANGE;
    memset(entry, 0, sizeof *entry);
    entry->pw_name = strcpy(room, "ann");
    entry->pw_gid = uid;
    *found = entry;
    return 0;
}
int getgrouplist(const char *user, gid_t group, gid_t *groups, int *count) {
    *groups = group;
    *count = 1;
    return 1;
}
int getgrgid_r(gid_t gid, struct group *entry, char *room, size_t size, struct group **found) {
    *found = NULL;
    return gid == 3 ? EIO : 0;
}
"""

_FAILURES = """
from genv_jupyter.isolation.accounts import Account, of_uid
for uid in (1, 3):  # as a user, and as one of their groups
    try:
        raise SystemExit(f"{of_uid(uid)} is said of {uid}")
    except OSError as error:
        assert "Input/output error" in str(error), error
assert of_uid(2) == Account("2", ())
assert of_uid(4) == Account("ann", ("4",)), "a group without a name"
"""


def test_a_directory_service_that_fails_does_not_say_that_there_is_nobody(tmp_path: Path) -> None:
    """As a KeyError of ``pwd`` would: a user would lose groups, and with them limits and rights."""
    environ = {**os.environ, "LD_PRELOAD": str(compiled(_FAILS, tmp_path / "fails"))}
    subprocess.run([sys.executable, "-c", _FAILURES], env=environ, check=True, timeout=SECONDS)


# -- decisions ----------------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path: Path, directory: Directory) -> Iterator[Bench]:
    """A host with 3 devices, of which one is guaranteed to the group of its local user."""
    said = {"groups": {"lab": {"guaranteed": 1, "devices": 3}}, "default": {"devices": 2}}
    with bench(tmp_path, "3x24GiB", config=BrokerConfig(Config(QuotaSettings=said))) as made:
        assert made.broker.core.config.of(QuotaSettings).default
        made.broker.core.kind = "host"
        made.broker.core.identities = directory.users
        directory.users.waits = 0.0
        directory.users.look_up(ME)
        yield made


def kernel_of(desk: Bench, who: Principal) -> Kernel:
    desk.me, desk.server = who, str(uuid.uuid4())
    desk.register()
    return desk.kernel()


def beside(call: Callable[[], Any]) -> Any:
    """Do something in a thread, in which it must not hang."""
    done: Future[Any] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except GpuError as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return done.result(SECONDS)


def test_others_attach_while_the_groups_of_a_holder_are_looked_up(
    desk: Bench, directory: Directory
) -> None:
    """What ann holds counts for her group whoever attaches: her groups are stale by then."""
    ann = desk.me
    hers = kernel_of(desk, ann)
    hers.attach(HALF)
    directory.hang()
    directory.now += 30
    directory.groups = ()
    his = kernel_of(desk, BOB)
    assert beside(lambda: his.attach(WHOLE)).grants
    assert directory.begun.wait(SECONDS), "she is looked up beside it"
    assert not directory.open.is_set()
    desk.me = ann
    assert beside(lambda: hers.attach(Request(gpus=2))).grants, "she is still what she was"
    looking = directory.users.begin(ME)
    directory.open.set()
    looking.result(SECONDS)
    hers.detach()
    with pytest.raises(NoCapacity, match="kept for the group lab"):
        hers.attach(Request(gpus=2))


def test_what_a_group_gave_ends_with_what_can_be_believed_of_it(
    desk: Bench, directory: Directory
) -> None:
    ann = desk.me
    theirs = kernel_of(desk, BOB)
    theirs.attach(Request(gpus=2))
    hers = kernel_of(desk, ann)
    directory.hang()
    directory.now += 300
    with pytest.raises(Unavailable, match="cannot tell what you may do"):
        hers.attach(WHOLE)
    with pytest.raises(Unavailable):
        desk.broker.place(ann, WHOLE)
    with pytest.raises(Unavailable):
        hers.attach(Request(gpus=1, wait="1h"), cuda="unknown")
    assert hers.now.grants == ()
    looking = directory.users.begin(ME)
    directory.open.set()
    looking.result(SECONDS)
    assert hers.attach(WHOLE).grants


def test_one_who_waits_is_passed_over_and_keeps_the_place_while_nobody_says_who_it_is(
    desk: Bench, directory: Directory
) -> None:
    ann = desk.me
    holders = [kernel_of(desk, ann) for _ in range(3)]
    for holder in holders:
        holder.attach(WHOLE)
    hers = kernel_of(desk, Principal(realm="local", id=str(ME), name="ann"))
    desk.broker.core.config = BrokerConfig(
        Config(QuotaSettings={"groups": {"lab": {"guaranteed": 1}}})
    )
    hers.attach(Request(gpus=1, wait="1h"), cuda="unknown")
    directory.hang()
    directory.now += 300
    desk.tick(1)
    holders[0].detach()
    desk.broker.queue.round()
    assert hers.now.state == "waiting"
    (ticket,) = desk.broker.tickets(ann)
    assert (ticket.position, ticket.expected) == (1, None)
    looking = directory.users.begin(ME)
    directory.open.set()
    looking.result(SECONDS)
    desk.broker.queue.round()
    assert hers.devices


def test_nobody_is_over_a_quota_because_the_host_does_not_answer(
    desk: Bench, directory: Directory
) -> None:
    enforcer = desk.broker.rules
    assert enforcer.quota_of(f"local:{ME}") is not None
    directory.hang()
    directory.now += 300
    assert enforcer.quota_of(f"local:{ME}") is None


def test_the_owner_of_a_reservation_and_of_a_quota_is_asked_for_without_the_lock(
    desk: Bench, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []

    def named(name: str) -> Any:
        taken: Future[bool] = Future()

        def look() -> None:
            free = desk.broker.lock.acquire(blocking=False)
            if free:
                desk.broker.lock.release()
            taken.set_result(not free)

        threading.Thread(target=look).start()
        held.append(taken.result(SECONDS))
        return SimpleNamespace(pw_name=name, pw_uid=ME)

    monkeypatch.setattr(accounts, "named", named)
    assert desk.broker.quota(ADMIN, "ann").user == "ann"
    new = NewReservation(user="ann", realm="local", request=HALF)
    assert desk.broker.reserve(ADMIN, new).user == "ann"
    assert held == [False, False]


def test_owners_of_what_an_earlier_daemon_left_are_looked_up_before_it_serves(
    desk: Bench, directory: Directory
) -> None:
    kernel_of(desk, desk.me)
    desk.broker.create(BOB, NewEnvironment(kind="command", pid=desk.process().pid))
    users = Identities(lambda: directory.access, lambda: directory.now, directory.answer)
    desk.broker.core.identities = users
    host._recognise(desk.broker)
    assert users.sure(ME).groups == ("lab",)


def test_look_ups_go_on_after_the_host_has_allowed_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookups = Lookups(2)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        first = [lookups.begin(f"uid:{number}", lambda: 1) for number in range(3)]
    assert lookups.begin("uid:0", lambda: 2) is first[0], "it still stands in line"
    assert [it.result(SECONDS) for it in first] == [1, 1, 1]


def test_systemd_hears_that_it_is_ready_whatever_its_socket_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        before = signal.signal(signal.SIGIO, lambda *_: None)
        line = relay.Relay()
        try:
            monkeypatch.setenv(relay.VARIABLE, str(line.brokers.fileno()))
            host._ready("/run/größe/broker.sock")
            line.pass_on()
        finally:
            line.ours.close()
            line.brokers.close()
            signal.signal(signal.SIGIO, before)
        assert (
            heard.recv(4096)
            == rb"READY=1" + b"\n" + rb"STATUS=serving /run/gr\xf6\xdfe/broker.sock"
        )
