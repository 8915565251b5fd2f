"""The kernel provisioner: a kernel starts with the variables of its GPU environment.

It fails open. Whatever is broken on our side, the kernel starts, at most two seconds later, hidden
from the GPUs (at a restart: with what it had), and a sentence for ``%gpu`` says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Any as AnyTrait
from traitlets import Enum, Unicode, default

from genv_jupyter.api.rendezvous import host_socket
from genv_jupyter.demand import read_request
from genv_jupyter.errors import BrokerDown, Conflict, GpuError, NotYours
from genv_jupyter.isolation import inherited
from genv_jupyter.isolation.environ import MPS_PIPE, NO_MPS, PROGRAMS, VISIBLE
from genv_jupyter.model import Request
from genv_jupyter.server import variables
from genv_jupyter.server.host import Host, host_of
from genv_jupyter.server.remembered import remembered
from genv_jupyter.server.reports import LEAVE_SECONDS, Kernel, Started
from genv_jupyter.server.variables import Variables
from genv_jupyter.server.workers import heard
from genv_jupyter_stub import NOTICE

START_SECONDS = 1.8
"""For which the start of a kernel waits for the broker."""

END_SECONDS = 1.0
"""For which the end of a kernel waits until the broker has heard of it."""

_HINT = "Started without GPUs; `%gpu doctor` says more."


class GenvProvisioner(LocalProvisioner):
    """Starts kernels as the local provisioner does, each with its GPU environment.

    The traits may be set for one kernelspec (``metadata.kernel_provisioner.config``); those marked
    so also in a configuration file.
    """

    gpus = AnyTrait(None, allow_none=True, help="Whole GPUs that each kernel asks for: 1, 2, ...")
    fraction = AnyTrait(
        None, allow_none=True, help="Part of one GPU that each kernel asks for: 0 < fraction < 1."
    )
    memory = AnyTrait(
        None, allow_none=True, help="GPU memory that each kernel asks for: bytes, or such as '4G'."
    )
    devices = AnyTrait(
        None, allow_none=True, help="GPUs that each kernel asks for: UUIDs, prefixes or indices."
    )
    processes = AnyTrait(
        None, allow_none=True, help="Processes of a kernel that will share its GPU, 1 to 48."
    )
    mps = AnyTrait(None, allow_none=True, help="'on', 'off' or 'auto': whether under NVIDIA MPS.")
    name = AnyTrait(None, allow_none=True, help="What the kernels' environments are called.")

    unattached = Enum(
        ["hide", "all"],
        config=True,
        help="What a kernel without a grant sees: no GPU ('hide'), or all of the server's ('all').",
    )
    on_import = Enum(
        ["notice", "attach", "off"],
        config=True,
        help="What happens when a GPU framework is imported in a kernel without a grant: one line "
        "says that GPUs are hidden ('notice'), `default_request` is attached at that moment "
        "('attach'), or nothing ('off').",
    )
    auto_attach = Unicode(
        config=True,
        help="What every kernel is given at its start where there is room, such as '0.5', '1' or "
        "'4G'; empty: nothing.",
    )
    default_request = Unicode(
        config=True, help="What `on_import = 'attach'` asks for, such as '0.5' or '1'."
    )

    def __init__(self, **kwargs: Any) -> None:
        known = self.trait_names()
        self._unknown = [name for name in kwargs if name not in known]
        for name in self._unknown:
            del kwargs[name]
        super().__init__(**kwargs)
        self._kernel: Kernel | None = None
        self._launched = False
        self._watched = False
        self._asked = False
        self._died: int | None = None

    @property
    def _host(self) -> Host:
        return host_of(self.parent)

    @default("unattached")
    def _default_unattached(self) -> str:
        return self._host.policy.unattached

    @default("on_import")
    def _default_on_import(self) -> str:
        return self._host.policy.on_import

    @default("auto_attach")
    def _default_auto_attach(self) -> str:
        return self._host.policy.auto_attach

    @default("default_request")
    def _default_default_request(self) -> str:
        return self._host.policy.default_request

    # -- hooks of the kernel manager --------------------------------------------------------------

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Compute the variables of the process that is about to start."""
        kwargs = await super().pre_launch(**kwargs)
        if inherited.command() is not None:
            return kwargs  # it belongs to the command above us, and sees that one's devices
        env: dict[str, str] = kwargs["env"]
        try:
            result = await self._start(env)
        except GpuError as error:
            result = self._fail_open(error)
        except Exception as error:
            # Raising here would cost the user the kernel, and at a restart leave a dead entry.
            self.log.exception("The GPU environment of kernel %s failed.", self.kernel_id)
            result = self._fail_open(BrokerDown(f"GPU management failed: {error}."))
        if self._kernel is not None:
            self._kernel.variables = result
        argv = self.kernel_spec.argv
        variables.put(env, result, os.environ, argv[0] if argv else None)
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start the process; a first start that fails gives back what was reserved for it."""
        try:
            return await super().launch_kernel(cmd, **kwargs)
        except BaseException as error:
            # No cleanup follows. At a restart another may come: there the deadline decides.
            if self._kernel is not None and not self._launched:
                self._end()
            elif self._kernel is not None and isinstance(error, Exception):
                self._host.reports.not_started(self._kernel, error)
            raise

    async def post_launch(self, **kwargs: Any) -> None:
        """Tell the broker that the process exists."""
        await super().post_launch(**kwargs)
        self._asked, self._died = False, None
        if self._kernel is None:
            return
        with self._without_harm():
            if not self._watched and self.parent is not None:
                self._watched = True
                self.parent.add_restart_callback(self._end, "dead")
            self._host.watch(self._kernel, self.parent, restarted=self._launched)
            self._launched = True
            if self.pid is not None:
                self._host.reports.running(self._kernel, self.pid)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Note that the process ends because it was asked to."""
        self._asked = True
        await super().shutdown_requested(restart=restart)

    async def terminate(self, restart: bool = False) -> None:
        """Ask the process to end, after it was taken off MPS."""
        await self._see_death()
        await self._leave_mps()
        await super().terminate(restart=restart)

    async def kill(self, restart: bool = False) -> None:
        """End the process, after it was taken off MPS."""
        await self._see_death()
        await self._leave_mps()
        await super().kill(restart=restart)

    async def cleanup(self, restart: bool = False) -> None:
        """Keep the environment over a restart; otherwise give it back."""
        await super().cleanup(restart=restart)
        if self._kernel is None:
            return
        with self._without_harm():
            if restart:
                self._host.forget(self.kernel_id)
                self._host.reports.restarting(self._kernel, self._died)
                return
            # One that is not heard of now is told again when the broker is back.
            ended = self._end()
            error = None if ended is None else await heard(ended, END_SECONDS)
            if error is not None:
                self.log.info("Kernel %s and the GPU broker: %s", self.kernel_id, error)

    async def _see_death(self) -> None:
        """Note with which status the process has ended before anybody asked it to."""
        if not self._asked and self._died is None and self.has_process:
            self._died = await self.poll()

    async def _leave_mps(self) -> None:
        """Take the process off MPS: what others have there suffers from a client that is killed.

        Never at an interrupt, since CUDA works no more in it afterwards. Whatever comes of it, the
        signal follows.
        """
        kernel = self._kernel
        if kernel is None:
            return
        had = (kernel.environ, kernel.variables, kernel.started)
        if all((environ or {}).get(MPS_PIPE) in (None, NO_MPS) for environ in had):
            return
        with self._without_harm():
            error = await heard(self._host.reports.leaving(kernel), LEAVE_SECONDS)
            if error is not None:
                self.log.info("Kernel %s is not taken off MPS: %s", self.kernel_id, error)

    # -- ours -----------------------------------------------------------------------------------

    async def _start(self, env: dict[str, str]) -> Variables:
        """Tell the broker of a start, and return what the process gets."""
        host = self._host
        if not _is_uuid(self.kernel_id):
            raise BrokerDown(
                "This kernel's id is not a UUID, so its GPUs are not managed.",
                hint="Let Jupyter choose the ids of kernels.",
            )
        request: Request | None = None
        trouble: GpuError | None = None
        if self._kernel is None:
            self._kernel = Kernel(self.kernel_id)
            self._kernel.path = host.path_of(env.get("JPY_SESSION_NAME"))
            self._kernel.previous = await host.predecessor()
            request, trouble = self._request()
            if host.policy.notebook_requests:
                try:
                    request = await remembered(env.get("JPY_SESSION_NAME")) or request
                except GpuError as error:
                    trouble = error
        kernel = self._kernel
        kernel.next_launch()
        kernel.unattached = "all" if self.unattached == "all" else "hide"
        pool = env.get(VISIBLE)
        kernel.pool = pool if pool != host.reports.link.pool else None
        started = await self._ask(kernel, request)
        trouble = started.refusal or trouble
        environ = kernel.started = started.environment.environ
        if environ is not None and variables.attached(environ):
            result = variables.granted(environ)
        else:
            result = self._unattached(kernel)
        said = [str(trouble) if trouble is not None else "", started.environment.ended or ""]
        notice = " ".join(filter(None, said))
        return {**result, NOTICE: notice} if notice else result

    async def _ask(self, kernel: Kernel, request: Request | None) -> Started:
        """Wait for the broker's answer to a start, but not for long."""
        reports = self._host.reports
        abandoned = threading.Event()
        starting = asyncio.wrap_future(reports.starting(kernel, request, abandoned))
        try:
            return await asyncio.wait_for(starting, START_SECONDS)
        except TimeoutError:
            abandoned.set()
            raise BrokerDown(f"The GPU broker did not answer within {START_SECONDS:g} s.") from None
        except (Conflict, NotYours):
            # Another server's living kernel has this id: what it holds is not ours to end.
            self._kernel = None
            reports.kernels.pop(kernel.id, None)
            raise

    def _request(self) -> tuple[Request | None, GpuError | None]:
        """Return what the kernelspec or the policy asks for, and what is wrong with it."""
        trouble: GpuError | None = None
        if self._unknown:
            trouble = BrokerDown(
                f"Unknown in metadata.kernel_provisioner.config: {', '.join(self._unknown)}."
            )
        try:
            names = ("gpus", "fraction", "memory", "devices", "processes", "mps", "name")
            request = variables.build_request({name: getattr(self, name) for name in names})
            return request or read_request(self.auto_attach), trouble
        except GpuError as error:
            return None, error

    def _fail_open(self, error: GpuError) -> Variables:
        """Return what the process starts with when we cannot do our part."""
        notice = f"{error.message} {error.hint or _HINT}".strip()
        self.log.warning("Kernel %s: %s", self.kernel_id, notice)
        kernel = self._kernel
        if kernel is not None:
            kernel.started = kernel.environ
        if kernel is None or kernel.environ is None:  # the broker has never heard of it
            known = None if kernel is None else kernel.id
            return variables.unmanaged(known, self.unattached, notice)
        if variables.attached(kernel.environ):
            result = variables.granted(kernel.environ)
        else:
            result = self._unattached(kernel)
        return {**result, NOTICE: notice}

    def _unattached(self, kernel: Kernel) -> Variables:
        return variables.unattached(
            kernel.id,
            self.unattached,
            self.on_import,
            self.default_request,
            variables.granted(kernel.environ or {}).get(PROGRAMS),
            every=host_socket() is not None,
        )

    @contextlib.contextmanager
    def _without_harm(self) -> Iterator[None]:
        """Whatever goes wrong in here, the kernel starts, restarts and ends as without us."""
        try:
            yield
        except Exception:
            self.log.exception("The GPU environment of kernel %s failed.", self.kernel_id)

    def _end(self) -> Future[None] | None:
        """The kernel is gone for good: shut down, given up, or never there."""
        kernel = self._kernel
        if kernel is None:
            return None
        self._kernel = None
        self._launched = False
        self._host.forget(kernel.id)
        return self._host.reports.ended(kernel)


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
