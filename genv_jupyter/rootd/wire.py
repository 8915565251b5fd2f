"""What the broker may ask the root helper, and what it is answered: one message each, as JSON.

The types are the first check: a message that is not exactly one of these ends the connection.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MOST_ASKED = 1024
"""Bytes of a question."""

MOST_ANSWERED = 160 * 2**10

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_COMMANDS = (
    "get_server_list",
    "get_default_active_thread_percentage",
    "get_default_device_pinned_mem_limit 0",
    r"get_(?:client_list|server_status) [0-9]{1,7}",
    r"set_default_device_pinned_mem_limit 0 [0-9]{1,8}M",
    r"set_device_pinned_mem_limit [0-9]{1,7} 0 [0-9]{1,8}M",
    r"terminate_client [0-9]{1,7} [0-9]{1,7}",
    r"quit -t [0-9]{1,2}",
)

Id = Annotated[int, Meta(ge=0, le=2**53)]
Uid = Annotated[int, Meta(ge=0, le=2**32 - 2)]
Pid = Annotated[int, Meta(ge=1, le=2**22)]
Ticks = Annotated[int, Meta(ge=0, le=2**53)]
Device = Annotated[str, Meta(pattern=rf"\A(?:GPU|MIG)-{_UUID}\Z")]
Command = Annotated[str, Meta(pattern=rf"\A(?:{'|'.join(_COMMANDS)})\Z")]
Mode = Literal["default", "exclusive_process"]


class Ask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """A question; ``id`` comes back with its answer."""

    id: Id


class Hello(Ask, frozen=True, kw_only=True):
    """What is there: answered with ``Here``."""


class Mps(Ask, frozen=True, kw_only=True):
    """Something about the MPS daemon of one device and user.

    ``start``, ``kill`` and ``remove`` (its directory, once it has ended) are answered with nothing,
    ``pid`` with its pid or ``None``.
    """

    verb: Literal["start", "pid", "kill", "remove"]
    uid: Uid
    device: Device


class MpsSay(Ask, frozen=True, kw_only=True):
    """One command for a daemon; answered with the front end's status and what was said."""

    uid: Uid
    device: Device
    command: Command


class MpsLog(Ask, frozen=True, kw_only=True):
    """A log of a daemon; its descriptor comes with the answer."""

    uid: Uid
    device: Device
    name: Literal["control.log", "server.log"]


class MpsLeft(Ask, frozen=True, kw_only=True):
    """Which daemons have directories; answered with (uid, device) of each."""


class Look(Ask, frozen=True, kw_only=True):
    """A process; answered with ``Seen``, or ``None`` where it is gone."""

    pid: Pid
    start: Ticks


class Signal(Ask, frozen=True, kw_only=True):
    """Signal a process of a user; answered with whether it was there."""

    pid: Pid
    start: Ticks
    uid: Uid
    signal: Literal["SIGINT", "SIGTERM", "SIGKILL"]


class SetMode(Ask, frozen=True, kw_only=True):
    """Set the compute mode of a GPU, unless it is another than expected.

    Answered with the mode there was and what went wrong, either of them ``None``.
    """

    device: Device
    mode: Mode
    expected: Mode


Question = Hello | Mps | MpsSay | MpsLog | MpsLeft | Look | Signal | SetMode


class Here(Struct, frozen=True, kw_only=True):
    """Under which directory daemons are; from which uid on; and why there can be none, if so."""

    room: str
    lowest_uid: int
    missing: str | None


class Seen(Struct, frozen=True, kw_only=True):
    """What attribution and rules need to know of a process, and no more of its variables.

    Of a process that is not one ordinary user's all but ``uid`` stays unknown.

    Attributes
    ----------
    uid
        Whose it is; ``None`` where that is not one uid.
    environment
        Its ``GENV_JUPYTER_ENVIRONMENT``, where that could be an id.
    claims
        Whether it has that variable, or may have: it could not be read.
    pipe
        Its ``CUDA_MPS_PIPE_DIRECTORY``.
    cuda
        Whether the driver's library or a device is mapped.
    driver
        Whether it runs one of the driver's own programs.
    """

    uid: int | None
    environment: str | None = None
    claims: bool = True
    pipe: str | None = None
    cuda: bool = False
    driver: bool = False


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What comes back: a value, or in words why not.

    ``kind`` says of what kind an error is: the check that was not passed (``refused``), or MPS's.
    """

    id: int
    value: Any = None
    error: str | None = None
    kind: Literal["refused", "failed", "gone", "hangs"] | None = None
