"""The broker's end of the line to the root helper: questions from any thread, and their answers."""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, BinaryIO

import msgspec

from genv_jupyter.isolation.mps_runner import MpsError, MpsGone, MpsHangs
from genv_jupyter.rootd import wire

log = logging.getLogger("genv_jupyter.broker")

MARGIN = 5.0
"""Seconds that an answer may take beyond what the helper itself allows for it."""

GONE = "the root helper does not run at present"

_questions: msgspec.json.Decoder[wire.Question] = msgspec.json.Decoder(wire.Question)


class HelperGone(Exception):
    """The helper cannot be asked; the text says so."""


class NotObeyed(Exception):
    """The helper has refused, or failed; the text says why."""


class Client:
    """Asks the helper, and notices when it has gone and when another has come.

    Parameters
    ----------
    line
        Where the parent hands over the line to each helper.
    on_change
        Told, in a thread of its own, whether there is a helper now.
    on_orphaned
        Called once when the parent is gone.
    """

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.on_change: Callable[[bool], None] = lambda there: None
        self.on_orphaned: Callable[[], None] = lambda: None
        self.orphaned = False
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._waiting: dict[int, Future[tuple[Any, list[int]]]] = {}
        self._there = threading.Event()
        threading.Thread(target=self._listen, name="root helper", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Wait until there is a helper; say whether there is."""
        return self._there.wait(seconds)

    def submit(self, kind: type[wire.Ask], **fields: Any) -> Future[tuple[Any, list[int]]]:
        """Ask, and do not wait.

        Raises
        ------
        HelperGone
            There is none.
        NotObeyed
            It is no question: the helper would end at it.
        """
        future: Future[tuple[Any, list[int]]] = Future()
        with self._lock:
            number = next(self._ids)
            asked = _encode(kind(id=number, **fields))
            if self._sock is None:
                raise HelperGone(GONE)
            self._waiting[number] = future
            try:
                self._sock.send(asked, socket.MSG_DONTWAIT)
            except OSError as error:
                del self._waiting[number]
                raise HelperGone(GONE) from error
        return future

    def ask(self, kind: type[wire.Ask], *, seconds: float = MARGIN, **fields: Any) -> Any:
        """Ask, and wait for the answer.

        Raises
        ------
        HelperGone
            There is none, or it does not answer.
        NotObeyed
            It was refused.
        MpsError
            MPS does not do it.
        """
        value, descriptors = self._result(kind, seconds, fields)
        for descriptor in descriptors:
            os.close(descriptor)
        return value

    def file(self, kind: type[wire.Ask], **fields: Any) -> BinaryIO:
        """Ask for a file."""
        _, descriptors = self._result(kind, MARGIN, fields)
        if len(descriptors) != 1:
            raise NotObeyed("it has sent no file")
        return os.fdopen(descriptors[0], "rb")

    def _result(
        self, kind: type[wire.Ask], seconds: float, fields: dict[str, Any]
    ) -> tuple[Any, list[int]]:
        future = self.submit(kind, **fields)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise HelperGone("the root helper does not answer") from None

    # -- the thread -------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take in helpers, and their answers, until the parent is gone."""
        with selectors.DefaultSelector() as ready:
            ready.register(self.line, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select()[:1]:  # the other may be gone by then
                    if key.fileobj is not self.line:
                        if not self._hear():
                            ready.unregister(key.fileobj)
                            self._lose()
                        continue
                    data, descriptors, _, _ = socket.recv_fds(self.line, 64, 4)
                    if not data:
                        ready.unregister(self.line)
                        self.orphaned = True  # and the present helper goes on answering
                        self.on_orphaned()
                        continue
                    if self._sock is not None:
                        ready.unregister(self._sock)
                        self._lose()
                    ready.register(self._meet(descriptors), selectors.EVENT_READ)

    def _meet(self, descriptors: list[int]) -> socket.socket:
        (descriptor,) = descriptors
        sock = socket.socket(fileno=descriptor)
        with self._lock:
            self._sock = sock
        self._there.set()
        self.on_change(True)
        return sock

    def _lose(self) -> None:
        with self._lock:
            sock, self._sock = self._sock, None
            waiting, self._waiting = self._waiting, {}
        self._there.clear()
        if sock is not None:
            sock.close()
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(HelperGone(GONE))
        self.on_change(False)

    def _hear(self) -> bool:
        """Take in one answer; say whether there was one."""
        assert self._sock is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, wire.MOST_ANSWERED, 1)
            if not data:
                return False
            answer = msgspec.json.decode(data, type=wire.Answer)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("the root helper is not understood: %s", error)
            return False
        with self._lock:
            future = self._waiting.pop(answer.id, None)
        if future is None or not future.set_running_or_notify_cancel():  # nobody waits any more
            for descriptor in descriptors:
                os.close(descriptor)
        elif answer.error is None:
            future.set_result((answer.value, descriptors))
        else:
            future.set_exception(_error(answer))
        return True


def _encode(ask: wire.Ask) -> bytes:
    """Encode a question, and see that it is one: what is in it may come from anybody."""
    asked = msgspec.json.encode(ask)
    try:
        _questions.decode(asked)
    except msgspec.MsgspecError as error:
        raise NotObeyed(f"what the root helper was to be asked is no question: {error}") from None
    if len(asked) > wire.MOST_ASKED:
        raise NotObeyed("what the root helper was to be asked is too long")
    return asked


def _error(answer: wire.Answer) -> Exception:
    said = answer.error or ""
    if answer.kind == "gone":
        return MpsGone(said)
    if answer.kind == "hangs":
        return MpsHangs(said)
    if answer.kind == "failed":
        return MpsError(said)
    return NotObeyed(f"the root helper refuses it: {said}")
