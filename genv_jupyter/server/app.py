"""The server extension: traits, construct, register."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import entry_points
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Bool, Enum, Float, Unicode, validate
from traitlets.config import Config

from genv_jupyter.demand import read_request
from genv_jupyter.errors import GpuError
from genv_jupyter.server.activity import Activity
from genv_jupyter.server.handlers import ROUTES
from genv_jupyter.server.host import HOST_SETTING, Policy
from genv_jupyter.server.kernels import ServerHost
from genv_jupyter.server.provisioner import GenvProvisioner

PROVISIONER = "genv-provisioner"
KERNELS = "genvJupyterKernels"
"""What the pages are told of where kernels run."""


class GenvJupyterApp(ExtensionApp):
    """Shared GPUs: relays the sidebar's calls to the broker, and starts kernels with their GPUs."""

    name = "genv_jupyter"
    load_other_extensions = True
    classes = [GenvProvisioner]  # noqa: RUF012 (traitlets reads a class attribute)

    enabled = Bool(
        True,
        config=True,
        help="Manage the GPUs of this server's kernels. Off: kernels start as without the package.",
    )
    unattached = Enum(
        ["hide", "all"],
        "hide",
        config=True,
        help="What a kernel without a grant sees: no GPU ('hide'), or all of the server's ('all').",
    )
    on_import = Enum(
        ["notice", "attach", "off"],
        "notice",
        config=True,
        help="What happens when a GPU framework is imported in a kernel without a grant: one line "
        "says that GPUs are hidden ('notice'), `default_request` is attached at that moment "
        "('attach'), or nothing ('off').",
    )
    auto_attach = Unicode(
        "",
        config=True,
        help="What every kernel is given at its start where there is room, such as '0.5', '1' or "
        "'4G'; empty: nothing. A kernelspec's own request comes first.",
    )
    default_request = Unicode(
        "1",
        config=True,
        help="What `on_import = 'attach'` asks for, such as '0.5' (half a GPU) or '1'.",
    )

    notebook_requests = Bool(
        False,
        config=True,
        help="Whether a kernel is given at its start what its notebook's metadata asks for "
        "(`genv_jupyter.request`, which the sidebar writes there when *Notebooks remember their "
        "GPU* is set). Somebody else's notebook then asks for what they had.",
    )

    gpu_activity = Float(
        60.0,
        min=0.0,
        config=True,
        help="Seconds between two looks at whether a kernel computes on a GPU: then it counts as "
        "activity of this server, as for jupyterhub-idle-culler. A grant that is not used never "
        "does. 0: it never counts.",
    )

    host: ServerHost | None = None
    _looking: asyncio.Task[None] | None = None

    @validate("auto_attach", "default_request")
    def _check_request(self, proposal: Any) -> str:
        try:
            read_request(proposal["value"])
        except GpuError as error:
            from traitlets import TraitError

            raise TraitError(f"{proposal['trait'].name}: {error}") from None
        return str(proposal["value"])

    def _link_jupyter_server_extension(self, serverapp: Any) -> None:
        """Become the default provisioner, unless the user has chosen one.

        This runs before the kernel manager exists; files in ``jupyter_server_config.d`` are not
        read for this setting.
        """
        super()._link_jupyter_server_extension(serverapp)
        if not self._usable():
            return
        chosen = "default_provisioner_name" in serverapp.config.KernelProvisionerFactory
        if chosen or os.environ.get("JUPYTER_DEFAULT_PROVISIONER_NAME"):
            return
        group = "jupyter_client.kernel_provisioners"
        if not entry_points(group=group, name=PROVISIONER):
            # Naming a provisioner that does not exist would stop every kernel from starting.
            self.log.warning("genv-jupyter is not installed properly: kernels are not managed.")
            return
        serverapp.update_config(
            Config(KernelProvisionerFactory={"default_provisioner_name": PROVISIONER})
        )

    def initialize_settings(self) -> None:
        if self._usable():
            policy = Policy(
                unattached=self.unattached,
                on_import=self.on_import,
                auto_attach=self.auto_attach,
                default_request=self.default_request,
                notebook_requests=self.notebook_requests,
            )
            self.host = ServerHost(self.serverapp, policy, self.log)
            self.settings[HOST_SETTING] = self.host
            server = self.serverapp
            if server is not None and server.gateway_config.gateway_enabled:
                # Its kernels are on another host, whose GPUs are not those that are seen here.
                self.settings.setdefault("page_config_data", {})[KERNELS] = "elsewhere"

    def initialize_handlers(self) -> None:
        if self.host is not None:
            self.handlers.extend((path, verb, {"host": self.host}) for path, verb in ROUTES)

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        if self.host is not None:
            self.host.start()
            if self.gpu_activity:
                times = serverapp.web_app.settings.setdefault("last_activity_times", {})
                looking = Activity(self.host, times, self.gpu_activity)
                self._looking = asyncio.create_task(looking.watch())

    async def stop_extension(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self.host is not None:
            await self.host.close()

    def _usable(self) -> bool:
        if self.enabled and not sys.platform.startswith("linux"):
            self.log.warning("genv-jupyter works on Linux only: nothing is managed or hidden here.")
            return False
        return bool(self.enabled)
