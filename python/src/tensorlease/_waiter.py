# SPDX-License-Identifier: Apache-2.0
"""The thread behind Client.aget(): one for all waits of a client. It sleeps until one of the names is published.

Invariants: `waits` and `stopped` are only changed under the lock. A wait in `waits` is removed by the thread that
serves it or by the loop to which it belongs, whichever comes first. Only the one that removed it hands over its result.

A signal handler may close the client while the code under it holds the lock. So the lock can be taken again by the
same thread, and our own thread, for whose end stop() waits, never waits for the lock once it is told to stop.
"""

import asyncio
import os
import sys
import threading
import time

from ._errors import DisconnectedError, Error, NotFoundError, NotNewerError, TensorLostError, TimeoutError

_SLICE = 60.0  # seconds; the library notices by itself if the daemon ends
_BACKOFF = 0.1
_LOCK_SLICE = 0.05  # seconds; the lock is never held for as long, except by code under a signal handler


class _Wait:
    __slots__ = ("call_soon", "deadline", "future", "mode", "name", "newer_than", "seconds")

    def __init__(self, name, newer_than, mode, seconds, deadline, call_soon, future):
        self.name = name
        self.newer_than = newer_than
        self.mode = mode
        self.seconds = seconds  # as the caller gave them
        self.deadline = deadline  # as time.monotonic()
        self.call_soon = call_soon  # from any thread, to the loop
        self.future = future


class TrioFuture:
    """As much of an asyncio.Future as a wait needs, for trio. Only code in trio's loop uses it."""

    def __init__(self, trio):
        self._event = trio.Event()
        self._over = False
        self._tensor = self._error = None

    def done(self):
        return self._over

    def cancelled(self):
        return self._tensor is None and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._tensor

    def set_result(self, tensor):
        self._over, self._tensor = True, tensor
        self._event.set()

    def set_exception(self, error):
        self._over, self._error = True, error
        self._event.set()

    def __await__(self):
        try:
            yield from self._event.wait().__await__()
        finally:
            self._over = True  # if it is cancelled, what comes later is released
        if self._error is not None:
            raise self._error
        return self._tensor


def running_trio():
    """Return the module if the calling task is one of trio's, else None. It is not imported for that."""
    trio = sys.modules.get("trio")
    try:
        if trio is not None and trio.lowlevel.current_task():
            return trio
    except RuntimeError:  # it is another library's
        pass
    return None


def is_gevent():
    """Return whether gevent has patched this process, so that time.sleep() and select.select() let other greenlets run."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("time") and monkey.is_module_patched("select")


class Pauses:
    """The seconds between looks at what nothing tells the end of, as a GPU's work: short at first, then longest."""

    def __init__(self, longest=0.005):
        self._next, self._longest = 0.0001, longest

    def next(self):
        seconds, self._next = self._next, min(1.5 * self._next, self._longest)
        return seconds


async def ordered(client, tensor, stream, deadline):
    """Return the tensor once the stream can use it: its producer, if that is another process, has written it."""
    pauses = Pauses()
    try:
        while True:
            if client.closed:
                raise ValueError("the client was closed during an aget")
            try:
                tensor._order(stream)
                return tensor
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
            trio, seconds = running_trio(), min(pauses.next(), max(0.0, deadline - time.monotonic()))
            await (trio.sleep(seconds) if trio else asyncio.sleep(seconds))
    except BaseException:
        tensor.release()
        raise


async def let_others_run():
    """To be awaited by what may never have to wait: without it a fast producer would stop the caller's event loop."""
    trio = running_trio()
    await (trio.lowlevel.checkpoint() if trio else asyncio.sleep(0))


async def after_others(tensor):
    """Return the tensor after let_others_run(). If the task is cancelled there, the traceback must not keep it."""
    try:
        await let_others_run()
    except BaseException:
        tensor.release()
        raise
    return tensor


async def result_of(future):
    """Await a future's tensor. If the task is cancelled when it has come, the traceback of that must not keep it."""
    try:
        return await future
    except BaseException:
        if future.done() and not future.cancelled() and future.exception() is None:
            future.result().release()
        raise


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
        self.lock = threading.RLock()
        self.waits = {}  # _Wait -> None, in order of arrival
        self.thread = None
        self.running = None  # a lock that the thread releases at its end
        self.stopped = False

    def add(self, wait):
        with self.lock:
            if self.stopped:
                raise ValueError("the client is closed")
            self.waits[wait] = None
            if self.thread is None:
                running = threading.Lock()
                running.acquire()
                thread = threading.Thread(target=self._run, args=(running,), name="tensorlease-aget", daemon=True)
                thread.start()
                self.thread, self.running = thread, running  # it is not looked for before, so it can be waited for
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
            thread, running = self.thread, self.running
        self.client._wake()
        for wait in waits:
            self._hand_over(wait, None, ValueError("the client was closed during an aget"))
        if thread is not None and thread is not threading.current_thread():
            with running:  # unlike join(), this needs no lock that code under a signal handler may hold
                pass

    def _lock(self):
        """For the thread: returns whether it has the lock, or else is to stop."""
        while not self.lock.acquire(timeout=_LOCK_SLICE):
            if self.stopped:
                return False
        return True

    def _take(self, wait):
        """For the thread: returns whether the wait was there, and so is ours to end."""
        if not self._lock():
            return False
        try:
            return self.waits.pop(wait, self) is None
        finally:
            self.lock.release()

    def _next(self):
        """Returns (word, waits), or None if the thread is to end."""
        if not self._lock():
            return None
        try:
            if self.stopped or not self.waits:
                self.thread = None
                return None
            return self.client._wake_word(), tuple(self.waits)
        finally:
            self.lock.release()

    def _run(self, running):
        try:
            self._run_until_done()
        finally:
            running.release()

    def _run_until_done(self):
        while True:
            todo = self._next()
            if todo is None:
                return
            word, waits = todo
            left = min(_SLICE, max(0.0, min(w.deadline for w in waits) - time.monotonic()))
            try:
                which = self.client._wait_many(tuple((w.name, w.newer_than) for w in waits), word, left)
            except DisconnectedError as error:  # like get(), a wait goes on until there is a daemon again
                if not self._expire(waits, error):
                    time.sleep(_BACKOFF)
                continue
            except ValueError as error:
                if not isinstance(error, Error):  # closed, perhaps before there was a waiter that close() could stop
                    error = ValueError("the client was closed during an aget")
                self._fail(waits, error)
                continue
            except Exception as error:
                self._fail(waits, error)
                continue
            if which is not None:
                self._serve(waits[which:])
            self._expire(waits, None)

    def _serve(self, waits):
        """Serves all names that exist now, not only the one that woke us."""
        for wait in waits:
            tensor = error = None
            try:
                tensor = self.client.get(wait.name, newer_than=wait.newer_than, mode=wait.mode)
            except TensorLostError:  # the name exists, and would wake us again at once
                self._wait_for_newer(wait)
                continue
            except (NotFoundError, NotNewerError, DisconnectedError, TimeoutError):  # as get(), it goes on
                continue
            except Exception as caught:
                error = caught
            if self._take(wait):
                self._hand_over(wait, tensor, error)
            elif tensor is not None:
                tensor.release()

    def _expire(self, waits, ended):
        """Ends the waits whose time is up, with ended if there is no daemon. Returns whether there were any."""
        late = [wait for wait in waits if wait.deadline <= time.monotonic()]
        for wait in late:
            if self._take(wait):
                self._hand_over(wait, None, ended or self._timed_out(wait))
        return bool(late)

    def _timed_out(self, wait):
        try:
            self.client._late(wait.name, wait.newer_than, wait.seconds, wait.deadline - wait.seconds)
        except Exception as error:  # a TimeoutError, unless the client was closed
            return error

    def _wait_for_newer(self, wait):
        try:
            info = self.client.stat(wait.name)
        except Error:
            return
        if info.lost:
            wait.newer_than = max(wait.newer_than, info.version)

    def _fail(self, waits, error):
        for wait in waits:
            if self._take(wait):
                self._hand_over(wait, None, error)

    @staticmethod
    def _hand_over(wait, tensor, error):
        if error is not None:
            error = error.with_traceback(None)  # it would keep our frames, and so the tensors of other waits
        try:
            wait.call_soon(_deliver, wait.future, tensor, error)
        except RuntimeError:  # the loop is closed
            if tensor is not None:
                tensor.release()
