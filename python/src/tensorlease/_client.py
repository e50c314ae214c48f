# SPDX-License-Identifier: Apache-2.0
"""The Client, and what its questions are answered with."""

import asyncio
import errno
import math
import operator
import os
import threading
from typing import NamedTuple

from . import _core
from ._dtypes import parse_dtype
from ._errors import NotFoundError, NotNewerError, TimeoutError
from ._waiter import Waiter, _Wait

_PADDED = 4  # DLPack's IS_SUBBYTE_TYPE_PADDED


class Info(NamedTuple):
    """What is known of a tensor without getting it."""

    name: str
    version: int
    shape: tuple
    dtype: str
    nbytes: int  # of the payload
    committed_ns: int  # when, as time.time_ns()
    device: str
    uid: int  # of the user who published it
    metadata: bytes


class Status(NamedTuple):
    """What a daemon says of itself. Sizes are bytes."""

    address: str
    started_ns: int  # as time.time_ns()
    capacity: int  # that it may use
    bytes_used: int  # by segments, warm ones included
    bytes_warm: int  # kept for the next tensor of the same size
    commits: int  # since it started
    tensors: int  # that a name means now
    retired: int  # that no name means any more but somebody holds
    drafts: int
    segments: int
    clients: int
    max_tensors: int
    max_clients: int
    daemon_pid: int


class ClientInfo(NamedTuple):
    """A client of the daemon."""

    id: int
    label: str  # its program's name
    pid: int
    uid: int
    gid: int
    drafts: int
    leases: int
    tensors_held: int
    bytes_held: int


class Holding(NamedTuple):
    """A tensor that a client holds."""

    name: str
    version: int
    nbytes: int
    leases: int
    retired: bool  # the name means something else by now, or nothing


class Published(NamedTuple):
    """What publish() did."""

    version: int  # None with wait=False
    copied: bool  # the bytes had to be copied once


def connect(address=None, *, autostart=True, timeout=10.0):
    """Connects to a daemon and returns a Client, which is a context manager.

    address: path of its socket, a str or os.PathLike. None: $TENSORLEASE_SOCKET, else /run/tensorlease/socket if
        it exists, else $XDG_RUNTIME_DIR/tensorlease/socket, else /tmp/tensorlease-UID/socket.
    autostart: if nobody listens there, start the daemon of this package for this user; it ends by itself
        when there have been no clients and no tensors for a while.
    timeout: seconds that a request waits for the daemon's answer.
    NoDaemonError (a ConnectionRefusedError): nobody listens. PermissionDeniedError: the socket is not for this user.
    """
    return Client(address, autostart=autostart, timeout=timeout)


class Client(_core.Client):
    """A connection to a daemon. Any thread may use it at any time.

    After a fork the child may use it as well: it reads on what its parent held, and connects anew when it has
    to. Pickled, as by multiprocessing's spawn, it is another connection to the same address. Connections that end are
    replaced by the next call.
    """

    def __new__(cls, address=None, *, autostart=True, timeout=10.0):
        self = super().__new__(cls, address, autostart=autostart, timeout=timeout)
        self._arguments = (address, autostart, timeout)
        self._waiter = None
        self._waiter_lock = threading.Lock()
        return self

    def __init__(self, address=None, *, autostart=True, timeout=10.0):
        pass

    def __reduce__(self):
        address, autostart, timeout = self._arguments
        return (_reconnect, (type(self), address, autostart, timeout))

    def close(self):
        """Ends the connection; waiting gets end with a ValueError. Tensors got through it stay valid."""
        waiter = self._waiter
        if waiter is not None and waiter.pid == os.getpid():
            waiter.stop()
        self._close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        if self.closed:
            return "<tensorlease.Client, closed>"
        return f"<tensorlease.Client of {self.status().address}>"

    # ---- Publishing ----

    def create(self, name, shape, dtype, *, metadata=None, timeout=None, padded=False):
        """Makes memory for a tensor that will be called name, and returns it as a Draft to write to.

        shape: an int or a sequence of ints, each 0 or more, at most 64 of them.
        dtype: 'float32', numpy.float32, torch.float32, ...; 'bfloat16' and DLPack's small floats too.
        metadata: bytes to attach, at most 1024. timeout: seconds to wait for space if there is none.
        padded: for types of less than a byte, each element takes a byte.
        NoSpaceError: it does not fit. PermissionDeniedError: the name belongs to another user.
        """
        try:
            sizes = (operator.index(shape),)
        except TypeError:
            sizes = tuple(operator.index(n) for n in shape)
        return self._create(name, sizes, parse_dtype(dtype), _PADDED if padded else 0, metadata, timeout)

    def publish(self, name, tensor, *, metadata=None, timeout=None, wait=True):
        """Publishes tensor by handing it over, without a copy where that is possible.

        It is possible with a Draft, with arrays over a Draft's whole memory, and with a read-only Tensor, which thereby
        gets a second name. Everything else is copied once, as put() does, and the result's `copied` says so.
        Returns Published(version, copied).
        """
        version, copied = self._publish(name, tensor, metadata=metadata, timeout=timeout, wait=wait)
        seal = getattr(tensor, "_seal", None)
        if seal is not None:
            seal()
        return Published(version, copied)

    # ---- Getting ----

    async def aget(self, name, *, timeout=math.inf, newer_than=None, mode="r"):
        """get() for asyncio: waits without blocking the loop. One thread serves all waits of this client.

        timeout: seconds; by default it waits for ever, or until the task is cancelled. The rest as get().
        """
        try:
            return self.get(name, newer_than=newer_than, mode=mode)
        except (NotFoundError, NotNewerError):
            if not timeout:
                raise
        loop = asyncio.get_running_loop()
        wait = _Wait(name, newer_than or 0, mode, loop, loop.create_future())
        waiter = self._get_waiter()
        waiter.add(wait)
        timer = None
        if timeout != math.inf:
            timer = loop.call_later(timeout, _time_out, wait, timeout)
        try:
            return await wait.future
        finally:
            if timer is not None:
                timer.cancel()
            waiter.discard(wait)

    def _get_waiter(self):
        waiter = self._waiter
        if waiter is None or waiter.pid != os.getpid():  # a forked child has not the thread
            if waiter is not None:
                self._waiter_lock = threading.Lock()
            with self._waiter_lock:
                waiter = self._waiter
                if waiter is None or waiter.pid != os.getpid():
                    waiter = self._waiter = Waiter(self)
        return waiter

    # ---- Looking around ----

    def stat(self, name):
        """Info of the tensor that name means now. NotFoundError: there is none."""
        return Info._make(self._stat(name))

    def list(self, prefix=""):
        """Infos of the tensors whose names start with prefix, sorted by name."""
        return sorted(map(Info._make, self._list(prefix)))

    def status(self):
        """Status of the daemon."""
        return Status._make(self._status())

    def clients(self):
        """ClientInfos of the daemon's clients."""
        return [ClientInfo._make(t) for t in self._clients()]

    def holdings(self, client_id):
        """Holdings of the client with that id."""
        return [Holding._make(t) for t in self._holdings(client_id)]


def _reconnect(cls, address, autostart, timeout):
    return cls(address, autostart=autostart, timeout=timeout)


def _time_out(wait, seconds):
    if wait.future.done():
        return
    what = f"no version of {wait.name!r} above {wait.newer_than}" if wait.newer_than else f"no tensor {wait.name!r}"
    wait.future.set_exception(TimeoutError(errno.ETIMEDOUT, f"{what} came within {seconds:g} s"))
