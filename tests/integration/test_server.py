"""The server extension, with real kernels and a real broker over simulated devices."""

from __future__ import annotations

from tests.integration.servers import (  # noqa: F401 (fixtures)
    VISIBLE,
    Server,
    jp_server_config,
    provisioner_factory,
    server,
)

HALF = {"fraction": 0.5}


async def test_attach_reaches_an_idle_kernel(server: Server) -> None:
    kernel = await server.start_kernel()
    await server.known(kernel, state="released")
    answer = await server.gpu("PUT", f"environments/{kernel}", HALF)
    assert answer.status == 200, answer.body
    assert answer.json["applied"] == "live"
    device = answer.json["grants"][0]["device"]
    assert await server.evaluate(kernel, VISIBLE) == repr(device)
    gone = await server.gpu("DELETE", f"environments/{kernel}")
    assert gone.json["state"] == "released"
    assert await server.evaluate(kernel, VISIBLE) == "''"
