"""A JupyterHub whose servers run as their users' own Unix users."""

from __future__ import annotations

from tests.hub.hubs import Hub
from tests.integration.daemons import Daemon, User


def test_a_server_of_the_hub_attaches_through_the_daemon(
    local: tuple[Hub, Daemon], users: dict[str, User]
) -> None:
    hub, daemon = local
    server = hub.spawn("ann")
    kernel = server.start_kernel()
    said = server.run(kernel, "%gpu attach 0.5")
    found = server.gpu("GET", f"environments/{kernel}").json
    assert found["state"] == "granted", said
    assert found["user"] == users["ann"].name
    assert server.gpu("GET", "health").json["pid"] == daemon.pid
    visible = server.run(kernel, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])").strip()
    assert visible == found["grants"][0]["device"]
