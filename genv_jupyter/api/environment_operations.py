"""The operations on environments: all that is asked for, held, waited for and left behind."""

from __future__ import annotations

from genv_jupyter import errors
from genv_jupyter.api.operation import (
    ASK,
    BODY,
    CUDA,
    READ,
    Operation,
    Query,
)
from genv_jupyter.asks import Answer, Ask, Asked
from genv_jupyter.isolation.smi.report import SmiAnswer, SmiCall
from genv_jupyter.leftovers import Leftover
from genv_jupyter.model import (
    DryRun,
    Environment,
    EnvironmentPatch,
    NewEnvironment,
    QueueTicket,
    Request,
    Time,
)
from genv_jupyter.reserving import NewReservation
from genv_jupyter.turns import Turn

ENVIRONMENTS: tuple[Operation, ...] = (
    Operation(
        method="get",
        path="/environments",
        name="environments",
        summary="All environments",
        answer=list[Environment],
    ),
    Operation(
        method="post",
        path="/environments",
        name="create",
        summary="A new environment for a process that no Jupyter server of ours started",
        body=NewEnvironment,
        answer=Environment,
        status=201,
        refusals=(*BODY, errors.UnknownProcess, errors.NotYours),
    ),
    Operation(
        method="post",
        path="/reservations",
        name="reserve",
        summary="Devices for a Jupyter server that is about to start, on behalf of its owner: for "
        "administrators (sockets only)",
        body=NewReservation,
        answer=Environment,
        status=201,
        refusals=(*ASK, errors.UnknownUser),
    ),
    Operation(
        method="get",
        path="/environments/{id}",
        name="environment",
        summary="One environment; a kernel's environment has the kernel's id",
        answer=Environment,
        refusals=READ,
    ),
    Operation(
        method="put",
        path="/environments/{id}",
        name="attach",
        summary="Attach: the body replaces the request; on a refusal the old grants stay. With "
        "`wait` and no room: 202, and a place in the queue",
        body=Request,
        answer=Environment,
        further=(202,),
        query=(
            CUDA,
            Query("restart", bool, "The caller will restart the kernel, so it is never too late."),
        ),
        refusals=(*ASK, errors.CudaInitialized, errors.Conflict),
    ),
    Operation(
        method="patch",
        path="/environments/{id}",
        name="patch",
        summary="Change the name, or tell what was applied in the process",
        body=EnvironmentPatch,
        answer=Environment,
        refusals=(*BODY, *READ, errors.Conflict, errors.OutOfRange),
    ),
    Operation(
        method="delete",
        path="/environments/{id}",
        name="detach",
        summary="Detach everything, or one device",
        answer=Environment,
        query=(Query("device", str, "UUID, unique prefix or index of the one device."), CUDA),
        refusals=(
            *READ,
            errors.BadRequest,
            errors.UnknownDevice,
            errors.AmbiguousDevice,
            errors.Conflict,
        ),
    ),
    Operation(
        method="post",
        path="/environments/{id}/restart",
        name="restart",
        summary="Restart the kernel; its grants are kept. Answers at once",
        answer=Environment,
        status=202,
        refusals=(*READ, errors.Conflict),
    ),
    Operation(
        method="post",
        path="/environments/{id}/leave",
        name="leave",
        summary="Take its processes off MPS, since they are about to be ended (sockets only)",
        answer=Environment,
        refusals=READ,
    ),
    Operation(
        method="post",
        path="/environments/{id}/turn",
        name="turn",
        summary="Wait for the turn on shared devices, and have it while the connection is open "
        "(sockets only)",
        answer=Turn,
        query=(
            Query("timeout", str, 'How long to wait at most: seconds, or "2h30m".'),
            Query("since", Time, "Since when one waits who comes back from an earlier broker."),
        ),
        refusals=(*READ, errors.BadRequest, errors.OutOfRange),
        media="application/jsonl",
    ),
    Operation(
        method="post",
        path="/environments/{id}/nvidia-smi",
        name="nvidia_smi",
        summary="What nvidia-smi says inside an environment (sockets only)",
        body=SmiCall,
        answer=SmiAnswer,
        refusals=(*BODY, *READ),
    ),
    Operation(
        method="post",
        path="/placements",
        name="place",
        summary="Dry run: the grants that a request would get now, or its refusal",
        body=Request,
        answer=DryRun,
        query=(Query("environment", str, "For this environment, whose grants are a credit."),),
        refusals=ASK,
    ),
    Operation(
        method="post",
        path="/environments/{id}/ask",
        name="ask",
        summary="Ask those who hold what an environment needs how long still; a notice of theirs",
        body=Ask,
        answer=Asked,
        refusals=(*ASK, errors.Conflict, errors.TooOften),
    ),
    Operation(
        method="post",
        path="/notices/{id}/answer",
        name="answer",
        summary="Answer those who have asked: a notice of theirs",
        body=Answer,
        refusals=(*BODY, errors.Conflict, errors.OutOfRange),
    ),
    Operation(
        method="get",
        path="/queue",
        name="queue",
        summary="Who waits for devices, the first first; before them whose turn has just come",
        answer=list[QueueTicket],
    ),
    Operation(
        method="delete",
        path="/queue/{id}",
        name="leave_queue",
        summary="Leave the queue; what has come already stays, and is taken up with this",
        refusals=(errors.UnknownTicket, errors.NotYours),
    ),
    Operation(
        method="get",
        path="/leftovers",
        name="leftovers",
        summary="Processes that outlived kernels of the caller and still use a device",
        answer=list[Leftover],
    ),
    Operation(
        method="delete",
        path="/processes/{id}",
        name="end_process",
        summary="End a leftover process; {id} is its pid and start: 4711-123456",
        answer=Leftover,
        status=202,
        refusals=(errors.BadRequest, errors.UnknownProcess),
    ),
)
