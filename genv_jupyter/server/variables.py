"""The variables that a kernel is started with: pure functions."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, MutableMapping

import msgspec

from genv_jupyter.demand import demand_of
from genv_jupyter.errors import BadRequest
from genv_jupyter.isolation import caps
from genv_jupyter.isolation.environ import MARKER, ORDER, PROGRAMS, REVISION, VISIBLE
from genv_jupyter.isolation.inherited import COMMAND, DEFAULT_REQUEST, POOL
from genv_jupyter.isolation.live import accepted, put_first
from genv_jupyter.model import Request
from genv_jupyter_stub import NOTICE, ON_IMPORT, UNATTACHED

_PASSED_ON = (
    "GENV_JUPYTER_HOME",
    "GENV_JUPYTER_SIMULATE",
    "GENV_JUPYTER_SOCKET",
    "GENV_JUPYTER_HOST_SOCKET",
)
_PER_KERNEL = (
    *(MARKER, REVISION, COMMAND, POOL, UNATTACHED, ON_IMPORT, DEFAULT_REQUEST, NOTICE),
    PROGRAMS,
)
_CAPS = (caps.LIMIT, caps.TOTAL)

Variables = dict[str, str | None]
"""What to set, and with ``None`` to unset."""


def attached(environ: Mapping[str, str | None] | None) -> bool:
    """Say whether an environment's variables name granted devices."""
    return environ is not None and environ.get(ORDER) is not None


def granted(environ: Mapping[str, str | None]) -> Variables:
    """Return the variables of a kernel with devices: those that are the broker's to decide."""
    return accepted(environ)


def unattached(
    kernel: str,
    policy: str,
    on_import: str,
    request: str,
    programs: str | None = None,
    *,
    every: bool = False,
) -> Variables:
    """Return the variables of a kernel without devices: our stub in the kernel does the hiding.

    ``every``: they hide by themselves, in kernels that cannot import us too.
    """
    variables: Variables = {MARKER: kernel, UNATTACHED: policy, ON_IMPORT: on_import}
    if programs is not None and policy == "hide":
        variables[PROGRAMS] = programs
    if every and policy == "hide":
        variables[VISIBLE] = ""
    if on_import == "attach":
        variables[DEFAULT_REQUEST] = request
    return variables


def unmanaged(kernel: str | None, policy: str, notice: str) -> Variables:
    """Return the variables of a kernel that the broker does not know: hidden, and told why.

    ``kernel`` is its id where the broker may come to know it later.
    """
    variables: Variables = {NOTICE: notice}
    if kernel is not None:
        variables[MARKER] = kernel
    if policy == "hide":
        variables[VISIBLE] = ""
    return variables


def put(
    env: MutableMapping[str, str],
    variables: Mapping[str, str | None],
    ours: Mapping[str, str],
    program: str | None = None,
) -> None:
    """Bring variables into the environment of a process that is about to start.

    What the environment has of another kernel's (the server itself may have been started in one)
    goes. ``ours`` is this process's environment: the kernel must find the same broker.
    ``program`` is what will be started: which frameworks are beside it decides some variables.
    """
    put_first(env, None)
    for name in _PER_KERNEL + _CAPS:
        env.pop(name, None)
    for name in _PASSED_ON:
        if name in ours:
            env.setdefault(name, ours[name])
    for name, value in variables.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    # In a kernel without devices the stub does this, unless they are hidden from every kernel.
    if PROGRAMS in env and (UNATTACHED not in env or variables.get(VISIBLE) == ""):
        put_first(env, env[PROGRAMS])
    found = None if program is None else shutil.which(program, path=env.get("PATH"))
    caps.settle(env, {} if found is None else caps.installed(caps.beside(found)))


def build_request(parts: Mapping[str, object]) -> Request | None:
    """Build the request of a kernelspec from its settings; none where nothing is set.

    Raises
    ------
    BadRequest, OutOfRange
        The settings are not a request.
    """
    given = {name: value for name, value in parts.items() if value not in (None, "", [], ())}
    if not given:
        return None
    try:
        request = msgspec.convert(given, Request)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"The kernelspec's GPU request cannot be read: {error}.",
            hint="Correct metadata.kernel_provisioner.config in its kernel.json.",
        ) from None
    demand_of(request)
    return request
