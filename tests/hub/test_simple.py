"""A JupyterHub whose servers all have one uid: the daemon knows their users by their tokens."""

from __future__ import annotations

import os
import signal

from tests.hub.hubs import Hub, until
from tests.integration.daemons import Daemon


def test_servers_of_one_uid_are_different_users(simple: tuple[Hub, Daemon]) -> None:
    hub, daemon = simple
    servers = {name: hub.spawn(name) for name in ("ann", "bob")}
    kernels = {name: server.start_kernel() for name, server in servers.items()}
    for name, server in servers.items():
        said = server.run(kernels[name], "%gpu attach 1")
        found = server.gpu("GET", f"environments/{kernels[name]}").json
        assert (found["user"], found["state"]) == (name, "granted"), said
        visible = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
        assert server.run(kernels[name], visible).strip() == found["grants"][0]["device"]
        assert server.gpu("GET", "health").json["pid"] == daemon.pid
    refused = servers["bob"].gpu("DELETE", f"environments/{kernels['ann']}")
    assert (refused.status, refused.json["code"]) == (403, "not_yours")
    assert "ann" in refused.json["message"]
    said = servers["bob"].run(servers["bob"].start_kernel(), "%gpu attach 0.5")
    assert "ann" in said, "the refusal names who holds what"
    for server in servers.values():
        server.stop()


def test_servers_and_kernels_come_back_by_themselves(simple: tuple[Hub, Daemon]) -> None:
    hub, daemon = simple
    server = hub.spawn("cat")
    kernel = server.start_kernel()
    said = server.run(kernel, "%gpu attach --memory 1G")
    path = f"environments/{kernel}"
    held = server.gpu("GET", path).json["grants"]
    assert held, said
    daemon.kill()
    said = server.run(kernel, "%gpu")
    assert "does not answer" in said
    daemon.start()
    until(lambda: server.gpu("GET", path).status == 200, "the server is registered again")
    assert server.gpu("GET", path).json["grants"] == held
    server.run(kernel, "%gpu release")
    until(lambda: not server.gpu("GET", path).json["grants"], "it was given back")


def test_a_server_whose_token_was_revoked_is_told_so(simple: tuple[Hub, Daemon]) -> None:
    hub, daemon = simple
    server = hub.spawn("cat")
    kernel = server.start_kernel()
    assert server.gpu("GET", "environments").status == 200
    (token,) = (
        it["id"]
        for it in hub.api("GET", "users/cat/tokens").json["api_tokens"]
        if it["note"].startswith("Server at")
    )
    hub.revoke("cat", token)
    os.kill(daemon.pid, signal.SIGHUP)  # everybody is looked up anew

    def locked_out() -> bool:
        found = server.gpu("GET", "environments")
        return found.status == 503 and "does not let this server in" in found.json["message"]

    until(locked_out, "the server is not let in")
    assert "does not know your token" in server.run(kernel, "%gpu")
