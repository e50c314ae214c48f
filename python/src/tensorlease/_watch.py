# SPDX-License-Identifier: Apache-2.0
"""What Client.watch() and Client.events() return: iterators over what becomes of names."""

import asyncio
import contextlib
import errno
import math
import os
import select
import time
import types
from typing import NamedTuple

from . import _core
from ._errors import DisconnectedError, InvalidError, NotFoundError, TensorLostError, TimeoutError
from ._waiter import Pauses, is_gevent, let_others_run, running_trio

_ATTEMPTS = 100  # to have a set as of one moment
_SET_MAX = 65536
_CLOSED_SLICE = 1.0  # seconds; who waits in an event loop looks so often whether the watch was closed
_ENDED_SLICE = 0.1  # seconds; while there is no daemon, what is known to be new is asked for again so often


class Event(NamedTuple):
    """What has become of a name."""

    what: str  # 'published', 'deleted', 'producer-gone', 'lost', or 'restarted', which is the daemon and no name
    name: str
    version: int  # of the tensor; for 'deleted' the last that was told
    skipped: int  # versions since the last one that was told, which nobody can get


async def _readable(fd, seconds):
    """Wait until fd is readable, or for so long."""
    trio = running_trio()
    if trio:
        with trio.move_on_after(seconds):
            await trio.lowlevel.wait_readable(fd)
        return
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    timer = loop.call_later(seconds, ready.set)  # until Python 3.11 asyncio.wait_for() may lose a cancellation
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
        timer.cancel()


class _Watching:
    """A watch, waited for by threads and by event loops. A subclass says what is given: _take() returns it, or None.

    _late(began) returns the exception for a step that began then and got nothing in time, and `over` is whether nothing
    will come any more.
    """

    over = False
    _closed = False
    _has_descriptor = False

    def __init__(self, client, name, prefix, new, timeout):
        _core.check_seconds("timeout", timeout)
        self._client, self._name, self._below = client, name, prefix
        self._seconds = 0.0 if timeout is None else float(timeout)
        self._core = client._watch(name, prefix, new)
        self._told = []  # events in order; each stays until it was noted, even if an exception comes in between

    def close(self):
        """Watch no longer. A thread or task that waits for it gets a ValueError within a second.

        If fileno() or ``async for`` was used, a thread may be waiting for an answer of the daemon. Then close() waits
        for that too, at most for the client's timeout.
        """
        self._closed = True
        self._core.close()

    def __repr__(self):
        what = repr(self._name) if not self._below else f"names below {self._name!r}" if self._name else "all names"
        address, namespace = self._client._place()
        inside = f" in namespace {namespace!r}" if namespace else ""
        closed = ", closed" if self._closed or self._client.closed else ""
        return f"<tensorlease.{type(self).__name__} of {what}{inside} at {address}{closed}>"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def fileno(self):
        """Return a descriptor that is readable when something may have happened: call poll() once, and select again.

        It stays readable while there is more. It belongs to the watch: do not read, write or close it.
        """
        self._has_descriptor = True
        return self._core.fileno()

    def poll(self):
        """Return what the next step of the iteration would give, or None if it would have to wait.

        A step of a watch with a stream also waits for the GPU work of the tensor's producer, of whose end fileno()
        tells nothing.
        """
        found = self._take()
        if found is not None and self._has_descriptor and self._has_more():
            os.eventfd_write(self._core.fileno(), 1)  # nothing else tells what was noted already
        return found

    def _has_more(self):
        """Return whether the next step would give something that was noted before."""
        return bool(self._told)

    def __iter__(self):
        return self

    def __aiter__(self):
        return self

    def _step(self, deadline, end):
        """Return (what is given, 0), or (None, for how long to wait for more). Raise end() if nothing will come."""
        try:
            found, ended = self._take(), None
        except (DisconnectedError, TimeoutError) as error:  # a wait goes on until there is a daemon that answers
            if error.errno == errno.EBUSY:
                raise
            found, ended = None, error
        if found is not None:
            return found, 0
        if self.over:
            raise end
        left = deadline - time.monotonic()
        if left <= 0:
            raise ended or self._late(deadline - self._seconds)
        return None, min(left, _ENDED_SLICE if ended else self._pause())

    def __next__(self):
        deadline = time.monotonic() + self._seconds
        while True:
            found, seconds = self._step(deadline, StopIteration)
            if found is not None:
                return found
            if is_gevent():
                self._select(min(seconds, _CLOSED_SLICE))
                continue
            with contextlib.suppress(DisconnectedError):  # _step() raises it when the time is over
                self._core.next(seconds, self._told)

    def _select(self, seconds):
        """Wait for fileno(), or for so long. The descriptor is our own, because close() ends the other one."""
        fd = self._core.dup()
        try:
            select.select([fd], [], [], seconds)
        finally:
            os.close(fd)

    async def __anext__(self):
        await let_others_run()
        deadline = time.monotonic() + self._seconds
        while True:
            found, seconds = self._step(deadline, StopAsyncIteration)
            if found is not None:
                return found
            fd = self._core.dup()  # the loop must not lose its descriptor when the watch is closed
            try:
                await _readable(fd, min(seconds, _CLOSED_SLICE))
            finally:
                os.close(fd)

    def _pause(self):
        """Return after how many seconds to look although nothing has happened."""
        return math.inf


class Events(_Watching):
    """What becomes of all names below a prefix. Client.events() returns it."""

    def __init__(self, client, prefix, new, timeout):
        super().__init__(client, prefix, True, new, timeout)

    def _take(self):
        if not self._told and not self._core.next(0, self._told):
            return None
        event = Event(*self._told[0])
        del self._told[:1]  # the last step, as Watch has it
        return event

    def _late(self, began):
        return TimeoutError(
            errno.ETIMEDOUT, f"nothing happened to names below {self._name!r} within {self._seconds:g} s"
        )


class Watch(_Watching):
    """The newest versions of a name, or of all names below a prefix. Client.watch() returns it."""

    def __class_getitem__(cls, given):  # Watch[Tensor], as the stub has it
        return types.GenericAlias(cls, given)

    def __init__(self, client, name, whole, newer_than, timeout, options, until_gone):
        newest = 0 if newer_than is None else _core.check_uint64("newer_than", newer_than)
        super().__init__(client, name, whole, False, timeout)
        self._stream = options.pop("stream", None)
        _core.check_stream(self._stream)
        self._whole, self._options, self._until_gone = whole, options, until_gone
        self._unfinished = None  # (a tensor on which its producer's GPU still works, Pauses, the error that says so)
        self._given = {} if whole else {name: newest}  # the version of each name that was given last
        self._last = {}  # the same of names that were there ever since
        self._begun = False  # something was given by the daemon that is there now
        self._names = {}  # the version of each name that is there
        self._gone = set()  # names of those whose producers have ended
        self._lost = set()  # names below the prefix whose memory went with its producer
        self.skipped = 0  # versions that were skipped before the last one that was given

    def close(self):
        super().close()
        self._unfinished = None

    def _pause(self):
        return self._unfinished[1].next() if self._unfinished else math.inf

    def _drain(self):
        """Note all that has happened. An event that is noted twice does no harm."""
        while self._told or self._core.next(0, self._told):
            self._note(Event(*self._told[0]))
            del self._told[:1]

    def _note(self, event):
        if event.what == "published":
            self._names[event.name] = event.version
            self._gone.discard(event.name)
            self._lost.discard(event.name)
        elif event.what == "producer-gone":
            self._gone.add(event.name)
        elif event.what in ("deleted", "lost"):
            self._names.pop(event.name, None)
            self._last.pop(event.name, None)
            self._gone.discard(event.name)
            (self._lost.add if event.what == "lost" and self._whole else self._lost.discard)(event.name)
        else:
            self._names.clear()
            self._last.clear()
            self._gone.clear()
            self._lost.clear()
            self._begun = False

    def _late(self, began):
        if self._unfinished:
            return self._unfinished[2]
        if self._whole:
            return TimeoutError(
                errno.ETIMEDOUT, f"nothing new came below {self._name!r} within {self._seconds:g} s"
            )
        try:
            self._client._late(self._name, self._given[self._name], self._seconds, began)
        except Exception as error:
            return error

    def _take(self):
        self._drain()
        found = self._take_set() if self._whole else self._take_one()
        if found is None and self._until_gone and not self._unfinished:
            # the last may have been had before: that is what newer_than says
            had = not self._whole and 0 < self._names.get(self._name, 0) <= self._given[self._name]
            self.over = (self._begun or had) and self._gone >= self._names.keys()
        return found

    def _skipped(self, name, version):
        return max(0, version - self._last.get(name, version) - 1)

    def _take_one(self):
        name, before = self._name, self._given[self._name]
        if not self._unfinished and self._names.get(name, 0) <= before:
            return None
        try:
            tensor, pauses = (self._unfinished or (self._client.get(name, **self._options), Pauses()))[:2]
            if not self._order(tensor, pauses):
                return None
        except (NotFoundError, TensorLostError):
            return None  # that is told soon
        self.skipped = self._skipped(name, tensor.version)
        self._last[name] = tensor.version
        self._begun = True
        self._given[name] = tensor.version  # the last step: until then an exception leaves it to be given
        return tensor

    def _order(self, tensor, pauses):
        """Return whether the stream can use the tensor, which is kept until then."""
        self._unfinished = None
        if self._stream is not None:
            try:
                tensor._order(self._stream)
            except TimeoutError as error:
                self._unfinished = tensor, pauses, error.with_traceback(None)
        return not self._unfinished

    def _is_new(self):
        return self._given.keys() != self._names.keys() or any(
            version > self._given[name] for name, version in self._names.items()
        )

    def _has_more(self):
        return super()._has_more() or (self._whole and self._is_new())

    def _take_set(self):
        """All names of a group are known by the time that one tensor of it is there and nothing more is told."""
        for _ in range(_ATTEMPTS):
            if self._lost or not self._is_new():  # what is left of a set is none
                return None
            if not self._names:  # deleted, or another daemon has begun: the next set is to come
                self._given = {}
                return None
            names = list(self._names)
            if len(names) > _SET_MAX:
                raise InvalidError(
                    errno.EINVAL,
                    f"{len(names)} names are below {self._name!r}, and a set has at most {_SET_MAX}: watch a longer prefix",
                )
            try:
                tensors = self._client._get_many(tuple(names), None, self._options["mode"], self._options["device"])
            except (NotFoundError, TensorLostError):
                return None  # that is told soon
            self._drain()
            if self._names.keys() == set(names) and not self._lost:
                versions = {name: tensor.version for name, tensor in zip(names, tensors, strict=True)}
                self.skipped = sum(self._skipped(name, version) for name, version in versions.items())
                found = {name[len(self._name) :]: tensor for name, tensor in zip(names, tensors, strict=True)}
                self._given, self._last, self._begun = versions, dict(versions), True
                return found
            for tensor in tensors:
                tensor.release()
        raise TimeoutError(
            errno.EBUSY,
            f"there was no moment at which the names below {self._name!r} stayed the same: they come and go faster than "
            "their tensors can be had together",
        )
