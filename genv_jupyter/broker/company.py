"""Whether a process is of the same Hub user as an environment: such users have no uid of their own.

In containers everybody has the same uid, and anybody may say in a variable whose process it is.
The pid namespace or the cgroup of the environment's process is proof where nobody else's server or
environment is in it; outside of containers its uid is. Users who share all three
(``SimpleLocalProcessSpawner``) cannot be told apart: there nothing is proved.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from genv_jupyter.broker.books import Books
from genv_jupyter.isolation import pid_namespaces, processes
from genv_jupyter.ledger.rows import EnvironmentRow

Same = Callable[[int, int], bool]


def proves(books: Books, row: EnvironmentRow, pid: int) -> bool:
    """Say whether a process is provably of the user whose environment that is."""
    if row.pid is None or row.start is None or not processes.alive(row.pid, row.start):
        return False
    if not _same_uid(pid, row.pid):
        return False
    tests: list[Same] = [pid_namespaces.together, _same_cgroup]
    if not (pid_namespaces.contained(pid) or pid_namespaces.contained(row.pid)):
        tests.append(_same_uid)
    others = _others(books, row.owner)
    return any(
        same(pid, row.pid) and not any(same(other, row.pid) for other in others) for same in tests
    )


def refutes(row: EnvironmentRow, pid: int) -> bool:
    """Say whether a process is another user's for sure: what is only not proved may be theirs."""
    if row.pid is None or not _same_uid(pid, row.pid):
        return True
    contained = pid_namespaces.contained(pid) or pid_namespaces.contained(row.pid)
    near = pid_namespaces.together(pid, row.pid) or _same_cgroup(pid, row.pid)
    return contained and not near


def _others(books: Books, owner: str) -> set[int]:
    """Return the processes of everybody else that are known, and the broker itself.

    Turns ask without the lock: each list is made in one step.
    """
    found = {it.pid for it in list(books.environments.values()) if it.owner != owner}
    found |= {it.pid for it in list(books.servers.values()) if it.owner != owner}
    return {os.getpid(), *(pid for pid in found if pid is not None)}


def _same_uid(pid: int, of: int) -> bool:
    uid = processes.uid_of(of)
    return uid is not None and processes.uid_of(pid) == uid


def _same_cgroup(pid: int, of: int) -> bool:
    """Say whether a process is in another's cgroup, or below."""
    own, path = processes.cgroup(of), processes.cgroup(pid)
    return own is not None and path is not None and (path == own or path.startswith(f"{own}/"))
