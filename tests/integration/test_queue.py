"""Waiting in the queue with real processes: cells, commands and the sidebar, Ctrl-C and kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genv_jupyter.api.client import Client
from genv_jupyter.model import QueueTicket, Request
from tests.integration.kernels import Server as Desk
from tests.integration.servers import VISIBLE, Server, attach, eventually
from tests.integration.terminals import GPU, Terminal, jupyter_gpu

ONE = pytest.mark.simulate("1x24GiB")


@pytest.fixture
def desk(tmp_path: Path, broker_home: Path) -> Iterator[Desk]:
    """Play a Jupyter server for real kernels."""
    with Desk(tmp_path) as played:
        yield played


@contextlib.contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def holder(client: Client) -> Iterator[subprocess.Popen[bytes]]:
    """Have the only GPU."""
    with started(*GPU, "run", "1", "--name", "holder", "--", "sleep", "600") as process:
        until(lambda: any(it.name == "holder" and it.grants for it in client.environments()))
        yield process


def until(look: Callable[[], object]) -> None:
    """Wait for something; the test's own timeout is the limit."""
    while not look():
        time.sleep(0.05)


def names(client: Client) -> list[str | None]:
    return [ticket.name for ticket in client.queue()]


def waiting(client: Client) -> list[QueueTicket]:
    return [ticket for ticket in client.queue() if ticket.state == "waiting"]


# -- commands -------------------------------------------------------------------------------------


@ONE
def test_commands_are_served_in_the_order_they_came(broker_home: Path, tmp_path: Path) -> None:
    client, order = Client(), tmp_path / "order"
    with holder(client) as held, contextlib.ExitStack() as stack:
        waiters = []
        for number in range(3):
            note = f"echo {number} >> {order}"
            command = [*GPU, "run", "-q", "1", "--wait", "--name", f"w{number}", "--"]
            waiters.append(stack.enter_context(started(*command, "sh", "-c", note)))
            until(lambda n=number: f"w{n}" in names(client))
        assert names(client) == ["w0", "w1", "w2"]
        held.kill()
        assert [waiter.wait() for waiter in waiters] == [0, 0, 0]
    assert order.read_text().split() == ["0", "1", "2"]
    assert client.queue() == []


@ONE
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_command_that_is_ended_leaves_the_queue(broker_home: Path, number: signal.Signals) -> None:
    client = Client()
    with (
        holder(client),
        started(*GPU, "run", "1", "--wait", "--name", "w", "--", "true") as waiter,
    ):
        until(lambda: names(client) == ["w"])
        waiter.send_signal(number)
        assert waiter.wait() == -number
        until(lambda: client.queue() == [])


@ONE
def test_broker_that_is_killed_loses_no_place(broker_home: Path, tmp_path: Path) -> None:
    client, order = Client(), tmp_path / "order"
    with holder(client) as held, contextlib.ExitStack() as stack:
        waiters = []
        for number in range(2):
            command = [*GPU, "run", "-q", "1", "--wait=1h", "--name", f"w{number}", "--"]
            note = f"echo {number} >> {order}"
            waiters.append(stack.enter_context(started(*command, "sh", "-c", note)))
            until(lambda n=number: f"w{n}" in names(client))
        before = client.queue()
        os.kill(client.health().pid, signal.SIGKILL)
        after = client.queue()
        assert [(it.id, it.since, it.position) for it in after] == [
            (it.id, it.since, it.position) for it in before
        ]
        held.kill()
        assert [waiter.wait() for waiter in waiters] == [0, 0]
    assert order.read_text().split() == ["0", "1"]


@ONE
def test_queue_leases_and_asking_in_a_terminal(broker_home: Path) -> None:
    client = Client()
    command = [*GPU, "run", "1", "--for", "2h", "--name", "holder", "--", "sleep", "600"]
    with started(*command):
        until(lambda: any(it.grants for it in client.environments()))
        assert "until" in jupyter_gpu("envs").stdout
        with Terminal([*GPU, "run", "1", "--wait", "--name", "w", "--", "true"]) as waiter:
            said = waiter.expect("when a lease ends")
            assert "First in the queue" in said
            until(lambda: names(client) == ["w"])
            shown = jupyter_gpu("queue").stdout
            assert "w" in shown and "(a lease ends)" in " ".join(shown.split())
            asked = jupyter_gpu("ask", "--kernel", "w", "an", "hour?")
            assert asked.returncode == 0 and "holder" in asked.stdout, asked.stderr
            again = jupyter_gpu("ask", "--kernel", "w")
            assert again.returncode == 1 and "a moment ago" in again.stderr
            [notice] = [it for it in client.notices() if it.kind == "ask"]
            assert notice.message.endswith("asks: an hour?")
            before = next(it.expires for it in client.environments() if it.name == "holder")
            awaited = jupyter_gpu("extend", "1h", "--kernel", "holder")
            assert awaited.returncode == 1 and "waits for what is held here" in awaited.stderr
            left = jupyter_gpu("leave", "--kernel", "w")
            assert left.stdout.startswith("Left the queue."), left.stderr
            waiter.expect("gone: it was left elsewhere")
            done = jupyter_gpu("extend", "1h", "--kernel", "holder", "--json")
            after = json.loads(done.stdout)["expires"]
            assert before is not None and after > before.isoformat()[:19]
    assert jupyter_gpu("leave", "--kernel", "nobody").returncode == 1


# -- cells ----------------------------------------------------------------------------------------


@ONE
def test_cell_waits_and_goes_on_when_its_turn_comes(desk: Desk) -> None:
    kernel = desk.kernel("llm")
    with holder(desk.client) as held:
        cell = kernel.begin("%gpu attach 1 --wait 1h --for 2h\nimport os\nprint('then')")
        until(lambda: names(desk.client) == ["llm.ipynb"])
        environment = kernel.environment()
        assert environment.state == "waiting" and environment.pending is not None
        held.kill()
        ran = kernel.finish(cell)
    assert ran.ok, ran
    assert "Waiting (Ctrl-C leaves the queue). First in the queue." in ran.stdout
    assert "then" in ran.stdout
    environment = kernel.environment()
    assert environment.applied == "live" and environment.expires is not None
    assert environment.request == Request(gpus=1, duration="2h")
    assert kernel.value(VISIBLE) == environment.grants[0].device
    assert (
        desk.client.queue() == []
        and [it for it in desk.client.notices() if it.kind == "queue"] == []
    )


@ONE
def test_interrupted_cell_leaves_the_queue(desk: Desk) -> None:
    kernel = desk.kernel("llm")
    with holder(desk.client):
        cell = kernel.begin("%gpu attach 1 --wait\nprint('never')")
        until(lambda: names(desk.client) == ["llm.ipynb"])
        kernel.manager.interrupt_kernel()
        ran = kernel.finish(cell)
        assert ran.status == "error" and ran.traceback == ["Left the queue: nothing was attached."]
        assert "never" not in ran.stdout
        assert desk.client.queue() == []
        assert kernel.environment().state == "released"


@ONE
def test_kernel_that_is_restarted_while_it_waits_leaves_the_queue(desk: Desk) -> None:
    kernel = desk.kernel("llm")
    with holder(desk.client):
        kernel.begin("%gpu attach 1 --wait")
        until(lambda: names(desk.client) == ["llm.ipynb"])
        kernel.restart()
        until(lambda: desk.client.queue() == [])


@ONE
def test_end_of_the_wait_ends_the_cell_with_who_holds_it(desk: Desk) -> None:
    kernel = desk.kernel("llm")
    with holder(desk.client):
        ran = kernel.run("%gpu attach 1 --wait 1s")
    assert ran.status == "error"
    assert "The wait of 1 s is over. No GPU is free" in " ".join(ran.traceback)
    assert "holder of" in " ".join(ran.traceback) and desk.client.queue() == []


@ONE
def test_verbs_around_the_queue(desk: Desk) -> None:
    holding, other = desk.kernel("a"), desk.kernel("b")
    assert holding.run("%gpu attach 1 --for 1h").ok
    assert "A lease: until" in holding.run("%gpu").text
    assert "Extended." in holding.run("%gpu extend 1h").text
    assert "Nobody waits" in other.run("%gpu queue").text
    assert other.run("%gpu leave").error.startswith("There is no place in the queue to leave.")
    desk.client.attach(other.id, Request(gpus=1, wait="1h"))
    assert "In the queue for 1 GPU" in other.run("%gpu").text
    assert "b.ipynb (here)" in other.run("%gpu queue").text
    assert "a.ipynb" in other.run("%gpu ask how's an hour?").text
    assert "how's an hour?" in next(
        it.message for it in desk.client.notices() if it.environment == holding.id
    )
    assert "Left the queue." in other.run("%gpu leave").text
    assert desk.client.queue() == []


# -- the sidebar ----------------------------------------------------------------------------------


@ONE
async def test_sidebar_waits_for_a_kernel(server: Server) -> None:
    first, second = await server.start_kernel(), await server.start_kernel()
    await attach(server, first, {"gpus": 1})
    asked = await server.gpu("PUT", f"environments/{second}", {"gpus": 1, "wait": "1h"})
    assert (asked.status, asked.json["state"]) == (202, "waiting")
    assert asked.json["pending"] == {"gpus": 1, "wait": "1h"} and asked.json["grants"] == []
    [ticket] = (await server.gpu("GET", "queue")).json
    assert (ticket["environment"], ticket["position"]) == (second, 1)
    assert (await server.gpu("DELETE", f"environments/{first}")).status == 200

    async def seen() -> bool:
        return bool(await server.evaluate(second, VISIBLE) != "''")

    await eventually(seen, "the kernel sees what came")
    device = (await server.environment(second))["grants"][0]["device"]
    assert await server.evaluate(second, VISIBLE) == repr(device)
    [notice] = [it for it in (await server.gpu("GET", "notices")).json if it["kind"] == "queue"]
    assert "keep" in notice["actions"]
    kept = await server.gpu("PATCH", f"environments/{second}", {"keep": True})
    assert kept.status == 200, kept.body
    assert (await server.gpu("GET", "queue")).json == []


@ONE
async def test_sidebar_leaves_and_asks(server: Server) -> None:
    first, second = await server.start_kernel(), await server.start_kernel()
    await attach(server, first, {"gpus": 1})
    await server.gpu("PUT", f"environments/{second}", {"gpus": 1, "wait": 60})
    asked = await server.gpu("POST", f"environments/{second}/ask", {"message": "soon?"})
    assert [it["environment"] for it in asked.json["holders"]] == [first]
    assert (await server.gpu("POST", f"environments/{second}/ask", {})).status == 429
    [notice] = [it for it in (await server.gpu("GET", "notices")).json if it["kind"] == "ask"]
    assert notice["environment"] == first
    answered = await server.gpu("POST", f"notices/{notice['id']}/answer", {"minutes": 30})
    assert answered.status == 200, answered.body
    [answer] = [it for it in (await server.gpu("GET", "notices")).json if it["kind"] == "ask"]
    assert answer["environment"] == second and "in 30 min" in answer["message"]
    [ticket] = (await server.gpu("GET", "queue")).json
    assert (await server.gpu("DELETE", f"queue/{ticket['id']}")).status == 200
    gone = await server.gpu("DELETE", f"queue/{ticket['id']}")
    assert (gone.status, gone.json["code"]) == (404, "unknown_ticket")
    assert (await server.environment(second))["state"] == "released"
