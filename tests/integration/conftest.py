"""Fixtures of the integration tests."""

from __future__ import annotations

from tests.integration.servers import (  # noqa: F401 (fixtures are found by their names here)
    add_kernelspec,
    foreign_python,
    jp_server_config,
    provisioner_factory,
    server,
)
