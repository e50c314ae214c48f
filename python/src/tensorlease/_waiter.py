# SPDX-License-Identifier: Apache-2.0
"""The thread behind Client.aget(): one for all waits of a client. It sleeps until one of the names is published.

Invariants: `waits` and `stopped` are only changed under the lock. A wait in `waits` is removed by the thread that
serves it or by the loop to which it belongs, whichever comes first. Only the one that removed it hands over its result.
"""

import os
import threading
import time

from ._errors import DisconnectedError, Error, NotFoundError, NotNewerError, TensorLostError

_SLICE = 60.0  # seconds; the library notices by itself if the daemon ends
_BACKOFF = 0.1


class _Wait:
    __slots__ = ("future", "loop", "mode", "name", "newer_than", "stream")

    def __init__(self, name, newer_than, mode, stream, loop, future):
        self.name = name
        self.newer_than = newer_than
        self.mode = mode
        self.stream = stream
        self.loop = loop
        self.future = future


def _deliver(future, tensor, error):
    """Runs in the loop."""
    if future.done():  # cancelled meanwhile
        if tensor is not None:
            tensor.release()
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(tensor)


class Waiter:
    """The thread and its waits. The first aget() that has to wait makes it."""

    def __init__(self, client):
        self.client = client
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.waits = {}  # _Wait -> None, in order of arrival
        self.thread = None
        self.stopped = False

    def add(self, wait):
        with self.lock:
            if self.stopped:
                raise ValueError("the client is closed")
            self.waits[wait] = None
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="tensorlease-aget", daemon=True)
                self.thread.start()
        self.client._wake()

    def discard(self, wait):
        with self.lock:
            there = self.waits.pop(wait, self) is None
        if there:
            self.client._wake()

    def stop(self):
        with self.lock:
            self.stopped = True
            waits, self.waits = self.waits, {}
            thread = self.thread
        self.client._wake()
        for wait in waits:
            self._hand_over(wait, None, ValueError("the client was closed during an aget"))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self):
        while True:
            with self.lock:
                if self.stopped or not self.waits:
                    self.thread = None
                    return
                word = self.client._wake_word()
                waits = tuple(self.waits)
            try:
                which = self.client._wait_many(tuple((w.name, w.newer_than) for w in waits), word, _SLICE)
            except DisconnectedError:  # like get(), a wait goes on until there is a daemon again
                time.sleep(_BACKOFF)
                continue
            except Error as error:
                self._fail(waits, error)
                continue
            except ValueError:  # closed
                with self.lock:
                    self.thread = None
                return
            if which is not None:
                self._serve(waits[which:])

    def _serve(self, waits):
        """Serves all names that exist now, not only the one that woke us."""
        for wait in waits:
            tensor = error = None
            try:
                tensor = self.client.get(wait.name, newer_than=wait.newer_than, mode=wait.mode, stream=wait.stream)
            except TensorLostError:  # the name exists, and would wake us again at once
                self._wait_for_newer(wait)
                continue
            except (NotFoundError, NotNewerError, DisconnectedError):
                continue
            except Exception as caught:
                error = caught
            with self.lock:
                mine = self.waits.pop(wait, self) is None
            if mine:
                self._hand_over(wait, tensor, error)
            elif tensor is not None:
                tensor.release()

    def _wait_for_newer(self, wait):
        try:
            info = self.client.stat(wait.name)
        except Error:
            return
        if info.lost:
            wait.newer_than = max(wait.newer_than, info.version)

    def _fail(self, waits, error):
        for wait in waits:
            with self.lock:
                mine = self.waits.pop(wait, self) is None
            if mine:
                self._hand_over(wait, None, error)

    @staticmethod
    def _hand_over(wait, tensor, error):
        try:
            wait.loop.call_soon_threadsafe(_deliver, wait.future, tensor, error)
        except RuntimeError:  # the loop is closed
            if tensor is not None:
                tensor.release()
