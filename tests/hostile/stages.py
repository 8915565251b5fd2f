"""What the actors are let loose on: everything of one user's that somebody could go for."""

from __future__ import annotations

import json
import uuid
from typing import Any

from tests.hostile.puppets import Puppet, Said
from tests.hostile.table import SECRET, Row, World
from tests.integration.daemons import User

SEES = ("owner", "server", "admin", "reader")
"""Who sees what is private."""
NAMED = World(*World._fields)


class Stage:
    """Everything of the owner's that somebody could go for, new for each cell."""

    def __init__(self, actors: dict[str, Puppet], owner: User) -> None:
        self.actors = actors
        self.owner = owner
        self.pids: list[int] = []
        self.worlds: list[World] = []

    def told(self, actor: str, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Return the answer to what must go well."""
        encoded = None if body is None else json.dumps(body).encode()
        said = self.actors[actor].call(method, path, encoded, query)
        assert said.status < 300, (actor, method, path, said)
        return json.loads(said.body)

    def kernel(self, server: str, name: str) -> tuple[str, int]:
        """A running kernel of the owner's server."""
        pid, kernel = self.actors["server"].spawn(), str(uuid.uuid4())
        self.pids.append(pid)
        path = f"servers/{server}/kernels/{kernel}"
        told = {"launch": 1, "path": f"/{SECRET}/{name}.ipynb", "name": f"{SECRET} {name}"}
        self.told("server", "PUT", path, {"phase": "starting", **told})
        self.told("server", "PUT", path, {"phase": "running", "pid": pid, "launch": 1})
        return kernel, pid

    def set(self, *, more: bool) -> World:
        """Set it up; with what is asked for and what is waited for only where that matters."""
        server, pid = str(uuid.uuid4()), self.actors["server"].pid
        self.told("server", "PUT", f"servers/{server}", {"pid": pid, "version": "1"})
        kernel, kernel_pid = self.kernel(server, "work")
        held = self.told("owner", "PUT", f"environments/{kernel}", {"memory": "1G"})
        ticket = notice = ""
        if more:
            waiting, _ = self.kernel(server, "later")
            asked = {"gpus": 2, "wait": "1h"}
            self.told("owner", "PUT", f"environments/{waiting}", asked)
            tickets = self.told("owner", "GET", "queue")
            ticket = next(it["id"] for it in tickets if it["environment"] == waiting)
            asker = {"kind": "command", "pid": self.actors["other"].pid}
            mine = self.told("other", "POST", "environments", asker)["id"]
            body = {"request": {"gpus": 2}, "message": f"{SECRET}?"}
            self.told("other", "POST", f"environments/{mine}/ask", body)
            notices = self.told("owner", "GET", "notices")
            notice = next(it["id"] for it in notices if it["environment"] == kernel)
        self.worlds.append(
            world := World(
                server=server,
                server_pid=pid,
                kernel=kernel,
                pid=kernel_pid,
                device=held["grants"][0]["device"],
                owner=self.owner.name,
                ticket=ticket,
                notice=notice,
            )
        )
        return world

    def clear(self, world: World) -> None:
        """Take down what is left of it."""
        self.worlds = [it for it in self.worlds if it != world]
        for pid in self.pids:
            self.actors["server"].end(pid)
        self.pids.clear()
        self.actors["server"].call("DELETE", f"servers/{world.server}")

    def state(self, world: World) -> Any:
        """Return what nobody may have changed who was refused."""
        environment = self.told("owner", "GET", f"environments/{world.kernel}")
        rules = self.told("admin", "GET", "quotas")
        queue = [it["id"] for it in self.told("owner", "GET", "queue")]
        notices = self.told("owner", "GET", "notices")
        # Those of what has ended before are taken down some time.
        return environment, rules, queue, [it for it in notices if it["id"] == world.notice]


def code_of(said: Said) -> str | None:
    return None if said.status < 300 else str(json.loads(said.body)["code"])


def needs_more(row: Row) -> bool:
    """Say whether a row is about more than an environment, its server and its kernel."""
    path = row.path(NAMED)
    return row.shows or "ticket" in path or "notice" in path


def wrong_in(row: Row, actor: str, said: Said, expected: tuple[int, str | None]) -> list[Any]:
    """Return what is wrong with an answer: it is another one, or shows too much, or too little."""
    wrong: list[Any] = []
    seen = SECRET.encode() in said.body
    if (said.status, code_of(said)) != expected:
        wrong.append((actor, said, expected))
    if seen and actor not in SEES:
        wrong.append((actor, "sees", said.body))
    if row.shows and not seen and actor in SEES and expected[0] < 300:
        wrong.append((actor, "does not see", said.body))
    return wrong
