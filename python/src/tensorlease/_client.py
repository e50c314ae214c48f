# SPDX-License-Identifier: Apache-2.0
"""The Client, and what its questions are answered with."""

import asyncio
import errno
import math
import operator
import os
import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import _core
from ._cuda import DeviceUsage, parse_device
from ._dtypes import parse_dtype
from ._errors import InvalidError, NotFoundError, NotNewerError, TimeoutError, TensorLostError
from ._waiter import Waiter, _Wait

_PADDED = 4  # DLPack's IS_SUBBYTE_TYPE_PADDED
_SIZE_MAX = 2**63 - 1
_EVER = 9.2e9  # seconds from which on the library waits for ever


class Info(NamedTuple):
    """What is known of a tensor without getting it."""

    name: str
    version: int
    shape: tuple
    dtype: str
    nbytes: int  # of the payload
    committed_ns: int  # when, as time.time_ns()
    device: str  # 'cpu', 'cuda:0'; 'cuda' of a GPU that this process has not used through tensorlease
    uid: int  # of the user who published it
    metadata: bytes
    device_uuid: str  # of a GPU, the same in all processes; None: the CPU
    lost: bool  # its GPU memory is gone with the process that published it


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


class Loaded(NamedTuple):
    """What load() published."""

    names: list  # of the tensors, in the order of the file
    metadata: dict  # texts about the file as a whole: the __metadata__ of .safetensors


def connect(address=None, *, autostart=None, timeout=10.0):
    """Connects to a daemon and returns a Client, which is a context manager.

    address: path of its socket, a str or os.PathLike. None: $TENSORLEASE_SOCKET, else /run/tensorlease/socket if
        it exists, else $XDG_RUNTIME_DIR/tensorlease/socket, else /tmp/tensorlease-UID/socket.
    autostart: if nobody listens there, start the daemon of this package for this user; it ends by itself
        when there have been no clients and no tensors for a while. None: only if no address was given, neither here nor
        by $TENSORLEASE_SOCKET: a mistyped one is an error then.
    timeout: seconds that a request waits for the daemon's answer, the first ones included; None or 0: 10. No signal
        ends that wait.
    NoDaemonError (a ConnectionRefusedError): nobody listens. PermissionDeniedError: the socket is not for this user, or the
    daemon is another user's; $TENSORLEASE_TRUST_UID names uids other than ours and root's to trust, commas between.
    """
    return Client(address, autostart=autostart, timeout=timeout)


class Client(_core.Client):
    """A connection to a daemon. Any thread may use it at any time; what waits or copies releases the GIL.

    Ctrl-C and close() end what waits, for a tensor or for space. Beside its own errors each call may raise a ValueError
    (the client is closed; an argument is wrong), a TypeError, a DisconnectedError (the daemon is gone; the next call
    connects anew) and, if the daemon does not answer within connect()'s timeout, a TimeoutError. MemoryError and the
    OSErrors of a process without memory or descriptors are what they are everywhere.

    After a fork the child may use it as well: it reads on what its parent held, and connects anew when it has
    to. Pickled, as by multiprocessing's spawn, it is another connection to the same address. Connections that end are
    replaced by the next call.
    """

    def __new__(cls, address=None, *, autostart=None, timeout=10.0):
        given = address is not None or bool(os.environ.get("TENSORLEASE_SOCKET"))
        starts = not given if autostart is None else autostart
        self = super().__new__(cls, address, autostart=starts, timeout=timeout)
        self._arguments = (address, autostart, timeout)
        self._waiter = None
        self._waiter_lock = threading.Lock()
        return self

    def __init__(self, address=None, *, autostart=None, timeout=10.0):
        pass

    def __reduce__(self):
        address, autostart, timeout = self._arguments
        return (_reconnect, (type(self), address, autostart, timeout))

    def close(self):
        """Ends the connection. What waits in other threads ends with a ValueError; Tensors got through it stay valid.

        Drafts that are not committed will not be. Does nothing the second time.

        Waits, at most the client's timeout, until the GPU has written what was published in memory that outlives this
        process. A TimeoutError (it has not, or the daemon does not answer), a DisconnectedError or another Error (the
        GPU failed) says what others will not get; the client is closed all the same. If the client is not closed but
        collected, sys.unraisablehook is told. The interpreter's end waits likewise, but tells nobody; os._exit(), with
        which multiprocessing ends its processes, does not wait.
        """
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

    def create(self, name, shape, dtype, *, device=None, metadata=None, timeout=None, padded=False):
        """Makes memory for a tensor that will be called name, and returns it as a Draft to write to.

        shape: an int or a sequence of ints, each 0 or more, at most 64 of them.
        dtype: 'float32', numpy.float32, torch.float32, ...; 'bfloat16' and DLPack's small floats too.
        device: None or 'cpu': shared memory. 'cuda:1', 1, a torch.device, ...: that GPU ('cuda' is 'cuda:0'). What is
            published from there outlives this process, and the GPU enforces that consumers only read it.
        metadata: bytes to attach, at most 1024. timeout: seconds to wait for space if there is none; not on a GPU.
        padded: for types of less than a byte, each element takes a byte.
        NoSpaceError: it does not fit. PermissionDeniedError: the name belongs to another user. NoDeviceError: CUDA
        cannot be used here, or there is no such GPU. UnsupportedError: it has no memory that can be shared so.
        """
        number = parse_device(device)
        number = -1 if number is None else number
        sizes, element = _parse_shape(shape), parse_dtype(dtype)
        _check_size(sizes, 8 if padded else element[1] * element[2])
        return self._create(name, sizes, element, _PADDED if padded else 0, metadata, timeout, number)

    empty = create  # what NumPy and PyTorch call it

    def publish(
        self,
        name,
        tensor,
        *,
        stream=None,
        sealed=False,
        staging=False,
        no_copy=False,
        metadata=None,
        timeout=None,
        wait=True,
    ):
        """Publishes tensor by handing it over, without a copy where that is possible.

        On the CPU it is possible with a Draft, with arrays over a Draft's whole memory, and with a read-only Tensor,
        which thereby gets a second name. Everything else is copied once, as put() does, and the result's `copied` says
        so. no_copy: UnsupportedError instead of that copy.

        On a GPU nothing is copied: the allocation that the tensor lies in is shared. The library keeps the tensor until
        nobody holds what was published; until then it must not be written to. It goes with this process, unless it is
        of CUDA's virtual memory (create(device=...), PyTorch's expandable_segments).
        stream: what is queued there now, and what the tensor's own library is doing to it, is waited for by consumers,
            on their streams: an int as DLPack numbers streams, or a stream object. None: CUDA's legacy default stream.
        sealed: wait here until it is written, so that no consumer has to: right for weights.
        staging: what cannot be shared as it is may be copied, on the GPU. Without a stream named, waits for the copy.
        UnsupportedError: it cannot be shared, or is strided; the text says what to do. NoDeviceError: no CUDA here.
        Error with the errno EINPROGRESS: the daemon did not answer, so it may be published, and is kept as if it were.
        Returns Published(version, copied).
        """
        version, copied = self._publish(
            name,
            tensor,
            stream=stream,
            sealed=sealed,
            staging=staging,
            no_copy=no_copy,
            metadata=metadata,
            timeout=timeout,
            wait=wait,
        )
        seal = getattr(tensor, "_seal", None)
        if seal is not None:
            seal()
        return Published(version, copied)

    def put_many(self, arrays, *, prefix="", metadata=None, timeout=None):
        """Publishes copies of many arrays in one step: all or, on failure, none.

        arrays: a dict, or another mapping, of 1 to 65,536 names and arrays on the CPU, as put() takes them. A
            state_dict is one: ``client.put_many(model.state_dict(), prefix="model/")``. What shares memory in there does
            not here.
        prefix: goes before each name.
        metadata: bytes to attach to each of them, or a dict of names, as in arrays, and bytes, for some of them.
        timeout: seconds to wait for space if there is none.
        Who gets one of them in its new version, and then another one, gets that in its new version too; get_many()
        always gets all of them. Their memory comes back when the last of them is gone. Errors are those of put(), with
        the name in the text. Returns None: stat() tells versions.
        """
        if not isinstance(arrays, Mapping):
            raise TypeError(f"arrays is a mapping of names and arrays, such as a dict, not {type(arrays)!r}")
        names = _prefixed(prefix, arrays)
        if isinstance(metadata, Mapping):
            unknown = [name for name in metadata if name not in arrays]
            if unknown:
                raise InvalidError(errno.EINVAL, f"metadata for {unknown[0]!r}, which is not among the arrays")
            each = [metadata.get(name) for name in arrays]
        else:
            each = [metadata] * len(names)
        self._put_many(names, [arrays[name] for name in arrays], each, timeout)

    # ---- Getting ----

    def get_many(self, names="", *, prefix="", timeout=None, mode="r"):
        """Takes leases on many tensors as they were at one moment: never only a part of what a put_many() published.

        names: an iterable of names, or a str: then all tensors whose names start with it.
        prefix: goes before what names says, and is left out of the result's keys. So
            ``client.get_many(prefix="model/")`` is what ``client.put_many(arrays, prefix="model/")`` published.
        timeout: seconds to wait until all names are there or, with a str, any; None: do not wait; inf: for ever.
        mode: 'r' read-only, or 'c' copy-on-write, as get().
        Returns a dict of names and Tensors, each with a lease of its own. With a str the names are listed before and
        after the tensors are got, and all is done again if they changed in between: what came in one step is in the
        result as a whole, or not at all.
        NotFoundError: a name is missing, or none starts so. TimeoutError: still after that time. The rest as get().
        """
        if isinstance(names, str):
            _check_str("prefix", prefix)
            found = self._get_all(prefix + names, timeout, mode)
            return {name[len(prefix) :]: tensor for name, tensor in found.items()} if prefix else found
        if not isinstance(names, Iterable) or isinstance(names, (bytes, bytearray)):
            raise TypeError(f"names is a str or an iterable of them, not {type(names)!r}")
        names = list(names)
        return dict(zip(names, self._get_many(_prefixed(prefix, names), timeout, mode), strict=True))

    async def aget(self, name, *, timeout=math.inf, newer_than=None, mode="r", stream=None):
        """get() for asyncio: waits without blocking the loop. One thread serves all waits of this client.

        timeout: seconds; by default it waits for ever, or until the task is cancelled. The rest as get().
        """
        _core.check_seconds("timeout", timeout)
        try:
            return self.get(name, newer_than=newer_than, mode=mode, stream=stream)
        except (NotFoundError, NotNewerError, TensorLostError):
            if not timeout:
                raise
        loop = asyncio.get_running_loop()
        wait = _Wait(name, operator.index(newer_than or 0), mode, stream, loop, loop.create_future())
        waiter = self._get_waiter()
        waiter.add(wait)
        timer = None
        if timeout < _EVER:
            timer = loop.call_later(float(timeout), _time_out, wait, timeout)
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

    # ---- Files ----

    def load(self, prefix, path, *, format=None, timeout=None, progress=None):
        """Publishes what is in a file, in one step, as `tensorlease load` does.

        The tensors of a .npz or .safetensors file are called PREFIX/NAME, with their names in the file, in which '/'
        splits components, too; an empty prefix is left out. The one in a .npy file, or in a TensorProto (.pb), is
        called prefix.
        path: a str or os.PathLike. format: 'npy', 'npz', 'safetensors' or 'pb'; None: what the path ends in.
        timeout: seconds to wait for space if there is none.
        progress: is called as progress(done, total), in bytes, on this thread; what it raises ends the load.
        Returns Loaded(names, metadata). The bytes go from the file straight into shared memory, without the GIL.
        InvalidError (a ValueError): the file is malformed, or a name in it is none; the text says what and where.
        UnsupportedError: it has what tensors have not, such as strings. OSError: it cannot be read. Nothing is
        published then, nor if Ctrl-C ends it.
        """
        return Loaded._make(self._load(prefix, path, format, timeout, progress))

    def save(self, prefix, path, *, format=None, progress=None):
        """Writes tensors to a file, as `tensorlease save` does, and returns their names.

        All tensors below PREFIX/ go into a .npz or .safetensors file, called without that, as they were at one moment;
        into a .npy or .pb file goes the one called prefix. A file that is there is replaced as a whole, or not at all.
        path, format and progress: as load().
        NotFoundError: there is no such tensor. UnsupportedError: the format has no name for a type, as .npy and .npz
        for bfloat16. OSError: it cannot be written.
        """
        return self._save(prefix, path, format, progress)

    # ---- Looking around ----

    def stat(self, name):
        """Info of the tensor that name means now. NotFoundError: there is none."""
        return Info._make(self._stat(name))

    def list(self, prefix=""):
        """Infos of the tensors whose names start with prefix, a str, sorted by name; those of all without one."""
        return sorted(map(Info._make, self._list(prefix)))

    def status(self):
        """Status of the daemon. Asks nobody: after the daemon was killed it is what was so then."""
        return Status._make(self._status())

    def devices(self):
        """DeviceUsages of the GPUs on which the daemon counts something."""
        return [DeviceUsage._make(t) for t in self._devices()]

    def clients(self):
        """ClientInfos of the daemon's clients."""
        return [ClientInfo._make(t) for t in self._clients()]

    def holdings(self, client_id):
        """Holdings of the client with that id, an int of clients(). NotFoundError: there is none."""
        return [Holding._make(t) for t in self._holdings(client_id)]


def _check_str(argument, value):
    if not isinstance(value, str):
        raise TypeError(f"{argument} is a str, not {type(value)!r}")


def _prefixed(prefix, names):
    _check_str("prefix", prefix)
    for name in names:
        _check_str("a tensor's name", name)
    return [prefix + name for name in names]


def _parse_shape(shape):
    try:
        return (operator.index(shape),)
    except TypeError:
        pass
    try:
        if not isinstance(shape, (str, bytes, bytearray)):
            return tuple(operator.index(n) for n in shape)
    except TypeError:
        pass
    raise TypeError(f"shape is an int or a sequence of ints, not {shape!r}")


def _check_size(sizes, bits):
    for i, size in enumerate(sizes):
        if not 0 <= size <= _SIZE_MAX:
            raise InvalidError(errno.EINVAL, f"shape: dimension {i} is {size}; it may be 0 to 2^63-1")
    if math.prod(size or 1 for size in sizes) * bits > 8 * _SIZE_MAX:
        raise InvalidError(errno.EINVAL, f"shape: {sizes} of {bits} bits each is more than 2^63-1 bytes")


def _reconnect(cls, address, autostart, timeout):
    return cls(address, autostart=autostart, timeout=timeout)


def _time_out(wait, seconds):
    if wait.future.done():
        return
    what = f"no version of {wait.name!r} above {wait.newer_than}" if wait.newer_than else f"no tensor {wait.name!r}"
    wait.future.set_exception(TimeoutError(errno.ETIMEDOUT, f"{what} came within {seconds:g} s"))
