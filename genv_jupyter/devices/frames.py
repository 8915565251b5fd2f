"""What the reader of the driver (a child process) and its parent tell each other.

Frames over pipes: four bytes of length, then a msgpack message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import msgspec

from genv_jupyter.devices.source import DeviceReading

Fault = Literal["lost", "unknown"]

LONGEST = 16 * 2**20
"""Bytes of the longest frame that is believed."""


class Open(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Parent: load the driver and attach all GPUs but those of the indices in ``skip``."""

    skip: tuple[int, ...] = ()


class Ask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Parent: read all devices, those of the indices in ``last`` after the others."""

    last: tuple[int, ...] = ()
    details: bool = False


class SetMode(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Parent: set a GPU's compute mode, unless it is another than ``expected`` by now."""

    uuid: str
    expected: str
    mode: str


class Touching(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Child: from now on a call into the driver is about that GPU; if I hang, it was that one."""

    index: int


class Opened(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Child: the driver is loaded, and every GPU of ``count`` that can be attached is."""

    driver_version: str | None
    count: int
    cuda_version: int | None = None


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Child: there is nothing to read, and I leave. ``trouble`` is a sentence."""

    trouble: str


class Told(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Child: what there is at that index.

    ``uuid`` is that of the GPU, also where its MIG instances are the devices. Without a fault,
    ``devices`` is all there is; with one it is empty, and ``why`` has the driver's words.
    """

    index: int
    uuid: str | None
    devices: tuple[DeviceReading, ...] = ()
    fault: Fault | None = None
    why: str = ""


class ModeTold(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Child: which compute mode there was; ``why`` it could not be read or set."""

    found: str | None
    why: str | None = None


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Child: that was all."""


Request = Open | Ask | SetMode
Reply = Touching | Opened | Failed | Told | ModeTold | Done

_encoder = msgspec.msgpack.Encoder()


def frame(*messages: Request | Reply) -> bytes:
    """Return the messages as bytes to be written."""
    bodies = [_encoder.encode(message) for message in messages]
    return b"".join(len(body).to_bytes(4, "little") + body for body in bodies)


def write(fd: int, *messages: Request | Reply) -> None:
    """Write messages to a blocking file descriptor, all of them."""
    rest = memoryview(frame(*messages))
    while rest:
        rest = rest[os.write(fd, rest) :]


class Splitter:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield every body that is complete now.

        Raises
        ------
        ValueError
            What comes is no frame.
        """
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4:
            length = int.from_bytes(buffer[:4], "little")
            if length > LONGEST:
                raise ValueError(f"a frame of {length} bytes")
            if len(buffer) < 4 + length:
                return
            body = bytes(buffer[4 : 4 + length])
            del buffer[: 4 + length]
            yield body
