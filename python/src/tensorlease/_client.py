# SPDX-License-Identifier: Apache-2.0
"""The Client."""

import asyncio
import contextlib
import errno
import math
import operator
import os
import sys
import time
from collections.abc import Iterable, Mapping

from . import _cache, _core
from ._arrays import PADDED
from ._cuda import DeviceUsage, parse_device
from ._dtypes import parse_sizes
from ._errors import (
    DisconnectedError,
    Error,
    InvalidError,
    NoSpaceError,
    NotFoundError,
    NotNewerError,
    PermissionDeniedError,
    TensorLostError,
    UnsupportedError,
)
from ._lock import ForkLock
from ._paths import below, check_no_pickle, paths_of, shown
from ._ref import Ref
from ._sending import pickle_for
from ._tensor import rows_like
from ._tuples import ClientInfo, Holding, Identity, Info, Loaded, Published, Reader, Rows, Status, StreamInfo
from ._waiter import TrioFuture, Waiter, _Wait, after_others, ordered, result_of, running_trio
from ._stream import Stream
from ._watch import Events, Watch

_GROUP_MAX = 65536  # tensors and names of one step
_SCHEME = "tensorlease://"
_PATH_MAX = 108  # of a socket, with a zero byte
_LABEL_MAX = 31  # bytes
_COMPLETIONS = 1000  # names that are offered after client["


def connect(address=None, *, namespace=None, autostart=None, timeout=10.0, label=None):
    """Connect to a daemon and return a Client, which is a context manager.

    address: path of the daemon's socket, a str or os.PathLike. None: $TENSORLEASE_SOCKET, else /run/tensorlease/socket
        if it exists, else $XDG_RUNTIME_DIR/tensorlease/socket, or without that variable
        /run/user/UID/tensorlease/socket if it exists, else /tmp/tensorlease-UID/socket. Or
        "tensorlease://NAMESPACE/PATH", which names a namespace too; PATH may be left out.
    namespace: the namespace whose names and tensors this client sees and publishes. None: what the address says, else
        $TENSORLEASE_NAMESPACE, else the default one, which is "".
    autostart: whether to start the daemon of this package for this user if nobody listens there. It ends by itself
        when it has had no clients and no tensors for a while. No daemon is started in the place of the system's
        service. None: only if the address was given neither here nor by $TENSORLEASE_SOCKET, so that a mistyped
        address is an error.
    timeout: seconds that a request waits for the daemon's answer, here and in later calls. None or 0: 10 seconds. A
        request for CPU memory waits a second more for each 100 MB. A signal does not end that wait. It
        also bounds the wait for another process's work on a GPU tensor, which a signal does end.
    label: what others are shown this client as, such as in `tensorlease status --clients`; at most 31 bytes. None:
        $TENSORLEASE_LABEL, else the name of the script or module that runs.
    NoDaemonError (a ConnectionRefusedError): nobody listens at the address. PermissionDeniedError: this user may not
    use the socket, there is no namespace of that name that it may read, or the daemon runs as a user that is not
    trusted. Trusted are this user, root, the system user of the packaged service, and the uids in
    $TENSORLEASE_TRUST_UID, separated by commas. TooManyClientsError: the daemon, or this user there, has as many
    connections as it may have.
    """
    return Client(address, namespace=namespace, autostart=autostart, timeout=timeout, label=label)


class Client(_core.Client):
    """A connection to a daemon. Any thread may use it at any time.

    Calls that wait or copy release the GIL. Within a thread aget() and ``async for`` let other tasks run, and with
    gevent watch(), events() and get_or_put() let greenlets run; the other waits stop them. Waits for a tensor, for its
    producer's work on a GPU or for space end with Ctrl-C and with close().

    Besides its own errors each call may raise a ValueError (the client is closed, or an argument is wrong), a
    TypeError, a DisconnectedError (the daemon is gone; the next call connects again), a KickedError (an administrator
    has disconnected this client) and a TimeoutError (the daemon did not answer within connect()'s timeout, to which a
    request for CPU memory adds a second for each 100 MB). If the process is out of memory or descriptors, it raises
    MemoryError or a plain OSError.

    After a fork the child may use the client too. It keeps what its parent held, and makes a connection of its own when
    it needs one. A pickled client, as for multiprocessing's spawn, becomes another connection to the same address.
    """

    _waiter = None
    _known = (None, None)  # the process and the daemon, and as which user that knows this one
    _arguments, _label = (None, None, None, 10.0), None  # of a subclass that has not called __init__()

    def __init__(self, address=None, *, namespace=None, autostart=None, timeout=10.0, label=None):
        given = address is not None or bool(os.environ.get("TENSORLEASE_SOCKET"))
        if autostart is not None and not isinstance(autostart, bool):
            raise TypeError(f"autostart must be True, False or None, not {autostart!r}")
        starts = not given if autostart is None else autostart
        self._connect(address, namespace, starts, timeout, _program() if label is None else label)
        self._label = label
        where = address if address is not None else os.environ.get("TENSORLEASE_SOCKET")
        self._arguments = (*_for_others(where, namespace, lambda: self.status().address), starts, timeout)

    def __reduce__(self):
        return (_reconnect, (type(self), *self._arguments, self._label))

    def _place(self):
        """Return the address and the namespace, so that names of other clients can be told from this one's."""
        address, namespace = self._arguments[:2]
        if not address or not address.startswith(_SCHEME):
            return address, namespace
        name, _, path = address[len(_SCHEME) :].partition("/")
        return f"/{path}", name if namespace is None else namespace

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

        A watch whose fileno() or ``async for`` was used has a thread that may be waiting for an answer of the daemon.
        Then close() waits for that too, at most for the client's timeout.
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
        try:
            return f"<tensorlease.Client of {self.status().address}>"
        except Error as error:
            return f"<tensorlease.Client, {type(error).__name__}>"

    def _repr_html_(self):
        from ._html import client_html

        return client_html(self)

    # ---- Publishing ----

    def create(
        self,
        name,
        shape,
        dtype,
        *,
        device=None,
        metadata=None,
        timeout=None,
        padded=False,
        ttl=None,
        owner_bound=False,
        evictable=False,
        ring=None,
        own_pages=False,
        evict_idle=0,
    ):
        """Make memory for a tensor that will be called name, and return it as a Draft to write to.

        shape: an int or a sequence of at most 64 ints, each 0 or more.
        dtype: 'float32', numpy.float32, torch.float32, ...; also 'bfloat16' and DLPack's small floats.
        device: None or 'cpu' for shared memory; 'cuda:1', 1, a torch.device, ... for that GPU ('cuda' is 'cuda:0').
            What is published from there outlives this process, and consumers map it read-only.
        metadata: what to attach, at most 1024 bytes: bytes; a str, as UTF-8; or a dict, as JSON.
        timeout: seconds to wait for space. None: do not wait.
        padded: whether each element of a type of less than a byte takes a whole byte.
        ttl, owner_bound, evictable, ring: as for put(). The time begins with the commit.
        own_pages: whether the tensor has pages of its own on the CPU, which are zero at first and go back to the kernel
            with it. Readers of it then see nothing else of this producer. There is no ring then.
        evict_idle: as for put(), for the space that it gets now.
        NoSpaceError: it does not fit. PermissionDeniedError: the name belongs to another user, or this user may not
        publish here. NoDeviceError: CUDA or that GPU cannot be used here. UnsupportedError: the GPU has no memory that
        can be shared in this way.
        """
        number = parse_device(device)
        number = -1 if number is None else number
        sizes, element = parse_sizes(shape, dtype, padded)
        lifetime, padding = (ttl, owner_bound, evictable, evict_idle), PADDED if padded else 0
        try:
            return self._create(name, sizes, element, padding, metadata, timeout, number, lifetime, ring, own_pages)
        except InvalidError as error:
            text = error.strerror.replace(" (code {}, bits {}, lanes {})".format(*element), "")
            if text == error.strerror:
                raise
            raise InvalidError(errno.EINVAL, f"dtype {dtype!r}: {text}") from None

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
        ttl=None,
        owner_bound=False,
        evictable=False,
        ring=None,
        threads=None,
    ):
        """Publish tensor by handing it over, without a copy where that is possible.

        On the CPU nothing is copied if tensor is a Draft of this client, a contiguous array that begins where such a
        Draft's memory does (which ends the Draft), or a read-only Tensor, which gets a second name. Anything else is
        copied once, as put() does, and so is a Draft that is a slot of a ring if it gets another name, a lifetime or
        more than 24 bytes of metadata: `copied` in the result is True then. With no_copy that is an UnsupportedError
        instead. A Draft of another client is refused with InvalidError, on a GPU too.

        On a GPU nothing is copied: a Tensor gets a second name, as on the CPU, once the GPU has finished it
        (TensorLostError: its memory went with its producer), and of others the allocation in which they lie is shared.
        The library keeps the tensor until nobody holds what was published, and until then nobody may write to it. It
        ends with this process, unless it lies in CUDA's virtual memory (create(device=...), cuda_alloc(),
        torch.allocator(), or PyTorch's expandable_segments).
        stream: consumers wait for the work that is queued on this stream now, and for what the tensor's own library is
            doing to it. An int as DLPack numbers streams, or a stream object. None: CUDA's
            legacy default stream.
        sealed: wait here until the tensor is written, so that no consumer has to. Use it for weights.
        staging: allow a copy on the GPU if the memory cannot be shared. If no stream is named, wait for that copy.
        metadata, timeout, wait, ttl, owner_bound, evictable: as for put(). A Draft keeps what create() was given
            unless one of the last three is given here.
        ring, threads: as for put(), if it is copied.
        Returns Published(version, copied).
        A tensor on a GPU keeps its strides, so that a slice or a transposed tensor is published where it lies.
        UnsupportedError: the tensor cannot be shared, or its elements overlap; the text says what to do. NoDeviceError: CUDA
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
            ttl=ttl,
            owner_bound=owner_bound,
            evictable=evictable,
            ring=ring,
            threads=threads,
        )
        return Published(version, copied)

    def put_many(
        self,
        arrays,
        *,
        prefix="",
        replace=False,
        metadata=None,
        timeout=None,
        stream=None,
        ttl=None,
        owner_bound=False,
        evictable=False,
    ):
        """Publish copies of many arrays in one step: all of them or, on failure, none.

        arrays: a dict, or another mapping, of 1 to 65,536 names and arrays, as put() takes them: on the CPU, or on GPUs,
            where they are copied. A state_dict is one: ``client.put_many(model.state_dict(), prefix="model")``. Arrays
            that share memory become separate tensors.
        prefix: a path; the tensors are called PREFIX/NAME. "model" and "model/" are the same, as in all of this package.
        replace: whether to delete in the same step all other names below the prefix, so that the new set takes the
            place of the former one. The prefix must not be empty then. Both together are at most 65,536. For each name
            that it deletes the daemon needs room for one more tensor (max_tensors of status()) during the step.
        metadata: what to attach to each tensor, bytes or a str; or a dict of names, as in arrays, and what to attach to
            them, which may be a dict again, for some of them.
        timeout: seconds to wait for space. None: do not wait.
        stream: the stream on which arrays on a GPU are copied, as for put().
        ttl, owner_bound, evictable: as for put(), for each of them by itself.
        A process that gets the new version of one tensor, and then another tensor, gets the new version of that too.
        get_many() gets all of them. Their memory is given back when the last of them is gone. Raises the errors of
        put(), with the name in the text. Returns None; stat() tells versions.
        """
        arrays = _read_once(arrays)
        if isinstance(metadata, Mapping):
            metadata = dict(metadata.items())
            unknown = [name for name in metadata if name not in arrays]
            if unknown:
                raise InvalidError(errno.EINVAL, f"metadata for {unknown[0]!r}, which is not among the arrays")
            each = tuple(metadata.get(name) for name in arrays)
        else:
            each = (metadata,) * len(arrays)
        lifetime, names = (ttl, owner_bound, evictable), _prefixed(prefix, arrays)
        if replace and not prefix:
            raise InvalidError(errno.EINVAL, "replace=True needs a prefix: without one it would delete all other names")
        others = tuple(set(self.keys(prefix)).difference(names)) if replace else ()
        if replace and len(names) + len(others) > _GROUP_MAX:
            raise InvalidError(
                errno.EINVAL,
                f"{len(names)} arrays replace {len(others)} other names below {prefix!r}, and one step takes at most "
                f"{_GROUP_MAX} of both: use a longer prefix",
            )
        try:
            self._put_many(names, tuple(arrays.values()), each, timeout, lifetime, stream, others)
        except NoSpaceError as error:
            if not others or not _core.lacks_tensors():
                raise
            raise NoSpaceError(
                error.errno,
                f"{error.strerror}; the step also needs a free tensor for each of the {len(others)} names that it "
                f"deletes: delete(prefix={prefix!r}) before it does without",
            ) from None

    def publish_many(
        self,
        arrays,
        *,
        prefix="",
        metadata=None,
        timeout=None,
        stream=None,
        sealed=False,
        ttl=None,
        owner_bound=False,
        evictable=False,
    ):
        """Publish many arrays in one step, as put_many() does, but those on GPUs without a copy, as publish() does.

        arrays, prefix: as for put_many(). Arrays on the CPU are copied; all of those on GPUs are on one stream. A Draft
            on a GPU is committed, as by publish().
        metadata: what to attach to each tensor, bytes or a str.
        stream and sealed: as for publish(). timeout, ttl, owner_bound, evictable: as for put_many().
        Returns how many were copied. Raises the errors of publish() and put_many().
        """
        arrays = _read_once(arrays)
        if isinstance(metadata, Mapping):
            raise TypeError("metadata of publish_many() is for each tensor: give bytes or a str, such as json.dumps() returns")
        lifetime = (ttl, owner_bound, evictable)
        each = (metadata,) * len(arrays)
        names = _prefixed(prefix, arrays)
        return self._publish_many(names, tuple(arrays.values()), each, timeout, lifetime, stream, sealed)

    # ---- Getting ----

    def get_many(self, names="", *, prefix="", timeout=None, mode="r", device=None):
        """Take leases on many tensors as of one moment: all or none of what a put_many() published.

        names: an iterable of names, or a str for all tensors below that path: get_many("model/encoder").
        prefix: a path; names are those below it, and the result's keys are without it. So
            ``client.get_many(prefix="model")`` returns what ``client.put_many(arrays, prefix="model")`` published. At
            most 65,536 tensors may be below it.
        timeout: seconds to wait until all names exist or, with a str, any. None: do not wait. inf: wait forever.
        mode: 'r' for read-only, or 'c' for copy-on-write, as for get().
        device: where the tensors are wanted, as for get().
        Returns a dict of names and Tensors, each with a lease of its own. With a str, the names are listed before and
        after the tensors are got. If they changed in between, all of it is done again.
        NotFoundError: a name does not exist, or there is none below the path. TimeoutError: this is still so after the
        timeout. Other errors are those of get().
        """
        if isinstance(names, str):
            start = below(prefix)
            found = self._get_all(start + names, timeout, mode, device)
            return {name[len(start) :]: tensor for name, tensor in found.items()}
        if not isinstance(names, Iterable) or isinstance(names, (bytes, bytearray)):
            raise TypeError(f"names must be a str or an iterable of them, not {type(names)!r}")
        names = list(names)
        return dict(zip(names, self._get_many(_prefixed(prefix, names), timeout, mode, device), strict=True))

    def gather(self, names, out=None, *, prefix="", timeout=None):
        """Copy tensors of one shape and dtype, one behind the other, into one array, and return that.

        names: an iterable of names; one may come more than once. The tensors are those of one moment, as for get_many().
        out: an array with a row for each name, in C order, that can be written to: of NumPy, PyTorch (in pinned memory
            too), a draft of create(), or a row of any of these. None: a new array of NumPy.
        prefix: a path; names are those below it.
        timeout: seconds to wait until all names exist. None: do not wait. inf: wait forever.
        It is one call for all of them, which takes the time of the copies: 8 MiB and more are copied by several threads.
        NotFoundError: a name does not exist. InvalidError (a ValueError): a tensor is not like a row of the array.
        UnsupportedError: a tensor is on a GPU. Nothing was copied then. Other errors are those of get_many().
        """
        if isinstance(names, str):
            raise TypeError(f"gather() takes several names, not {names!r}: give a list")
        names = _prefixed(prefix, list(names))
        if out is None:
            if not names:
                raise ValueError("an array for no tensors has no shape: give out=")
            with self.get(names[0], timeout=timeout) as first:
                out = rows_like(first, len(names))
        self._gather(names, (out,), (None,), timeout)
        return out

    async def aget(self, name, *, timeout=math.inf, newer_than=None, mode="r", stream=None):
        """Do what get() does, for asyncio and trio: wait without blocking the loop. One thread serves a client's waits.

        timeout: seconds; by default it waits forever, or until the task is cancelled. None: do not wait. Other arguments
        and errors are those of get(). With a stream it also waits for the GPU work of the tensor's producer in this way.
        Without one it does not: torch() names one later, and makes the calling thread wait for that.
        """
        _core.check_seconds("timeout", timeout)
        _core.check_stream(stream)
        seconds = 0.0 if timeout is None else float(timeout)
        deadline = time.monotonic() + seconds
        while True:
            try:
                tensor = await after_others(self.get(name, newer_than=newer_than, mode=mode))
            except (NotFoundError, NotNewerError, TensorLostError, DisconnectedError, TimeoutError):
                if not seconds:  # else a wait goes on, until there is a daemon that answers
                    raise
                tensor = await self._await_tensor(name, newer_than, mode, seconds, deadline)
            if stream is None:
                return tensor
            try:
                end = deadline if seconds else deadline + float(self._arguments[3] or 10.0)  # the client's timeout
                return await ordered(self, tensor, stream, end)
            except (TensorLostError, DisconnectedError):
                if not seconds or time.monotonic() >= deadline:
                    raise

    async def _await_tensor(self, name, newer_than, mode, seconds, deadline):
        trio = running_trio()
        if trio:
            call_soon, future = trio.lowlevel.current_trio_token().run_sync_soon, TrioFuture(trio)
        else:
            loop = asyncio.get_running_loop()
            call_soon, future = loop.call_soon_threadsafe, loop.create_future()
        wait = _Wait(name, operator.index(newer_than or 0), mode, seconds, deadline, call_soon, future)
        waiter = self._get_waiter()
        try:
            waiter.add(wait)
            return await result_of(future)
        finally:
            waiter.discard(wait)

    def get_or_put(
        self,
        name,
        make,
        *,
        ttl=None,
        evictable=True,
        owner_bound=False,
        metadata=None,
        mode="r",
        timeout=_cache.PATIENCE,
        trust=(),
    ):
        """Return the tensor called name, or publish what make() returns and return that, once for all processes.

        The first process to ask calls make(), which takes no arguments and returns an array, as put() takes it. Others
        that ask meanwhile wait. If make() raises or its process dies, one of those that wait makes it. All map the
        same memory.
        ttl, owner_bound, metadata: as for put().
        evictable: whether the tensor may go when the daemon needs space and nobody holds it. Then the next one makes it
            anew.
        mode: as for get().
        timeout: seconds to wait for another process that makes it, by default 600. None: do not wait. inf: wait forever.
        trust: uids of other users whose tensors are taken, or "all". By default only those of this user and of root are.
        TimeoutError: it was not made in that time: its maker hangs, or needs longer. PermissionDeniedError: there is one
        of a user who is not trusted. RuntimeError: make() asks for the same name. Other errors are those of make(),
        get() and put().
        """
        _core.check_seconds("timeout", timeout)
        trust = _cache.check_trust(trust)
        options = {"ttl": ttl, "evictable": evictable, "owner_bound": owner_bound, "metadata": metadata}
        return _cache.get_or_put(self, name, make, mode, 0.0 if timeout is None else float(timeout), trust, options)

    def _own_uid(self):
        """Return this user's uid as the daemon knows it: in a user namespace it is another one."""
        connection = os.getpid(), self.status().started_ns
        if self._known[0] != connection:
            self._known = connection, self._uid()
        return self._known[1]

    def _get_waiter(self):
        waiter = self._waiter
        if waiter is None or waiter.pid != os.getpid():  # a child of fork() does not have the thread
            with _waiter_lock():
                waiter = self._waiter
                if waiter is None or waiter.pid != os.getpid():
                    waiter = self._waiter = Waiter(self)
        return waiter

    def watch(
        self,
        name=None,
        *,
        prefix=None,
        newer_than=None,
        timeout=math.inf,
        mode="r",
        stream=None,
        device=None,
        until_gone=False,
    ):
        """Return an iterator over what is published: the newest, again and again. For ``for`` and ``async for``.

        With a name it gives Tensors: the version that is there, or the first that comes, and then each time the newest
        one. Versions that are replaced before they are asked for are skipped; the iterator's `skipped` says how many
        came between the last two that were given.

        With a prefix, or with a name that ends in a slash, it gives dicts of names, without the prefix, and Tensors:
        the newest whole set of the names below it, as of one moment, whenever one of them is new or gone. It is
        never empty: while there is none, it waits. So
        ``for weights in client.watch(prefix="policy")`` gives what each
        ``client.put_many(state_dict, prefix="policy")`` has published, and never a mix of two. If the memory of a tensor
        on a GPU goes with its producer, nothing is given until that name means something again, or is deleted.

        It goes on by itself when a producer or the daemon is restarted.
        newer_than: the first version of a name must be above it; not for a set.
        timeout: seconds to wait for each, and with a stream for its producer's GPU work; a TimeoutError ends the
            iteration. By default it waits forever. None: do not wait, so that the error comes as soon as nothing is new.
        until_gone: whether to end the iteration once the newest was given and the connection that published it has
            ended, or it was deleted; of a set, each of them. When a daemon begins anew, it waits for the next one.
        mode, stream, device: as for get(); a set has no stream.
        poll() returns the next one at once, or None. It is closed by close(), at the end of a with block, or when it is
        collected. Only one thread or task may use it at a time.
        """
        if (name is None) == (prefix is None):
            raise TypeError("watch() takes a name or prefix=, and not both")
        if name == "":
            raise InvalidError(errno.EINVAL, "no tensor has an empty name; watch(prefix='') watches all")
        whole = name is None or str(name).endswith("/")
        if whole and (newer_than is not None or stream is not None):
            raise TypeError("newer_than and stream are for the watch of a name, not of a prefix")
        options = {"mode": mode, "device": device} if whole else {"mode": mode, "stream": stream, "device": device}
        path = below(prefix if name is None else name) if whole else name
        return Watch(self, path, whole, newer_than, timeout, options, until_gone)

    def events(self, prefix="", *, new=False, timeout=math.inf):
        """Return an iterator over Events: what becomes of the names below prefix. Also for ``async for``.

        Only the newest state of a name is told. So a slow reader costs nobody anything, and is told how many versions
        were skipped; a name that came and went is not told.
        new: whether to leave out what is there when it begins. Otherwise that is told first.
        timeout: seconds to wait for each; a TimeoutError ends the iteration. By default it waits forever. None: do not
            wait, so that it ends when nothing has happened.
        It has fileno(), which is readable when something has happened. poll(), close() and with blocks are as for
        watch().
        """
        return Events(self, below(prefix), new, timeout)

    def stream(
        self,
        name,
        mode=None,
        *,
        depth=0,
        keep=0,
        max_tries=0,
        max_bytes=0,
        drop_oldest=False,
        existing=False,
        produce=False,
        shared=False,
        ttl=None,
        owner_bound=False,
    ):
        """Open a stream, and make it if there is none. Return a Stream, for putting and for subscribing.

        A name is for the newest value. A stream is for all of them: a producer waits when it is full.
        mode: 'broadcast': each subscriber gets every item. 'queue': each item goes to one of them, and to another one
            if that dies before it has acknowledged the item.
        depth: how many items producers may be ahead, at most 512. 0: 16.
        keep: of a broadcast, how many past items are kept for who subscribes late with kept=True. The end of a producer
            takes the place of one.
        max_tries: of a queue, how often an item is given out again when its taker has died; then it is dropped. At
            most 15. 0: 3.
        max_bytes: of shared memory that the items of this Stream may take, beside a single one. Beyond it a put waits
            as if the stream were full, and what is only kept for late subscribers goes. Memory on a GPU is not counted.
            0: no limit.
        drop_oldest: of a broadcast, whether producers never wait: who is depth items behind skips some.
        existing: whether to open only a stream that there is; then the mode may be left out.
        produce: whether this is a producer from now on, and not only from its first put on.
        shared: whether any user who may publish in the namespace may put and take. Any of them can stop the stream.
        ttl: seconds after which the stream goes when it has had neither a producer nor a subscriber. None: it stays.
        owner_bound: whether it goes when the client that has made it ends.
        A stream stays until its name is deleted, or goes as ttl and owner_bound say. One that exists keeps its
        properties: arguments that are left out take them as they are. InvalidError: one has another value than the
        stream. Error with errno EMEDIUMTYPE: it has the other mode, or the name means a tensor.
        """
        return Stream(
            self, name, mode, depth, keep, max_tries, max_bytes, drop_oldest, existing, produce, shared, ttl, owner_bound
        )

    def streams(self, prefix=""):
        """Return a StreamInfo for each stream below prefix, as list() does for tensors."""
        return Rows(StreamInfo._make(t) for t in self._streams(prefix))

    def ref(self, tensor, *, ttl=600.0, once=True):
        """Hand on a Tensor of this client, of a name or a stream: return a Ref, which can be pickled and sent elsewhere.

        The process that calls Ref.get() gets this tensor, even if its name means another one by then. Until then the
        daemon keeps it, so the Tensor may be released at once.
        ttl: seconds for which it is kept at most. None or inf: as long as the client that got it is connected.
        once: False: keep it for all of that time, so that get() works any number of times.
        NoSpaceError: 1,024 tensors that this client has handed on were not got yet, or its user has too many of them.
        """
        if not isinstance(tensor, _core.Tensor):
            raise TypeError(f"a Tensor that get() returned can be handed on, not {type(tensor)!r}: publish it first")
        ttl = None if ttl == math.inf else ttl
        return Ref(tensor.name, tensor.version, *self._arguments, tensor._hand_over(self, ttl, not once))

    def receive(self, token, *, mode="r"):
        """Return the Tensor that somebody handed on by ref(), by the 32 bytes of Ref.token, which may travel in any way.

        mode: as for get().
        NotFoundError: the tensor is not there any more. That may be when it was received before, the time of ref() has
        passed, or the client that handed it on has ended; until then it is there.
        """
        return self._receive(token, mode)

    def pickle_tensors(self):
        """From now on Tensors of this client can be pickled: each pickle hands the Tensor on, as ref() does.

        So they can be given to multiprocessing's queues, pools and processes as arguments and results, as arrays can,
        and no bytes are copied. The receiver gets this tensor, even if its name means another one by then, and the
        Tensor may be released as soon as put() or send() has returned. Read-only NumPy arrays over Tensors, as numpy()
        returns, and views of those are sent in the same way by multiprocessing, concurrent.futures and joblib, if
        joblib was imported before this call. Other libraries (dask, Ray, cloudpickle) copy arrays: give them the
        Tensor. If Ray was imported before, its objects hand on with once=False.
        Without this, pickling a Tensor is a TypeError, and an array is always copied. It is for the whole process, and
        for one client at a time; a process that is sent a Tensor sends Tensors like that too. From then on an object that
        is put into a queue of multiprocessing is pickled in put(), and what ref() raises is raised there. Pools and
        executors pickle later, and tell by the result: hold the Tensor until then. In place of a Tensor that has gone
        meanwhile a task of theirs, or their caller, gets an object that raises the error as soon as it is used.
        What was written to a Tensor in mode 'c' is not sent: the other process gets the bytes that were published.
        """
        pickle_for(self)

    def delete(self, name=None, /, *, prefix=None, everything=False, version=None, missing_ok=False):
        """Delete name. Holders of its tensor keep it.

        prefix: in place of a name: delete all names below this path, at most 65,536. It is one step, and on failure
            none is deleted. But the daemon needs room for one more tensor for each of them then; if it has too little,
            they are deleted one after the other, up to the first failure.
        everything: with prefix="", to say that all names of the namespace are meant.
        version: delete only this version, which the name has to mean still. None: whatever it means.
        missing_ok: whether it is no error if there is nothing to delete. NotFoundError: it is so.
        PermissionDeniedError: the name, or one of them, is another user's, or this user may not publish here.
        """
        if (name is None) == (prefix is None):
            raise TypeError("delete() takes a name or prefix=, and not both")
        if everything and prefix != "":
            raise TypeError("everything=True is for prefix='', which deletes all names")
        if prefix is not None:
            if version is not None:
                raise TypeError("version is for the delete of one name")
            if prefix == "" and not everything:
                raise InvalidError(
                    errno.EINVAL, "delete(prefix='') would delete all names: say so with everything=True, or give a prefix"
                )
            names = tuple(self.keys(prefix))
            if len(names) > _GROUP_MAX:
                raise InvalidError(
                    errno.EINVAL,
                    f"{len(names)} names are below {prefix!r}, and one step deletes at most {_GROUP_MAX}: use longer "
                    "prefixes, or `tensorlease rm --below`, which deletes one after the other",
                )
            if names:
                self._delete_many(names)
            elif not missing_ok:
                raise NotFoundError(errno.ENOENT, f"there is no tensor below {prefix!r}")
            return
        if version is not None and operator.index(version) < 1:
            raise InvalidError(errno.EINVAL, f"version is {version}; versions count from 1")
        try:
            self._delete(name, version or 0)
        except NotFoundError:
            if not missing_ok:
                raise
        except Error as error:
            if error.errno != errno.ESTALE:
                raise
            if not missing_ok:
                raise NotFoundError(errno.ENOENT, error.strerror) from None

    def _delete_many(self, names):
        try:
            self._put_many((), (), (), None, (None, False, False), None, names)
        except NoSpaceError:  # the step takes a tensor's row for each name, and the delete of one name takes none
            for name in names:
                self.delete(name, missing_ok=True)

    def rename(self, name, new_name):
        """Give the tensor of a name another name, and return its version there. No bytes are copied.

        What new_name meant before is replaced. The tensor has both names for a moment, and never none. Metadata and
        lifetime go with it; this client becomes the one that published it.
        A tensor on a GPU is renamed when the GPU has finished it. TensorLostError: its memory went with its producer.
        NotFoundError: no tensor has that name. PermissionDeniedError: it, or new_name, is another user's. After one of
        these nothing has changed. After a DisconnectedError or a TimeoutError the tensor may have both names, and
        another rename() ends that.
        """
        while True:
            with self.get(name) as tensor:
                info = self.stat(name)
                if name == new_name:
                    return info.version
                if info.version != tensor.version:
                    continue
                options = {"ttl": info.ttl, "owner_bound": info.owner_bound, "evictable": info.evictable}
                try:
                    version, _ = self._publish(new_name, tensor, no_copy=True, metadata=info.metadata, **options)
                except UnsupportedError:  # only its owner can give memory another name without a copy
                    own = self._uid()
                    if info.uid == own:
                        raise
                    raise PermissionDeniedError(
                        errno.EACCES, f"'{name}' belongs to user {info.uid}, not to user {own}"
                    ) from None
            self._forget(name, info.version)
            return version

    def _forget(self, name, version):
        """Delete name if it still means that version: a later one, of whichever user, came after the renaming."""
        try:
            self.delete(name, version=version, missing_ok=True)
        except PermissionDeniedError:
            with contextlib.suppress(NotFoundError):
                if self.stat(name).version == version:
                    raise

    def keys(self, prefix=""):
        """Return the names below prefix, a path, sorted. "": all names."""
        return [info.name for info in self.list(prefix)]

    def items(self, prefix=""):
        """Yield each name below prefix, a path, with its Tensor. Names that go meanwhile are left out.

        Each lease is taken when its turn comes, and lasts as long as its Tensor is used. get_many() takes all of one
        moment.
        """
        for name in self.keys(prefix):
            with contextlib.suppress(NotFoundError, TensorLostError):
                yield name, self.get(name)

    # ``client[name]`` is get(), ``client[name] = array`` is put(), and ``del client[name]`` is delete().

    def __getitem__(self, name):
        return self.get(name)

    def __setitem__(self, name, array):
        self.put(name, array)

    def __delitem__(self, name):
        self.delete(name)

    def __iter__(self):
        return iter(self.keys())

    def __len__(self):
        return len(self._list(""))

    def __bool__(self):  # a client of an empty namespace is no less a client
        return True

    def _ipython_key_completions_(self):
        return self.keys()[:_COMPLETIONS]

    # ---- Files ----

    def load(
        self,
        prefix,
        path,
        *,
        format=None,
        timeout=None,
        progress=None,
        ttl=None,
        owner_bound=False,
        evictable=False,
        once=False,
        device=None,
    ):
        """Publish all tensors of a file, or of several files, in one step, as `tensorlease load` does.

        The tensors of a .npz or .safetensors file are called PREFIX/NAME, with their names in the file. A '/' in these
        separates components, and an empty prefix is left out. The tensor of a .npy file, or of a TensorProto (.pb), is
        called PREFIX.
        path: a str or os.PathLike; or a list of them, whose tensors are published together; or an index of a model in
            several .safetensors files, as model.safetensors.index.json, whose files lie beside it.
        format: 'npy', 'npz', 'safetensors', 'pb' or 'png'. None: the suffix of path decides. PNG files are read by builds
            with libpng only, which wheels are not.
        timeout: seconds to wait for space. None: do not wait.
        progress: called as progress(done, total), in bytes, on this thread. An exception from it ends the load. True: a
            bar, if tqdm is installed, on a terminal or in a notebook.
        ttl, owner_bound, evictable: as for put_many().
        once: whether to read nothing if there are tensors of that prefix. Of several processes one reads the file then,
            and the others wait for it, as long as it lives; if it fails or dies, another one reads it. Tensors that are
            there may be another user's. Returns the names that are there, and no metadata, if the file was not read
            here.
        device: 'cuda:0', ... for tensors on that GPU, in memory as create() makes it there. None or 'cpu': shared memory.
        Returns Loaded(names, metadata). The file is read straight into shared memory, without the GIL, or by way of
        64 MB of this process, or of the largest tensor, to a GPU.
        InvalidError (a ValueError): the file is malformed, lacks a tensor that the index names, or has an invalid name;
        the text says what and where.
        UnsupportedError: it contains something that is no tensor, such as strings. OSError: it cannot be read. In these
        cases, and after Ctrl-C, nothing is published.
        """
        lifetime = (ttl, owner_bound, evictable)
        prefix = below(prefix)[:-1] or prefix
        for one in () if format else path if isinstance(path, (list, tuple)) else (path,):
            check_no_pickle(one)

        def load():
            with shown(progress) as call:
                return self._load(prefix, paths_of(path), format, timeout, call, lifetime, device)

        if once and not prefix:
            raise InvalidError(errno.EINVAL, "prefix is empty: once needs one, to see whether its tensors are there")
        return Loaded._make(_cache.load_once(self, prefix, load) if once else load())

    def save(self, prefix, path, *, format=None, progress=None, metadata=None):
        """Write tensors to a file, as `tensorlease save` does, and return their names.

        A .npz or .safetensors file gets all tensors below PREFIX/, as they were at one moment; in the file their names
        are without PREFIX/. A .npy or .pb file gets the tensor called PREFIX. An existing file is replaced as a whole,
        or not at all.
        path, format and progress: as for load().
        metadata: a dict of texts about the whole file, for the __metadata__ of a .safetensors file. load() returns it.
        NotFoundError: there is no such tensor. UnsupportedError: the format does not have a type, such as bfloat16 in
        .npy and .npz files. OSError: the file cannot be written.
        """
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"metadata must be a dict of texts, or None, not {type(metadata)!r}")
        texts = None if metadata is None else tuple((key, text) for key, text in metadata.items())
        with shown(progress) as call:
            return self._save(prefix, path, format, call, texts)

    # ---- Looking around ----

    def stat(self, name):
        """Return Info about the tensor that name means now. NotFoundError: no tensor has that name."""
        return Info._of(self._stat(name))

    def list(self, prefix=""):
        """Return Infos of the tensors below prefix, a path, sorted by name. "": of all tensors."""
        return Rows(sorted(map(Info._of, self._list(prefix))))

    def status(self):
        """Return the daemon's Status. Makes no request, unless the connection is gone."""
        return Status._make(self._status())

    def devices(self):
        """Return a DeviceUsage for each GPU on which the daemon counts something."""
        return Rows(DeviceUsage._make(t) for t in self._devices())

    def clients(self):
        """Return a ClientInfo for each client of this client's namespace."""
        return Rows(ClientInfo._make(t) for t in self._clients())

    def readers(self, name=None):
        """Return Readers: who holds which tensors of the name, or of all names; all of one client are together.

        A client that gets the newest tensor and gives it back is there for that moment only. A name that was deleted
        has none, and items of streams are left out.
        """
        return Rows(Reader(name, Identity._make(client), leases) for name, client, leases in self._readers(name))

    def holdings(self, client_id):
        """Return Holdings of the client with that id, an int of clients(). NotFoundError: there is no such client."""
        return Rows(Holding._make(t) for t in self._holdings(client_id))


_waiter_lock = ForkLock()  # for the one who makes a Waiter


def _check_str(argument, value):
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a str, not {type(value)!r}")


def _read_once(arrays):
    """It may be a file, or make its arrays only when asked."""
    if not isinstance(arrays, Mapping):
        raise TypeError(f"arrays must be a mapping of names and arrays, such as a dict, not {type(arrays)!r}")
    return dict(arrays.items())


def _prefixed(prefix, names):
    start = below(prefix)
    for name in names:
        _check_str("a tensor's name", name)
    return tuple(start + name for name in names)


def _program():
    """Return the name of the script or module that runs, or None: $TENSORLEASE_LABEL, or the name of the interpreter."""
    if os.environ.get("TENSORLEASE_LABEL"):
        return None
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)  # of python -m
    argument = sys.argv[0] if getattr(sys, "argv", None) else ""
    name = spec.name.removesuffix(".__main__") if spec else os.path.basename(argument)
    label = "".join(c if c.isprintable() else "?" for c in name).encode("utf-8", "replace")[:_LABEL_MAX]
    return None if name == "-c" else label.decode("utf-8", "ignore")


def _for_others(address, namespace, path):
    """Return address and namespace as another process, in another directory and environment, has to give them.

    path: called for the path of the socket where they do not tell.
    """
    address = os.fsdecode(address or path())
    if address.startswith(_SCHEME):
        name, _, rest = address[len(_SCHEME) :].partition("/")
        if name:
            return (address, namespace) if rest else (path(), name)
        address = f"/{rest}" if rest else path()
    if not os.path.isabs(address):
        with contextlib.suppress(FileNotFoundError):  # the working directory was removed
            absolute = os.path.join(os.getcwd(), address)  # not abspath(): x/.. need not be the same directory
            if len(os.fsencode(absolute)) < _PATH_MAX:
                address = absolute
    return address, os.environ.get("TENSORLEASE_NAMESPACE", "") if namespace is None else namespace


def _reconnect(cls, address, namespace, autostart, timeout, label):
    """A subclass may have an __init__() with other arguments, so that it is not called."""
    client = cls.__new__(cls)
    Client.__init__(client, address, namespace=namespace, autostart=autostart, timeout=timeout, label=label)
    return client
