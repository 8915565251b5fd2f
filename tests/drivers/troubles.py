"""The table of docs/drivers.md: one entry a row, each with what makes it so and what must follow.

What stands in “quotation marks” in ``shows`` is said to the user, word for word.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.drivers.stage import Stage
from tests.fakedriver import GIB, MIB, Scenario, device, instance, instance_uuid, uuid
from tests.unit.brokers import Kernel

A, B = uuid(0), uuid(1)
TOTAL = 24 * GIB
MEMORY = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")

Change = Callable[[Stage], object]
Seen = Callable[[Stage], bool]


def two(**changes: Any) -> Scenario:
    """Return two devices, the first of them changed."""
    return {"devices": [device(0, **changes), device(1)], "context_bytes": 300 * MIB}


def mig() -> Scenario:
    """Return a device in two instances, and a whole one."""
    parts = [instance(0, 0), instance(0, 1, memory_total=10 * GIB)]
    return {"devices": [device(0, mig_capable=True, mig=parts), device(1)]}


def nothing(_: Stage) -> None:
    """Nothing happens: it is so from the beginning."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One kind of trouble.

    ``begin`` is the driver at the broker's start, ``before`` what is done then, ``happens`` what
    goes wrong, ``seen`` what must become true, ``over`` what ends it and ``good`` what must be true
    again. ``hangs`` says that a deadline must pass, ``contained`` that this is in a container.
    """

    name: str
    says: str
    shows: str
    begin: Scenario = field(default_factory=two)
    fails: dict[str, Any] = field(default_factory=dict)
    before: Change = nothing
    happens: Change = nothing
    seen: Seen
    over: Change | None = None
    good: Seen | None = None
    hangs: bool = False
    contained: bool = False


# -- the driver as a whole ------------------------------------------------------------------------


def no_devices(said: str) -> Seen:
    """Say that nothing is listed, and why."""
    return lambda stage: said in stage.trouble() and not stage.broker.devices()


def all_well(stage: Stage) -> bool:
    """Say that everything is read again."""
    return not stage.trouble() and stage.health(0) == stage.health(1) == "ok"


def heals(stage: Stage) -> None:
    """Take back all faults."""
    stage.driver.heal()


def at_start(name: str, code: int, says: str, said: str, shows: str) -> Trouble:
    """Return the trouble of a driver that cannot be opened."""
    return Trouble(
        name=name,
        says=says,
        shows=shows,
        fails={"nvmlInitWithFlags": code},
        seen=no_devices(said),
        over=heals,
        good=all_well,
    )


OPENING = (
    at_start(
        "no_library",
        12,
        "there is no `libnvidia-ml.so.1`",
        "There is no NVIDIA driver here",
        "No devices, and “There is no NVIDIA driver here”; kernels start without GPUs. It is tried "
        "again by itself.",
    ),
    at_start(
        "not_loaded",
        9,
        "`nvmlInit`: driver not loaded (9)",
        "kernel module is not loaded",
        "“its kernel module is not loaded: run `sudo modprobe nvidia`”.",
    ),
    at_start(
        "mismatch",
        18,
        "`nvmlInit`: driver/library version mismatch (18), after an upgrade",
        "was upgraded",
        "“library and module do not fit: reboot, or reload the nvidia modules.”",
    ),
    at_start(
        "no_permission",
        4,
        "`nvmlInit`: insufficient permissions (4)",
        "may not open",
        "“This user may not open the NVIDIA devices: check the permissions of /dev/nvidia*”.",
    ),
    at_start(
        "unknown_error",
        999,
        "`nvmlInit`: unknown error (999)",
        "cannot be opened",
        "“The NVIDIA driver cannot be opened (Unknown Error): see `nvidia-smi`”.",
    ),
    Trouble(
        name="no_gpu",
        says="`nvmlInit` succeeds, and there is no GPU",
        shows="“The NVIDIA driver works and finds no GPU: check that the card is seen by `lspci`”.",
        begin={"devices": []},
        seen=no_devices("finds no GPU"),
    ),
    Trouble(
        name="init_crashes",
        says="`nvmlInit` crashes its process (SIGSEGV)",
        shows="“The process that reads the NVIDIA driver crashed with SIGSEGV”; broker and Jupyter "
        "go on, and it is tried ever more rarely.",
        fails={"nvmlInitWithFlags": "crash"},
        seen=no_devices("crashed with SIGSEGV"),
        over=heals,
        good=all_well,
    ),
    Trouble(
        name="init_hangs",
        says="`nvmlInit` never returns",
        shows="“The NVIDIA driver does not answer (nothing for 2 s)” (by default after "
        "15 s); every verb answers meanwhile.",
        fails={"nvmlInitWithFlags": "hang"},
        seen=no_devices("does not answer"),
        over=heals,
        good=all_well,
        hangs=True,
    ),
    Trouble(
        name="reloaded",
        says="every call of a working driver fails with unknown error (999), as after a reload of "
        "the host's daemons inside a container",
        shows="All devices `unknown`, with the last figures and “could not be read this time”; "
        "grants stay. The driver is opened anew by itself.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: [stage.driver.fail(name, 999) for name in MEMORY],
        seen=lambda stage: (
            stage.health(0) == stage.health(1) == "unknown"
            and stage.shown()[A].memory_total == TOTAL
            and len(stage.shown()[A].grants) == 1
        ),
        over=heals,
        good=all_well,
    ),
    Trouble(
        name="child_killed",
        says="the process that reads the driver is killed (out of memory, say)",
        shows="Nothing: another one reads on in the same second.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: os.kill(stage.reader(), 9),
        seen=lambda stage: all_well(stage) and len(stage.shown()[A].grants) == 1,
    ),
)


# -- one GPU ---------------------------------------------------------------------------------------


def states(stage: Stage) -> set[str]:
    """Return the states of all grants."""
    return {grant.state for it in stage.shown().values() for grant in it.grants}


def others_go_on(stage: Stage) -> bool:
    """Say that the second device is as it should be, and given next."""
    return stage.health(1) == "ok" and stage.answer(gpus=1) == B


ONE_GPU = (
    Trouble(
        name="lost",
        says="every call about one GPU: GPU is lost (15)",
        shows="The device stays listed, `lost`; the others go on; grants on it are kept, in the "
        "state `lost`, and their holder is told: “has fallen off the bus”. When it is back, they "
        "are good again.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: stage.driver.lose(A),
        seen=lambda stage: (
            stage.health(0) == "lost"
            and states(stage) == {"lost"}
            and len(stage.notices("lost")) == 1
            and others_go_on(stage)
        ),
        over=lambda stage: stage.driver.restore(A),
        good=lambda stage: (
            all_well(stage) and states(stage) == {"granted"} and not stage.notices("lost")
        ),
    ),
    Trouble(
        name="taken_out",
        says="a GPU is missing, and the others have moved up by an index",
        shows="Grants stay with their UUIDs: the missing one is `lost` and has no index, the other "
        "has a new index and the same holder.",
        before=lambda stage: (stage.holder(), stage.holder(memory="1G", devices=(B,))),
        happens=lambda stage: (stage.driver.remove_device(A), os.kill(stage.reader(), 9)),
        seen=lambda stage: (
            [(d.health, d.index, len(d.grants)) for d in stage.shown().values()]
            == [("ok", 0, 1), ("lost", None, 1)]
        ),
    ),
    Trouble(
        name="lost_before",
        says="a GPU is lost before anybody has seen it: its handle cannot be had",
        shows="The others are listed; “GPU 0 fell off the bus”.",
        begin=two(lost=True),
        seen=lambda stage: stage.health(0) is None and others_go_on(stage),
    ),
    Trouble(
        name="reset_required",
        says="calls about one GPU: reset required (16)",
        shows="`unknown`, with the last figures; it is given only when there is no other.",
        happens=lambda stage: stage.driver.fail("nvmlDeviceGetUtilizationRates", 16, A),
        seen=lambda stage: stage.health(0) == "unknown" and others_go_on(stage),
        over=heals,
        good=all_well,
    ),
    Trouble(
        name="one_hangs",
        says="a call about one GPU never returns",
        shows="“GPU 0 does not answer”, and is left out; the others are read in the same second. "
        "It is tried again beside them.",
        before=lambda stage: stage.tick(),
        happens=lambda stage: stage.driver.hang("nvmlDeviceGetUtilizationRates", A),
        seen=lambda stage: stage.health(0) == "unknown" and others_go_on(stage),
        over=heals,
        good=all_well,
        hangs=True,
    ),
    Trouble(
        name="one_crashes",
        says="a call about one GPU crashes its process",
        shows="“The NVIDIA driver crashed with SIGSEGV over GPU 0”, which is left out; the others "
        "are read in the same second.",
        happens=lambda stage: stage.driver.crash("nvmlDeviceGetUtilizationRates", A),
        seen=lambda stage: stage.health(0) == "unknown" and others_go_on(stage),
        over=heals,
        good=all_well,
    ),
    Trouble(
        name="xid_program",
        says="the event Xid 31: memory page fault, a program's own mistake",
        shows="The number beside the device (`xid`); its health stays `ok`. A kernel that died of "
        "it is told so.",
        happens=lambda stage: stage.driver.xid(A, 31),
        seen=lambda stage: stage.health(0) == "ok" and stage.shown()[A].xid == 31,
    ),
    Trouble(
        name="xid_grave",
        says="the event Xid 48: a memory error that cannot be corrected",
        shows="`unreliable`: “Xid 48 (memory error (double bit) that cannot be corrected), which a "
        "reset of the GPU or a reboot cures”. It is given only when there is no other.",
        happens=lambda stage: stage.driver.xid(A, 48),
        seen=lambda stage: stage.health(0) == "unreliable" and others_go_on(stage),
    ),
    Trouble(
        name="memory_errors",
        says="uncorrected ECC errors are counted since the driver was loaded",
        shows="Their number (`ecc_errors`).",
        begin=two(ecc_mode=1, ecc={"corrected": 9, "uncorrected": 2}),
        seen=lambda stage: stage.shown()[A].ecc_errors == 2 and stage.health(0) == "ok",
    ),
)


# -- what a card cannot tell, or tells wrongly ----------------------------------------------------


def fields(stage: Stage, *names: str) -> tuple[Any, ...]:
    """Return fields of the first device."""
    return tuple(getattr(stage.shown()[A], name) for name in names)


def unsupported(*functions: str, code: int = 3) -> dict[str, Any]:
    """Return faults of the first device alone."""
    return {function: {A: code} for function in functions}


FIGURES = (
    Trouble(
        name="unified_memory",
        says="memory: not supported (3), as on chips with unified memory (GB10, Jetson)",
        shows="The device stays listed, its memory `null`, and can be had whole; a part of it "
        "is refused: “does not tell how much memory it has, and can only be had whole.”",
        begin={"devices": [device(0)]},
        fails=unsupported(*MEMORY),
        seen=lambda stage: (
            fields(stage, "health", "memory_total", "memory_used") == ("ok", None, None)
            and stage.answer(gpus=1) == A
            and "no_capacity" not in stage.answer(gpus=1)
        ),
    ),
    Trouble(
        name="unknown_for_unsupported",
        says="unknown error (999) where not supported is meant",
        shows="The same as not supported: that one field is `null`.",
        fails=unsupported("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", code=999),
        seen=lambda stage: (
            fields(stage, "health", "utilization", "power", "temperature") == ("ok", None, None, 35)
        ),
    ),
    Trouble(
        name="no_sensors",
        says="temperature, power and clocks: not supported (3)",
        shows="These are `null`; the rest is told.",
        begin=two(temperature=None, power=None),
        seen=lambda stage: (
            fields(stage, "health", "temperature", "power", "sm_clock") == ("ok", None, None, None)
            and fields(stage, "memory_total") == (TOTAL,)
        ),
    ),
    Trouble(
        name="undecodable_name",
        says="the name of a card is no UTF-8, or has control characters",
        shows="What can be read of it, on one line; nothing fails.",
        begin=two(name="NVIDIA \udcff H200\n"),
        seen=lambda stage: (
            stage.health(0) == "ok"
            and (stage.shown()[A].name or "").startswith("NVIDIA ")
            and (stage.shown()[A].name or "").endswith(" H200")
        ),
    ),
    Trouble(
        name="no_uuid",
        says="the UUID of a GPU cannot be had",
        shows="The device cannot be granted and is not listed: “GPU 0 cannot be read”.",
        fails={"nvmlDeviceGetUUID": {A: 999}},
        seen=lambda stage: stage.health(0) is None and others_go_on(stage),
    ),
    Trouble(
        name="used_beyond_total",
        says="more memory is in use than there is",
        shows="`unreliable`, “used memory that cannot be”: never a negative number, nor one "
        "like 2⁶⁴. Given only when there is no other.",
        happens=lambda stage: stage.driver.update_device(A, memory_external=30 * GIB),
        seen=lambda stage: (
            stage.health(0) == "unreliable"
            and (stage.shown()[A].memory_used or 0) <= TOTAL
            and others_go_on(stage)
        ),
    ),
    Trouble(
        name="load_beyond_hundred",
        says="a utilisation of 4000 %",
        shows="`unreliable`, utilisation `null`: “a utilisation that cannot be”.",
        begin=two(utilization={"gpu": 4000, "memory": 0}),
        seen=lambda stage: (
            fields(stage, "health", "utilization") == ("unreliable", None) and others_go_on(stage)
        ),
    ),
    Trouble(
        name="heat_beyond_belief",
        says="a temperature of 4000 °C",
        shows="`unreliable`, temperature `null`: “a temperature that cannot be”.",
        begin=two(temperature=4000),
        seen=lambda stage: fields(stage, "health", "temperature") == ("unreliable", None),
    ),
    Trouble(
        name="memory_forgotten",
        says="memory, told until now, is not told any more",
        shows="`unknown`, with the last figures: a card that had memory still has it.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: [stage.driver.fail(name, 3, A) for name in MEMORY],
        seen=lambda stage: (
            fields(stage, "health", "memory_total") == ("unknown", TOTAL)
            and states(stage) == {"granted"}
        ),
        over=heals,
        good=all_well,
    ),
    Trouble(
        name="smaller_than_granted",
        says="a GPU has less memory than was granted of it (a partition was set on the cgroup)",
        shows="Grants stay as they are; nothing more fits there, and nothing fails.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: stage.driver.update_device(A, memory_total=8 * GIB),
        seen=lambda stage: (
            fields(stage, "memory_total") == (8 * GIB,)
            and states(stage) == {"granted"}
            and stage.answer(memory="1G") == B
        ),
    ),
)


# -- processes -------------------------------------------------------------------------------------


def uses(kernel: Kernel, memory: int | None) -> Any:
    """Return the listing of a kernel's process."""
    return {"pid": kernel.process.pid, "memory": memory, "kind": "compute"}


def lists_own(memory: int | None) -> Change:
    """Return a change: a kernel holds half of the first device and uses so much."""
    return lambda stage: stage.lists(A, uses(stage.holder(), memory))


def lists_stranger(memory: int | None, kind: Any = "compute") -> Change:
    """Return a change: somebody outside any environment uses so much of the first device."""
    return lambda stage: stage.lists(
        A, {"pid": stage.stranger().pid, "memory": memory, "kind": kind}
    )


def environment_uses(stage: Stage) -> Iterable[int | None]:
    """Return what each process of an environment holds."""
    for environment in stage.broker.environments(stage.me):
        for process in environment.processes or ():
            yield process.memory


PROCESSES = (
    Trouble(
        name="garbage_pid",
        says="a process with an id that cannot be (4294967295)",
        shows="Left out; the device is `unreliable`: “a process id that cannot be”.",
        happens=lambda stage: stage.lists(A, {"pid": 4294967295, "memory": GIB, "kind": "compute"}),
        seen=lambda stage: fields(stage, "health", "external_memory") == ("unreliable", 0),
    ),
    Trouble(
        name="process_beyond_card",
        says="a process that holds more than the card has",
        shows="Its memory is unknown; the device is `unreliable`: “memory of a process that cannot "
        "be”.",
        happens=lists_own(500 * GIB),
        seen=lambda stage: (
            stage.health(0) == "unreliable" and list(environment_uses(stage)) == [None]
        ),
    ),
    Trouble(
        name="process_memory_unknown",
        says="memory of a process: not available (all ones)",
        shows="The process is shown, its memory unknown, never 0, and so is the environment's use.",
        happens=lists_own(None),
        seen=lambda stage: stage.health(0) == "ok" and list(environment_uses(stage)) == [None],
    ),
    Trouble(
        name="process_twice",
        says="the same process in the compute and the graphics list",
        shows="Counted once.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: twice(stage),
        seen=lambda stage: fields(stage, "external_memory", "health") == (GIB, "ok"),
    ),
    Trouble(
        name="process_gone",
        says="a process of the list has ended meanwhile",
        shows="Treated as gone; what it held counts until the driver has it back.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: stage.lists(A, ended(stage)),
        seen=lambda stage: (
            fields(stage, "health", "external_memory") == ("ok", GIB)
            and list(environment_uses(stage)) == []
        ),
    ),
    Trouble(
        name="no_list",
        says="process lists: not supported (3)",
        shows="What is in use is unattributed; nothing is guessed, and nobody counts as idle.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: (
            stage.driver.set_external(A, 2 * GIB),
            stage.driver.fail("nvmlDeviceGetComputeRunningProcesses", 3, A),
        ),
        seen=lambda stage: (
            fields(stage, "health", "external_memory", "unattributed_memory")
            == ("ok", None, 2 * GIB)
            and usage_of(stage) == [None]
        ),
    ),
    Trouble(
        name="empty_list",
        says="empty process lists while memory is in use, as inside a container",
        shows="The memory is unattributed and lowers what can be granted; the use of environments "
        "there is unknown, not 0.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: stage.driver.set_external(A, 2 * GIB),
        seen=lambda stage: (
            fields(stage, "external_memory", "unattributed_memory") == (0, 2 * GIB)
            and usage_of(stage) == [None]
        ),
    ),
    Trouble(
        name="foreign_pids",
        contained=True,
        says="processes by ids of the host that mean nobody here (broker in a container)",
        shows="Shown as outside, blamed on nobody, with no button to end them; the use of "
        "environments is unknown.",
        before=lambda stage: stage.holder(),
        happens=lambda stage: stage.lists(
            A, {"pid": 4_194_301, "memory": 2 * GIB, "kind": "compute"}
        ),
        seen=lambda stage: (
            fields(stage, "external_memory") == (2 * GIB,)
            and usage_of(stage) == [None]
            and states(stage) == {"granted"}
            and not stage.broker.leftovers(stage.me)
        ),
    ),
    Trouble(
        name="desktop",
        says="a graphics process (the desktop) holds 300 MiB",
        shows="The device still counts as whole, less what the desktop holds.",
        begin={"devices": [device(0)]},
        happens=lists_stranger(300 * MIB, "graphics"),
        seen=lambda stage: (
            fields(stage, "external_memory") == (300 * MIB,) and stage.answer(gpus=1) == A
        ),
    ),
    Trouble(
        name="outsider_before",
        says="a computing process of no environment holds 2 GiB",
        shows="It counts as external, lowers what can be granted, and the device is not given "
        "whole: “somebody uses it outside any environment (2 GiB)”.",
        begin={"devices": [device(0)]},
        happens=lists_stranger(2 * GIB),
        seen=lambda stage: (
            fields(stage, "external_memory") == (2 * GIB,) and A not in stage.answer(gpus=1).split()
        ),
    ),
    Trouble(
        name="outsider_after",
        says="such a process comes onto a device after it was granted",
        shows="The grant is `contended`, and its holder is told who: “belongs to no environment. "
        "It came onto GPU 0 after that was granted to you”.",
        before=lambda stage: own_and(stage),
        happens=lambda stage: own_and_stranger(stage),
        seen=lambda stage: (
            "contended" in states(stage)
            and [it.kind for it in stage.notices("contended")] == ["contended"]
        ),
        over=lambda stage: stage.lists(A),
        good=lambda stage: states(stage) == {"granted"} and not stage.notices("contended"),
    ),
    Trouble(
        name="leftover",
        says="a child of a kernel that is gone still holds memory",
        shows="Shown as a leftover with pid, age and former kernel, its memory not free; “outlived "
        "its kernel and holds 1 GiB on GPU 0”. One click, or `jupyter gpu leftovers --end PID`, "
        "ends that very process.",
        before=lambda stage: leave_child(stage),
        seen=lambda stage: (
            len(stage.broker.leftovers(stage.me)) == 1
            and fields(stage, "external_memory") == (GIB,)
        ),
    ),
    Trouble(
        name="unexplained_memory",
        says="memory is in use, and the processes that are listed hold less",
        shows="The difference is unattributed, a bar of its own, and not free.",
        happens=lambda stage: (
            stage.lists(A, {"pid": stage.stranger().pid, "memory": GIB, "kind": "compute"}),
            stage.driver.set_external(A, 3 * GIB),
        ),
        seen=lambda stage: (
            fields(stage, "memory_used", "external_memory", "unattributed_memory")
            == (4 * GIB, GIB, 3 * GIB)
        ),
    ),
)


def twice(stage: Stage) -> None:
    """Let one process stand in two lists."""
    pid = stage.stranger().pid
    stage.lists(
        A,
        {"pid": pid, "memory": GIB, "kind": "compute"},
        {"pid": pid, "memory": GIB, "kind": "graphics"},
    )


def ended(stage: Stage) -> Any:
    """Return the listing of a process that has ended."""
    process = stage.stranger()
    stage.end(process)
    return {"pid": process.pid, "memory": GIB, "kind": "compute"}


def own_and(stage: Stage) -> None:
    """Let a kernel use its half, so that the driver is known to name processes of ours."""
    stage.lists(A, uses(stage.holder(), GIB))
    stage.tick()


def own_and_stranger(stage: Stage) -> None:
    """Let somebody come to it."""
    (mine,) = stage.driver.scenario["devices"][0]["processes"]
    stage.lists(A, mine, {"pid": stage.stranger().pid, "memory": GIB, "kind": "compute"})


def leave_child(stage: Stage) -> None:
    """Let a kernel leave a child behind."""
    kernel = stage.holder()
    pid = stage.child_of(kernel)
    stage.lists(A, {"pid": pid, "memory": GIB, "kind": "compute"})
    stage.tick()
    stage.end(kernel.process)
    stage.broker.end_kernel(stage.me, stage.server, kernel.id)


def usage_of(stage: Stage) -> list[int | None]:
    """Return what each environment is known to use of each grant."""
    return [
        grant.memory_used
        for environment in stage.broker.environments(stage.me)
        for grant in stage.broker.usage(stage.me, environment.id).grants
    ]


# -- MIG -------------------------------------------------------------------------------------------

M1, M2 = instance_uuid(0, 0), instance_uuid(0, 1)

MIG = (
    Trouble(
        name="mig",
        says="a GPU in MIG mode, with two instances",
        shows="The instances are the devices, the GPU is not; its utilisation is `null`.",
        begin=mig(),
        seen=lambda stage: (
            [(it.uuid, it.kind, it.parent) for it in stage.broker.devices()]
            == [(M1, "mig", A), (M2, "mig", A), (B, "gpu", None)]
            and stage.shown()[M1].utilization is None
        ),
    ),
    Trouble(
        name="mig_no_permission",
        says="memory of the GPU in MIG mode: insufficient permissions (4)",
        shows="Nothing: only its instances are asked.",
        begin=mig(),
        fails=unsupported(*MEMORY, "nvmlDeviceGetName", code=4),
        seen=lambda stage: (
            {it.health for it in stage.broker.devices()} == {"ok"}
            and stage.shown()[M2].memory_total == 10 * GIB
        ),
    ),
    Trouble(
        name="mig_recut",
        says="the GPU was cut into other instances while one was granted",
        shows="The grant's instance is kept, `lost`, until it is released; new ones can be had.",
        begin=mig(),
        before=lambda stage: stage.holder(memory="1G", devices=(M1,)),
        happens=lambda stage: stage.driver.update_device(
            A, mig=[instance(0, 1, memory_total=10 * GIB)]
        ),
        seen=lambda stage: (
            stage.shown()[M1].health == "lost"
            and states(stage) == {"lost"}
            and stage.shown()[M2].health == "ok"
        ),
    ),
    Trouble(
        name="mig_empty",
        says="a GPU in MIG mode without any instance",
        shows="It is no device; the others are.",
        begin=two(mig_capable=True, mig_enabled=True),
        seen=lambda stage: stage.health(0) is None and others_go_on(stage),
    ),
)

TROUBLES = (*OPENING, *ONE_GPU, *FIGURES, *PROCESSES, *MIG)
