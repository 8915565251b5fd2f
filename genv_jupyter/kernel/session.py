"""The environment of this very process: which one it is, attaching to it, giving it back."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from genv_jupyter.api.client import Client
from genv_jupyter.errors import Conflict, UnknownEnvironment
from genv_jupyter.isolation import inherited, live
from genv_jupyter.isolation.environ import MARKER, VISIBLE
from genv_jupyter.kernel import inside, origin, pids, remnants, sight, words
from genv_jupyter.kernel.views import StatusView
from genv_jupyter.model import (
    Cuda,
    Device,
    Environment,
    EnvironmentPatch,
    LaunchKind,
    NewEnvironment,
    Request,
)

RESTART_SECONDS = 60.0
_KEEP_HINT = "`%gpu attach 1` attaches one."

# In a fork the driver says that nobody has initialised it: this process must have asked before.
os.register_at_fork(before=live.cuda_state)


class Session:
    """This process, as the broker knows it.

    Parameters
    ----------
    shell
        The IPython of this process.
    client
        How the broker is reached.
    """

    def __init__(self, shell: Any, client: Client | None = None) -> None:
        self.shell = shell
        self.client = client or Client()
        self.terminal = getattr(shell, "kernel", None) is None
        # With a notice the devices were hidden by us, and no environment is named.
        self.pool = inherited.pool() if notice() is None else inherited.server_pool()
        self.told: list[str] = []
        self._pid = 0
        self._id: str | None = None

    def beside(self, client: Client) -> Session:
        """Return the same for another thread, which must not use this one's client."""
        other = copy.copy(self)
        other.client = client
        return other

    # -- which environment ----------------------------------------------------------------------

    def environment(self) -> Environment | None:
        """Return the environment of this process; ``None`` when the broker knows of none.

        ``GENV_JUPYTER_ENVIRONMENT`` is inherited by whatever is started from a notebook, so it is
        believed only where the environment is this process, or the command above it.
        """
        command = inherited.command()
        above = self._get(command) if command else None
        if above is not None:
            return above
        if self._pid == os.getpid() and self._id is not None:
            known = self._get(self._id)
            if known is not None:
                return known
        claimed = os.environ.get(MARKER) or self._kernel_id()
        found = self._get(claimed) if claimed else None
        if found is None or not self._is_this(found):
            return None
        self._pid, self._id = os.getpid(), found.id
        return found

    def ensure(self) -> Environment:
        """Return the environment of this process, telling the broker of the process if needed."""
        found = self.environment()
        if found is None:
            kind: LaunchKind = "shell" if self.terminal else "kernel"
            new = NewEnvironment(kind=kind, pid=os.getpid(), name=self._name(), pool=self.pool)
            found = self.client.create(new)
            self._pid, self._id = os.getpid(), found.id
        return found

    def _get(self, environment: str) -> Environment | None:
        try:
            return self.client.environment(environment)
        except UnknownEnvironment:
            return None

    def _is_this(self, environment: Environment) -> bool:
        if pids.is_this(environment):
            return True
        # A wrapper around the kernel (conda run, a shell script) has the pid that the server
        # knows; the kernel's connection file is named after its id.
        return environment.kind == "kernel" and environment.id == self._kernel_id()

    def _kernel_id(self) -> str | None:
        """Return the id of this kernel, where a kernel manager has given it one."""
        config = getattr(self.shell, "config", {})
        file = Path(str(config.get("IPKernelApp", {}).get("connection_file", "")))
        given = not self.terminal and file.stem.startswith("kernel-")
        return file.stem.removeprefix("kernel-") if given else None

    def _name(self) -> str | None:
        """Find a name that people know this process by."""
        if self.terminal:
            try:
                return f"IPython on {os.ttyname(0).removeprefix('/dev/')}"
            except OSError:  # no terminal behind it
                return f"IPython {os.getpid()}"
        notebook = self.shell.user_ns.get("__vsc_ipynb_file__") or os.environ.get(
            "JPY_SESSION_NAME"
        )
        return Path(str(notebook)).name if notebook else None

    # -- looking --------------------------------------------------------------------------------

    def devices(self, environment: Environment | None) -> list[Device]:
        """Return the devices that this process may ask for."""
        return self.client.devices(None if environment is None else environment.server)

    def status(self, *, head: str = "", environment: Environment | None = None) -> StatusView:
        """Return what this process has, and what there is."""
        lost = False
        if environment is None:
            environment = self.environment()
            lost = self._lost(environment)
            environment = self._synced(environment)
        devices = self.devices(environment)
        remarks = self.remarks(environment, devices)
        if lost and environment is not None and not self._lost(environment):
            remarks.append(origin.loss(environment, mended=True))
        if not head:
            remarks += self.origin(environment)
            remarks += remnants.told(self.client, environment)
        return StatusView(
            environment,
            devices,
            self.client.health(),
            visible=os.environ.get(VISIBLE),
            terminal=self.terminal,
            head=head,
            remarks=remarks,
        )

    def _synced(self, environment: Environment | None) -> Environment | None:
        """Apply what was attached or released from elsewhere and has not reached this process."""
        if environment is None or environment.environ is None or inside.belongs(environment):
            return environment
        on_its_way = environment.applied in ("pending", "unknown")
        missed = bool(environment.grants) and self._lost(environment)
        if not on_its_way and not missed and environment.state != "draining":
            return environment
        return self._applied(environment)

    def _applied(self, environment: Environment) -> Environment:
        """Make this process see its grants, and tell the broker."""
        done = live.apply_environ(environment.environ or {})
        self.told = done["told"]
        patch = EnvironmentPatch(
            applied=done["applied"],
            cuda=done["cuda"],
            revision=done["revision"],
            visible=done["visible"],
        )
        return self.client.patch(environment.id, patch)

    def origin(self, environment: Environment | None) -> list[str]:
        """Say so when no Jupyter server of ours started this process, or its word was lost."""
        if environment is not None and inside.belongs(environment):
            return [inside.sentence(environment)]
        if notice() is not None:
            return []  # a server of ours could not reach the broker, and that is said
        return origin.remarks(self.shell, environment, terminal=self.terminal, pool=self.pool)

    def remarks(self, environment: Environment | None, devices: Sequence[Device]) -> list[str]:
        """Return what is wrong with this process, one sentence each."""
        sentence = notice()
        said = [sentence] if sentence else []
        if environment is not None and inside.belongs(environment):
            return said  # the command's variables, and not ours to look after
        seen = sight.look(environment)
        if environment is not None and self._lost(environment):
            said.append(origin.loss(environment))
            seen = msgspec.structs.replace(seen, set_to=False)  # nobody has edited anything
        return said + sight.remarks(seen, environment, devices)

    def _lost(self, environment: Environment | None) -> bool:
        return environment is not None and not self.terminal and origin.lost(environment)

    # -- changing -------------------------------------------------------------------------------

    def keep(self) -> StatusView:
        """Keep what is held though nothing runs: the countdown of the idle rule begins anew.

        Raises
        ------
        Conflict
            Nothing is held.
        """
        before = self.environment()
        if before is None or not before.grants:
            raise Conflict("There is nothing to keep: no GPU is held here.", hint=_KEEP_HINT)
        after = self.client.patch(before.id, EnvironmentPatch(keep=True))
        return self.status(environment=after, head="Kept: it counts as idle from now on only.")

    def attach(self, request: Request, *, restart: bool = False) -> StatusView:
        """Attach what is asked for and make this process see it.

        Parameters
        ----------
        restart
            Restart the kernel if that is what it takes; this call then does not return.

        Raises
        ------
        GpuError
            Refused; nothing has changed.
        """
        before = self.ensure()
        if inside.belongs(before):
            return inside.attach(self, before, request)
        cuda = _cuda()
        needed = cuda == "initialized" or bool(live.stubborn())
        restart = restart and needed
        if restart and before.server is None:
            raise Conflict(
                "No Jupyter server with genv-jupyter has started this process, so it cannot be "
                "restarted from here.",
                hint="Restart it by hand, and attach first.",
            )
        after = self._asked(before.id, request, cuda, restart)
        if restart and (after.applied != "live" or _held(before) != _held(after)):
            self._restart(after, "Attached; the kernel restarts now to see it.")
        after = self._applied(after)
        same = before.applied == "live" and _held(before) == _held(after)
        view = self.status(environment=after, head="Attached already." if same else "Attached.")
        view.remarks += tuple(self.told)
        return view

    def detach(self, device: str | None = None, *, restart: bool = False) -> StatusView:
        """Give back everything, or one device: hidden in this process first, then freed.

        Raises
        ------
        GpuError
            The broker refused or cannot be reached; this process sees what the broker last heard
            of, and nothing is free that it sees.
        """
        environment = self.environment()
        if environment is None or not environment.grants:
            return self.status(environment=environment, head="There is nothing to release.")
        if inside.belongs(environment):
            return self.status(environment=environment)
        # Nothing is hidden yet, so this says no more than that it is too late, or may not be.
        cuda: Cuda = "initialized" if _cuda() == "initialized" else "unknown"
        after = self.client.detach(environment.id, device=device, cuda=cuda)
        after = self._applied(after)
        draining = [grant for grant in after.grants if grant.state == "draining"]
        if draining and restart and environment.server is not None:
            self._restart(after, "Released; the kernel restarts now to free the device.")
        head = "Released." if not draining else "Released, but still in use here."
        return self.status(environment=after, head=head)

    def _asked(self, mine: str, request: Request, cuda: Cuda, restart: bool) -> Environment:
        """Ask, and wait in the queue if that is wanted: what is said stands below the cell."""

        def attempt() -> Environment:
            return self.client.attach(mine, request, cuda=cuda, restart=restart)

        if request.wait is None:
            return attempt()
        from genv_jupyter.kernel import waiting as queue

        try:
            return queue.attach(
                self.client,
                mine,
                request,
                attempt,
                lambda said: print(words.wrapped(said), flush=True),
            )
        except queue.WaitOver as error:
            raise Conflict(str(error), hint="Wait for longer, or ask for less.") from None
        except queue.LeftQueue as left:
            if left.served is None:
                raise Ended("Left the queue: nothing was attached.") from None
            self._applied(left.served)
            raise Ended("It had just come, and is attached.") from None

    def _restart(self, environment: Environment, head: str) -> None:
        """Have the kernel restarted, and wait for it: the cells behind this one must not run."""
        print(head, flush=True)
        self.client.restart(environment.id)
        try:
            time.sleep(RESTART_SECONDS)
        except KeyboardInterrupt:  # the restart interrupts the running cell first
            raise Restarting(
                "Restarting: the cells behind this one are not run; run them when the kernel is "
                "back."
            ) from None
        raise Conflict(
            f"The kernel was not restarted within {RESTART_SECONDS:.0f} s.",
            hint="Restart it by hand; its grants are kept.",
        )


class Ended(Exception):
    """The cell ends here, as somebody wanted: there is nothing to be shown of where."""


class Restarting(Ended):
    """The cell ends because its kernel is being restarted; the next ones must not run."""


def default_request() -> Request:
    """Return what an ``attach`` without arguments asks for: the project's, or the policy's."""
    from genv_jupyter.kernel import project  # reads TOML: not for the first `%gpu`

    return project.filled(Request(), project.here())


def attach_for(shell: Any, framework: str) -> str:
    """Attach the default request because a framework is being imported; return what to say."""
    view = Session(shell).attach(default_request())
    names = [
        words.device_label(next((d for d in view.devices if d.uuid == grant.device), None))
        + f": {words.amount(grant)}"
        for grant in (view.environment.grants if view.environment else ())
    ]
    mark = words.mark(view.devices)
    return f"GPU: attached for {framework}: {'; '.join(names)}. {mark}".rstrip()


def notice() -> str | None:
    """Return what the provisioner wanted to be said, when something was broken on our side."""
    stub = sight.stub()
    return None if stub is None else stub.notice


def _cuda() -> Cuda:
    return "initialized" if live.cuda_state() == "initialized" else "not_initialized"


def _held(environment: Environment) -> list[tuple[str, int, int | None, bool]]:
    return sorted(
        (grant.device, grant.memory, grant.compute, grant.exclusive)
        for grant in environment.grants
        if grant.state != "draining"
    )
