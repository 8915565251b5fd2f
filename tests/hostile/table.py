"""Who may do what at the broker's sockets: a row for each operation, a column for each actor.

A cell is the answer: its status, and the code of a refusal. A row stands for one operation of the
OpenAPI document; one without a row fails ``test_denials.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

ACTORS = ("owner", "server", "other", "nobody", "rootless", "contained", "admin")
"""
``owner``: the user whose environment it is, in a terminal · ``server``: their Jupyter server ·
``other``: another user · ``nobody``: a uid without an account · ``rootless``: another user who is
root in a user namespace · ``contained``: another user in a pid namespace of their own · ``admin``:
an administrator of GPUs.
"""

SECRET = "kingfisher"
"""In the name, the path and the messages of whatever nobody else is to see."""

Cell = tuple[int, str | None]
Answers = dict[str, Cell]


class World(NamedTuple):
    """What the actors are let loose on: all of the owner's, and new for every cell."""

    server: str
    server_pid: int
    kernel: str
    pid: int
    device: str
    owner: str
    ticket: str
    notice: str


class Row(NamedTuple):
    """An operation on something of the owner's, and what each actor is answered.

    ``shows`` says that the answer has something private in it, for those who may see it.
    """

    name: str
    answers: Answers
    path: Callable[[World], str]
    method: str = "GET"
    body: Callable[[World], Any] | None = None
    query: Callable[[World], dict[str, str]] | None = None
    shows: bool = False

    def encoded(self, world: World) -> bytes | None:
        """Return the body as it is sent."""
        return None if self.body is None else json.dumps(self.body(world)).encode()


def answers(allowed: int, refused: Cell, *may: str, **exceptions: Cell) -> Answers:
    """Return the cells of a row: who may, who may not, and exceptions of those."""
    cells: Answers = {who: (allowed, None) if who in may else refused for who in ACTORS}
    return cells | exceptions


NOT_YOURS, FORBIDDEN = (403, "not_yours"), (403, "forbidden")
NO_SERVER = (404, "unknown_server")
NO_PROCESS = (404, "unknown_process")
OWNERS = ("owner", "server", "admin")
EVERYBODY = answers(200, NOT_YOURS, *ACTORS)


def of_owner(status: int = 200, code: str | None = None) -> Answers:
    """Owner and administrators may: what they are told is of the thing itself."""
    cells = answers(status, NOT_YOURS, *OWNERS)
    return cells | dict.fromkeys(OWNERS, (status, code))


ADMINS = answers(200, FORBIDDEN, "admin")


def environment(world: World) -> str:
    return f"environments/{world.kernel}"


def of_environment(verb: str) -> Callable[[World], str]:
    return lambda world: f"environments/{world.kernel}/{verb}"


def fixed(value: Any) -> Callable[[World], Any]:
    return lambda world: value


def kernel(world: World) -> str:
    return f"servers/{world.server}/kernels/{world.kernel}"


ROWS: tuple[Row, ...] = (
    Row("health", EVERYBODY, fixed("health")),
    Row("devices", EVERYBODY, fixed("devices"), shows=True),
    Row(
        "patch_device",
        ADMINS,
        lambda world: f"devices/{world.device}",
        "PATCH",
        fixed({"maintenance": False}),
    ),
    Row("environments", EVERYBODY, fixed("environments"), shows=True),
    Row(
        "create",
        # A pid is the caller's own: an administrator's environments are, too.
        answers(201, NOT_YOURS, "owner", "server", contained=NO_PROCESS),
        fixed("environments"),
        "POST",
        lambda world: {"kind": "command", "pid": world.pid},
    ),
    Row(
        "reserve",
        answers(201, FORBIDDEN, "admin"),
        fixed("reservations"),
        "POST",
        lambda world: {"user": world.owner, "request": {"memory": "1G"}, "within": 1},
    ),
    Row("environment", of_owner(), environment, shows=True),
    Row("attach", of_owner(), environment, "PUT", fixed({"memory": "2G"}), shows=True),
    Row("patch", of_owner(), environment, "PATCH", fixed({"name": f"{SECRET} 2"}), shows=True),
    Row("detach", of_owner(), environment, "DELETE", shows=True),
    Row("restart", of_owner(202), of_environment("restart"), "POST", shows=True),
    Row("leave", of_owner(), of_environment("leave"), "POST", shows=True),
    Row("turn", of_owner(), of_environment("turn"), "POST"),
    Row("nvidia_smi", of_owner(), of_environment("nvidia-smi"), "POST", fixed({"args": ["-L"]})),
    Row(
        "place",  # on another's credit; without one it is everybody's
        of_owner(),
        fixed("placements"),
        "POST",
        fixed({"memory": "2G"}),
        lambda world: {"environment": world.kernel},
    ),
    Row("ask", of_owner(409, "conflict"), of_environment("ask"), "POST", fixed({})),
    Row(
        "answer",
        answers(200, (409, "conflict"), *OWNERS),
        lambda world: f"notices/{world.notice}/answer",
        "POST",
        fixed({"minutes": 5}),
    ),
    Row("queue", EVERYBODY, fixed("queue"), shows=True),
    Row("leave_queue", of_owner(), lambda world: f"queue/{world.ticket}", "DELETE"),
    Row("leftovers", EVERYBODY, fixed("leftovers")),
    Row(
        "end_process",  # it is none that a kernel has left behind, and so nobody's to end
        answers(202, NO_PROCESS),
        lambda world: f"processes/{world.pid}-1",
        "DELETE",
    ),
    Row("notices", EVERYBODY, fixed("notices"), shows=True),
    Row("dismiss", of_owner(), lambda world: f"notices/{world.notice}", "DELETE"),
    Row("audit", ADMINS, fixed("audit")),
    Row(
        "quota",
        answers(200, FORBIDDEN, *OWNERS),
        fixed("quota"),
        query=lambda world: {"user": world.owner},
    ),
    Row("quota_rules", ADMINS, fixed("quotas")),
    Row(
        "set_quota",
        ADMINS,
        lambda world: f"quotas/user:{world.owner}",
        "PUT",
        fixed({"environments": 100}),
    ),
    Row(
        "unset_quota",
        answers(404, FORBIDDEN, admin=(404, "unknown_quota")),
        lambda world: f"quotas/user:{world.owner}x",
        "DELETE",
    ),
    Row(
        "usage",
        of_owner(),
        fixed("usage"),
        query=lambda world: {"environment": world.kernel},
    ),
    Row(
        "usage_report",
        EVERYBODY,
        fixed("usage/report"),
        query=fixed({"since": "2026-01-01T00:00:00Z", "by": "environment"}),
    ),
    Row(
        "register_server",  # again, and with the pid that it has
        answers(200, NOT_YOURS, "server", contained=NO_PROCESS),
        lambda world: f"servers/{world.server}",
        "PUT",
        lambda world: {"pid": world.server_pid, "version": "1"},
    ),
    Row(
        "end_server",
        answers(200, NO_SERVER, "server", owner=NOT_YOURS),
        lambda world: f"servers/{world.server}",
        "DELETE",
    ),
    Row(
        "report_kernel",
        answers(200, NO_SERVER, "server", owner=NOT_YOURS, contained=NO_PROCESS),
        kernel,
        "PUT",
        lambda world: {"phase": "running", "launch": 1, "pid": world.pid},
        shows=True,
    ),
    Row(
        "end_kernel",
        answers(200, NO_SERVER, "server", owner=NOT_YOURS),
        kernel,
        "DELETE",
    ),
    Row(
        "events",
        EVERYBODY,
        fixed("events"),
        query=lambda world: {"server": world.server},
        shows=True,
    ),
    Row("metrics", EVERYBODY, fixed("metrics")),
    Row("openapi", EVERYBODY, fixed("openapi.json")),
)

INTERNAL: tuple[Row, ...] = (
    Row(
        "replace",  # whoever runs the daemon replaces it
        answers(400, (400, "bad_request")),
        fixed("replace"),
        "POST",
        fixed({"version": "999"}),
    ),
    Row("nowhere", answers(404, (404, "unknown_route")), fixed("nowhere")),
    Row("ledger", answers(404, (404, "unknown_route")), fixed("../../state/ledger.sqlite")),
)
"""What no OpenAPI document names."""
