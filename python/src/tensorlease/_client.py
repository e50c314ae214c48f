# SPDX-License-Identifier: Apache-2.0
"""The Client, and the named tuples that its methods return."""

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
_EVER = 9.2e9  # seconds that mean "forever" to the library


class Info(NamedTuple):
    """The properties of a tensor."""

    name: str
    version: int
    shape: tuple
    dtype: str
    nbytes: int  # of its elements
    committed_ns: int  # time of publishing, as time.time_ns()
    device: str  # 'cpu', 'cuda:0'; 'cuda' if this process has not used that GPU through tensorlease
    uid: int  # of the user who published it
    metadata: bytes
    device_uuid: str  # of a GPU, the same in all processes; None for the CPU
    lost: bool  # its GPU memory is gone with the process that published it


class Status(NamedTuple):
    """The state of a daemon. Sizes are in bytes."""

    address: str
    started_ns: int  # as time.time_ns()
    capacity: int  # that all tensors together may use
    bytes_used: int  # by all segments, including warm ones
    bytes_warm: int  # kept empty for the next tensor of the same size
    commits: int  # tensors published since the daemon started
    tensors: int  # that have a name
    retired: int  # that have no name any more but are still held
    drafts: int
    segments: int
    clients: int
    max_tensors: int
    max_clients: int
    daemon_pid: int


class ClientInfo(NamedTuple):
    """A client of the daemon."""

    id: int
    label: str  # the name of its program
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
    retired: bool  # its name was deleted, or means another tensor


class Published(NamedTuple):
    """The result of publish()."""

    version: int  # None with wait=False
    copied: bool  # whether the bytes were copied


class Loaded(NamedTuple):
    """The result of load()."""

    names: list  # of the tensors, in the order of the file
    metadata: dict  # texts about the whole file: the __metadata__ of .safetensors


def connect(address=None, *, autostart=None, timeout=10.0):
    """Connect to a daemon and return a Client, which is a context manager.

    address: path of the daemon's socket, a str or os.PathLike. None: $TENSORLEASE_SOCKET, else /run/tensorlease/socket
        if it exists, else $XDG_RUNTIME_DIR/tensorlease/socket, else /tmp/tensorlease-UID/socket.
    autostart: whether to start the daemon of this package for this user if nobody listens there. It ends by itself
        when it has had no clients and no tensors for a while. None: only if the address was given neither here nor by
        $TENSORLEASE_SOCKET, so that a mistyped address is an error.
    timeout: seconds that a request waits for the daemon's answer, here and in later calls. None or 0: 10 seconds. A
        signal does not end that wait.
    NoDaemonError (a ConnectionRefusedError): nobody listens at the address. PermissionDeniedError: this user may not
    use the socket, or the daemon runs as a user that is not trusted. Trusted are this user, root, the system user of
    the packaged service, and the uids in $TENSORLEASE_TRUST_UID, separated by commas.
    """
    return Client(address, autostart=autostart, timeout=timeout)


class Client(_core.Client):
    """A connection to a daemon. Any thread may use it at any time.

    Calls that wait or copy release the GIL. Waits for a tensor or for space end with Ctrl-C and with close().

    Besides its own errors each call may raise a ValueError (the client is closed, or an argument is wrong), a
    TypeError, a DisconnectedError (the daemon is gone; the next call connects again) and a TimeoutError (the daemon did
    not answer within connect()'s timeout). If the process is out of memory or descriptors, it raises MemoryError or a
    plain OSError.

    After a fork the child may use the client too. It keeps what its parent held, and makes a connection of its own when
    it needs one. A pickled client, as for multiprocessing's spawn, becomes another connection to the same address.
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
        """End the connection. Tensors that were got through it stay valid.

        Calls that wait in other threads end with a ValueError. Drafts that are not committed are aborted. The second
        call does nothing.

        Memory on a GPU can outlive this process only once the GPU has written it. close() waits for that, at most the
        client's timeout. It raises a TimeoutError (the GPU is not done, or the daemon does not answer), a
        DisconnectedError, or another Error (the GPU failed) if consumers will not get some of these tensors. The client
        is closed in any case. If a client is collected instead, sys.unraisablehook gets the error. The end of the
        interpreter waits too, but reports nothing. os._exit(), with which multiprocessing ends its processes, does not
        wait.
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
        """Make memory for a tensor that will be called name, and return it as a Draft to write to.

        shape: an int or a sequence of at most 64 ints, each 0 or more.
        dtype: 'float32', numpy.float32, torch.float32, ...; also 'bfloat16' and DLPack's small floats.
        device: None or 'cpu' for shared memory; 'cuda:1', 1, a torch.device, ... for that GPU ('cuda' is 'cuda:0').
            What is published from there outlives this process, and consumers cannot write to it.
        metadata: bytes to attach, at most 1024.
        timeout: seconds to wait for space. None: do not wait.
        padded: whether each element of a type of less than a byte takes a whole byte.
        NoSpaceError: it does not fit. PermissionDeniedError: the name belongs to another user. NoDeviceError: CUDA
        or that GPU cannot be used here. UnsupportedError: the GPU has no memory that can be shared in this way.
        """
        number = parse_device(device)
        number = -1 if number is None else number
        sizes, element = _parse_shape(shape), parse_dtype(dtype)
        _check_size(sizes, 8 if padded else element[1] * element[2])
        return self._create(name, sizes, element, _PADDED if padded else 0, metadata, timeout, number)

    empty = create  # as it is called in NumPy and PyTorch

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
        """Publish tensor by handing it over, without a copy where that is possible.

        On the CPU nothing is copied if tensor is a Draft, an array over the whole memory of a Draft, or a read-only
        Tensor, which gets a second name. Anything else is copied once, as put() does, and `copied` in the result is
        True. With no_copy that is an UnsupportedError instead.

        On a GPU nothing is copied: the allocation in which the tensor lies is shared. The library keeps the tensor
        until nobody holds what was published, and until then nobody may write to it. It ends with this process, unless
        it lies in CUDA's virtual memory (create(device=...), or PyTorch's expandable_segments).
        stream: consumers wait, on their streams, for the work that is queued on this stream now, and for what the
            tensor's own library is doing to it. An int as DLPack numbers streams, or a stream object. None: CUDA's
            legacy default stream.
        sealed: wait here until the tensor is written, so that no consumer has to. Use it for weights.
        staging: allow a copy on the GPU if the memory cannot be shared. If no stream is named, wait for that copy.
        metadata, timeout, wait: as for put().
        Returns Published(version, copied).
        UnsupportedError: the tensor cannot be shared, or is strided; the text says what to do. NoDeviceError: CUDA
        cannot be used here. An Error with errno EINPROGRESS: the daemon did not answer, so that the tensor may have
        been published; the library keeps it as if it were.
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
        """Publish copies of many arrays in one step: all of them or, on failure, none.

        arrays: a dict, or another mapping, of 1 to 65,536 names and arrays on the CPU, as put() takes them. A
            state_dict is one: ``client.put_many(model.state_dict(), prefix="model/")``. Arrays that share memory become
            separate tensors.
        prefix: is put in front of each name.
        metadata: bytes to attach to each tensor, or a dict of names, as in arrays, and bytes, for some of them.
        timeout: seconds to wait for space. None: do not wait.
        A process that gets the new version of one tensor, and then another tensor, gets the new version of that too.
        get_many() gets all of them. Their memory is given back when the last of them is gone. Raises the errors of
        put(), with the name in the text. Returns None; stat() tells versions.
        """
        if not isinstance(arrays, Mapping):
            raise TypeError(f"arrays must be a mapping of names and arrays, such as a dict, not {type(arrays)!r}")
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
        """Take leases on many tensors as of one moment: all or none of what a put_many() published.

        names: an iterable of names, or a str for all tensors whose names start with it.
        prefix: is put in front of names, and left out of the result's keys. So ``client.get_many(prefix="model/")``
            returns what ``client.put_many(arrays, prefix="model/")`` published.
        timeout: seconds to wait until all names exist or, with a str, any. None: do not wait. inf: wait forever.
        mode: 'r' for read-only, or 'c' for copy-on-write, as for get().
        Returns a dict of names and Tensors, each with a lease of its own. With a str, the names are listed before and
        after the tensors are got. If they changed in between, all of it is done again.
        NotFoundError: a name does not exist, or no name starts with the str. TimeoutError: this is still so after the
        timeout. Other errors are those of get().
        """
        if isinstance(names, str):
            _check_str("prefix", prefix)
            found = self._get_all(prefix + names, timeout, mode)
            return {name[len(prefix) :]: tensor for name, tensor in found.items()} if prefix else found
        if not isinstance(names, Iterable) or isinstance(names, (bytes, bytearray)):
            raise TypeError(f"names must be a str or an iterable of them, not {type(names)!r}")
        names = list(names)
        return dict(zip(names, self._get_many(_prefixed(prefix, names), timeout, mode), strict=True))

    async def aget(self, name, *, timeout=math.inf, newer_than=None, mode="r", stream=None):
        """Do what get() does, for asyncio: wait without blocking the loop. One thread serves all waits of a client.

        timeout: seconds; by default it waits forever, or until the task is cancelled. Other arguments and errors are
        those of get().
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
        if waiter is None or waiter.pid != os.getpid():  # a child of fork() does not have the thread
            if waiter is not None:
                self._waiter_lock = threading.Lock()
            with self._waiter_lock:
                waiter = self._waiter
                if waiter is None or waiter.pid != os.getpid():
                    waiter = self._waiter = Waiter(self)
        return waiter

    # ---- Files ----

    def load(self, prefix, path, *, format=None, timeout=None, progress=None):
        """Publish all tensors of a file in one step, as `tensorlease load` does.

        The tensors of a .npz or .safetensors file are called PREFIX/NAME, with their names in the file. A '/' in these
        separates components, and an empty prefix is left out. The tensor of a .npy file, or of a TensorProto (.pb), is
        called prefix.
        path: a str or os.PathLike.
        format: 'npy', 'npz', 'safetensors' or 'pb'. None: the suffix of path decides.
        timeout: seconds to wait for space. None: do not wait.
        progress: called as progress(done, total), in bytes, on this thread. An exception from it ends the load.
        Returns Loaded(names, metadata). The file is read straight into shared memory, without the GIL.
        InvalidError (a ValueError): the file is malformed, or a name in it is invalid; the text says what and where.
        UnsupportedError: it contains something that is no tensor, such as strings. OSError: it cannot be read. In these
        cases, and after Ctrl-C, nothing is published.
        """
        return Loaded._make(self._load(prefix, path, format, timeout, progress))

    def save(self, prefix, path, *, format=None, progress=None):
        """Write tensors to a file, as `tensorlease save` does, and return their names.

        A .npz or .safetensors file gets all tensors below PREFIX/, as they were at one moment; in the file their names
        are without PREFIX/. A .npy or .pb file gets the tensor called prefix. An existing file is replaced as a whole,
        or not at all.
        path, format and progress: as for load().
        NotFoundError: there is no such tensor. UnsupportedError: the format does not have a type, such as bfloat16 in
        .npy and .npz files, or a tensor is on a GPU. OSError: the file cannot be written.
        """
        return self._save(prefix, path, format, progress)

    # ---- Looking around ----

    def stat(self, name):
        """Return Info about the tensor that name means now. NotFoundError: no tensor has that name."""
        return Info._make(self._stat(name))

    def list(self, prefix=""):
        """Return Infos of the tensors whose names start with prefix, sorted by name."""
        return sorted(map(Info._make, self._list(prefix)))

    def status(self):
        """Return the daemon's Status. Makes no request: if the daemon was killed, it is the last state."""
        return Status._make(self._status())

    def devices(self):
        """Return a DeviceUsage for each GPU on which the daemon counts something."""
        return [DeviceUsage._make(t) for t in self._devices()]

    def clients(self):
        """Return a ClientInfo for each of the daemon's clients."""
        return [ClientInfo._make(t) for t in self._clients()]

    def holdings(self, client_id):
        """Return Holdings of the client with that id, an int of clients(). NotFoundError: there is no such client."""
        return [Holding._make(t) for t in self._holdings(client_id)]


def _check_str(argument, value):
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {type(value)!r}")


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
    raise TypeError(f"shape must be an int or a sequence of ints, not {shape!r}")


def _check_size(sizes, bits):
    for i, size in enumerate(sizes):
        if not 0 <= size <= _SIZE_MAX:
            raise InvalidError(errno.EINVAL, f"shape: dimension {i} is {size}; it must be 0 to 2^63-1")
    if math.prod(size or 1 for size in sizes) * bits > 8 * _SIZE_MAX:
        raise InvalidError(errno.EINVAL, f"shape: {sizes} of {bits} bits each is more than 2^63-1 bytes")


def _reconnect(cls, address, autostart, timeout):
    return cls(address, autostart=autostart, timeout=timeout)


def _time_out(wait, seconds):
    if wait.future.done():
        return
    what = f"no version of {wait.name!r} above {wait.newer_than}" if wait.newer_than else f"no tensor {wait.name!r}"
    wait.future.set_exception(TimeoutError(errno.ETIMEDOUT, f"{what} came within {seconds:g} s"))
