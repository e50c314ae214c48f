# SPDX-License-Identifier: Apache-2.0
"""Queue: multiprocessing.Queue over a stream."""

import collections
import copyreg
import errno
import functools
import importlib
import io
import math
import os
import pickle
import secrets
import struct
import sys
import threading
import time
import types
import weakref
from queue import Empty, Full

from ._errors import Error, InvalidError, NotNewerError, PermissionDeniedError, StreamEndedError, TimeoutError
from ._lock import ForkLock
from ._ref import client_for
from ._stream import Item

_DEPTH_MAX = 512  # of a stream
_TTL = 60.0  # seconds that the stream of an unnamed queue stays when nobody has it any more
_PARTS_MAX = 4096  # tensors of an item
_COPY_MAX = 128 << 10  # up to here a copy takes no longer than a private mapping and its page faults
_MARK = b"tensorlease.Queue 1"
_METADATA = struct.Struct(f"{len(_MARK)}sxI")  # and how many of the tensors behind the pickle are arrays
_ALONE = b"tensorlease.Queue array"  # of an item that is an array of NumPy, without a pickle
_CPU, _CUDA = 1, 2  # DLPack's numbers
_CHARS = frozenset("?bBhHiIlLqQefdFD")  # NumPy's types that DLPack has
_TORCH = frozenset(
    f"torch.{word}"
    for word in "bool int8 int16 int32 int64 uint8 float16 bfloat16 float32 float64 complex64 complex128".split()
)
_opening = ForkLock()
_forks = 0


def _count_forks():
    global _forks
    _forks += 1


os.register_at_fork(before=_count_forks)


# ---- Objects as items ----
#
# An item's first tensor is the pickle. Then come the arrays, which the pickle names by _part(), and then the buffers
# that pickle's protocol 5 takes out of it.


def _part(index, kind):
    raise pickle.UnpicklingError("only the get() of a tensorlease.Queue can read this")


def _is_plain(array):
    return array.dtype.char in _CHARS and array.dtype.isnative


def _is_fortran(array):
    return array.flags.f_contiguous and not array.flags.c_contiguous


def _torch_of(data, dtype, shape):
    import torch

    dtype = getattr(torch, dtype.removeprefix("torch."))
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


@functools.cache
def _pickler_class():
    from multiprocessing.reduction import ForkingPickler  # takes long to import

    class Pickler(pickle.Pickler):
        dispatch_table = collections.ChainMap(ForkingPickler._extra_reducers, copyreg.dispatch_table)

        def __init__(self, file):
            self.arrays, self.buffers = arrays, buffers = [], []
            self.gpu = None  # the number of the one on which arrays are

            def take(buffer):  # without the pickler, which would keep what it has until the next collection
                if 1 + len(arrays) + len(buffers) >= _PARTS_MAX:
                    return True  # it stays in the pickle
                buffers.append(buffer.raw())
                return False

            super().__init__(file, 5, buffer_callback=take)

        def _is_full(self):
            return 1 + len(self.arrays) + len(self.buffers) >= _PARTS_MAX

        def _put(self, array, kind):
            self.arrays.append(array)
            return _part, (len(self.arrays) - 1, kind)

        def reducer_override(self, thing):
            cls = type(thing)
            if cls is type or cls is types.FunctionType:
                return NotImplemented
            numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
            if numpy and isinstance(thing, numpy.ndarray):
                return self._numpy(thing) if cls is numpy.ndarray else NotImplemented
            if torch and isinstance(thing, getattr(torch, "Tensor", ())):
                return self._torch(thing) if cls is torch.Tensor else NotImplemented
            if hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__"):
                return self._other(thing)
            return NotImplemented

        def _is_gpu(self, number):
            """Whether it is the GPU of the arrays before it: the parts of an item are on one."""
            if self.gpu is None:
                self.gpu = number
            return self.gpu == number

        def _numpy(self, array):
            if _is_plain(array) and not self._is_full():
                return self._put(array.T, "numpy.T") if _is_fortran(array) else self._put(array, "numpy")
            # The protocol 5 of a read-only array makes a read-only one, and that of Python's default a writable one.
            return array.__reduce_ex__(5 if array.flags.writeable else 4)

        def _torch(self, tensor):
            on_gpu = tensor.device.type == "cuda"
            if (
                tensor.device.type not in ("cpu", "cuda")
                or (on_gpu and not self._is_gpu(tensor.device.index))
                or tensor.layout is not sys.modules["torch"].strided
                or tensor.requires_grad
                or str(tensor.dtype) not in _TORCH
            ):
                return NotImplemented
            tensor = tensor.resolve_conj().resolve_neg()
            if on_gpu:
                return NotImplemented if self._is_full() else self._put(tensor.contiguous(), "torch.cuda")
            if not self._is_full():
                return self._put(tensor, "torch")
            plain = tensor.contiguous().reshape(-1).view(sys.modules["torch"].uint8)
            return _torch_of, (plain.numpy().tobytes(), str(tensor.dtype), tuple(tensor.shape))

        def _other(self, array):
            """A Tensor, or an array of a library whose from_dlpack() its __array_namespace__() tells."""
            from ._tensor import Tensor

            ours, (kind, number) = isinstance(array, Tensor), array.__dlpack_device__()
            if (
                not (ours or hasattr(array, "__array_namespace__"))
                or not (kind == _CPU or (ours and kind == _CUDA and self._is_gpu(number)))
                or self._is_full()
            ):
                return NotImplemented
            return self._put(array, "tensorlease" if ours else array.__array_namespace__().__name__)

    return Pickler


def _packed(thing):
    """Return the tensors and the metadata of an item. What cannot be pickled raises here, before anything is put."""
    numpy = sys.modules.get("numpy")
    if numpy and type(thing) is numpy.ndarray and _is_plain(thing) and not _is_fortran(thing):
        return thing, _ALONE
    file = io.BytesIO()
    pickler = _pickler_class()(file)
    pickler.dump(thing)
    tensors = [file.getbuffer(), *pickler.arrays, *pickler.buffers]
    return tensors, _METADATA.pack(_MARK, len(pickler.arrays))


def _buffer(tensor, shared, copied):
    if shared:
        return tensor.bytes()
    return bytearray(tensor.bytes()) if tensor.nbytes <= copied else tensor.copy_on_write().bytes()


def _array(tensors, shared, copied, index, kind):
    tensor = tensors[index]
    small = tensor.nbytes <= copied
    if kind in ("numpy", "numpy.T"):
        if shared or small:
            array = tensor.numpy(copy=not shared)
        else:
            array = tensor.copy_on_write().numpy()
        return array if kind == "numpy" else array.T
    if kind == "torch":  # which has no read-only tensors
        return _torch_of(tensor.bytes(), str(tensor.dtype), tensor.shape) if small else tensor.torch()
    if kind == "torch.cuda":
        return tensor.torch() if shared else tensor.torch().clone()
    if kind == "tensorlease":  # on a GPU there is no copy-on-write
        return tensor if shared or tensor.device != "cpu" else tensor.copy_on_write()
    return importlib.import_module(kind).from_dlpack(tensor.copy_on_write())


class _Unpickler(pickle.Unpickler):
    def __init__(self, tensors, arrays, shared, copied):
        # Neither of these two has the unpickler, which would keep the tensors until the next collection.
        self._part = functools.partial(_array, tensors[1 : 1 + arrays], shared, copied)
        buffers = (_buffer(tensor, shared, copied) for tensor in tensors[1 + arrays :])
        super().__init__(io.BytesIO(tensors[0].bytes()), buffers=buffers)

    def find_class(self, module, name):
        if module == __name__ and name == "_part":
            return self._part
        return super().find_class(module, name)


def _unpacked(item, name, shared, copied):
    """Return the object. copied: arrays of at most so many bytes are copied, unless it is shared memory that is wanted."""
    if item.metadata == _ALONE:
        return _array(item.tensors, shared, copied, 0, "numpy")
    mark, arrays = b"", 0
    if len(item.metadata) == _METADATA.size:
        mark, arrays = _METADATA.unpack(item.metadata)
    if mark != _MARK:
        raise TypeError(f"item {item.number} of the stream '{name}' was not put by a tensorlease.Queue: use client.stream()")
    return _Unpickler(item.tensors, arrays, shared, copied).load()


# ---- The queue ----


class _Turns:
    """Lets one thread of a process at a time put, or get, which the C library would do without a timeout."""

    def __init__(self):
        self._lock = threading.RLock()  # whose release() fails if a signal's handler raised before we had it
        self._waits = False  # whoever has it waits for the other side of the queue

    def run(self, call, seconds, late):
        """Return what call(timeout) returns, but None; raise late if it does that until the end."""
        end = time.monotonic() + seconds if seconds > 0 else 0.0
        left = seconds
        try:
            while not self._lock.acquire(timeout=min(max(left, 0.005), 60)):
                left = end - time.monotonic()
                if left <= 0 and self._waits:
                    raise late
            found = call(None)
            if found is None:
                left = end - time.monotonic() if end else 0.0
                if left > 0:
                    self._waits = True
                    try:
                        found = call(left)
                    finally:
                        self._waits = False
            if found is None:
                raise late
            return found
        finally:
            try:
                self._lock.release()
            except RuntimeError:
                pass


class _Ends:
    """A queue as one process has it open."""

    def __init__(self, stream, uid=None):
        self.pid, self.uid = os.getpid(), uid
        self.stream = stream
        self.subscription = None
        self.puts, self.gets = _Turns(), _Turns()
        self.held = threading.local()
        self.closed = False

    def put(self, tensors, metadata, timeout):
        try:
            return self.stream.put(tensors, metadata=metadata, timeout=timeout)
        except NotNewerError:
            return None
        except TimeoutError as error:
            if timeout in (None, math.inf):  # the daemon did not answer
                raise
            raise Full(error.strerror) from None

    def get(self, timeout, redeliver):
        """Return an Item; None: there was none in time; False: the stream was ended."""
        if self.subscription is None:
            self.subscription = self.stream.subscribe()
            if redeliver:  # what is held and not acknowledged goes to another process, and not down with its object
                weakref.finalize(self, self.subscription.close)
        item = self.subscription._subscription.take(timeout)
        return Item(item) if item else item


def _seconds(block, timeout):
    if not block:
        return 0.0
    return math.inf if timeout is None else max(timeout, 0.0)


class Queue:
    """A queue as multiprocessing.Queue, whose arrays lie in shared memory.

    maxsize: how many objects may wait in it, at most 512. 0: 512; put() waits when there are so many.
    name: of the stream that it is. Processes that name it have the same queue; the first of them says maxsize, and the
        others the same or nothing. It stays until ``client.delete(name)``. None: a queue without others: it is given to
        the processes that this one makes, as an argument or by fork(), and ends with this process; or, if there was no
        such process, with this object.
    client: the Client whose daemon has it. None: that of connect(), one for all queues of this process.
    mode: 'c': get() returns arrays that its caller may write to, and nobody else sees that. Those of up to 128 KiB are
        copied, and larger ones are copy-on-write. 'r': NumPy arrays and Tensors are the shared memory itself, read-only,
        without a copy. Both are for the get() of the processes to which this object is given.
    redeliver: whether an object that get() returned goes to another process if this one ends before the same thread
        calls task_done(), or get() again. Otherwise it is gone with its process, as in multiprocessing. The fourth
        process that dies with it takes it along.

    Any object that can be pickled can be put. The arrays in it, wherever they are, are copied into shared memory:
    those of NumPy, CPU tensors of PyTorch, Tensors, arrays of other libraries that have DLPack and
    __array_namespace__(), and buffers that pickle takes out of band, as those of pandas. get() returns the same types.
    On a GPU those of PyTorch are copied there once more by get(), unless it is mode 'r', and Tensors stay read-only; all
    of an object are on one GPU. Other tensors of PyTorch, with gradients for example, go as torch.multiprocessing sends
    them. put() returns when the object is there: it has no thread, and what cannot be pickled raises an error in it.

    All threads of a process may use it. A process that is killed holds nobody up. Only processes of this user can put
    and get, and only what they have put is unpickled. Besides queue.Full and queue.Empty, put() and get() raise an Error
    if the daemon or the queue is gone, and NoSpaceError if there is no memory for the object.
    """

    def __class_getitem__(cls, item):
        return types.GenericAlias(cls, item)

    def __init__(self, maxsize=0, *, name=None, client=None, mode="c", redeliver=False):
        if maxsize > _DEPTH_MAX:
            raise ValueError(f"maxsize is {maxsize}; a tensorlease.Queue has at most {_DEPTH_MAX} objects")
        if mode not in ("c", "r"):
            raise ValueError(f"mode is {mode!r}; it is 'c' or 'r'")
        if client is None:
            socket, namespace = os.environ.get("TENSORLEASE_SOCKET"), os.environ.get("TENSORLEASE_NAMESPACE")
            client = client_for(socket or None, namespace, None, 10.0)
        self.name = f"queue/{os.getpid()}-{secrets.token_hex(8)}" if name is None else name
        self._client = client
        self._own = name is None
        self._maxsize = max(maxsize, 0)
        self._shared, self._redeliver = mode == "r", bool(redeliver)
        self._here = _Ends(self._open(False), self._client._uid())
        if self._own:
            self._end_with_this_process()

    def _open(self, existing):
        depth = self._maxsize or _DEPTH_MAX
        if self._own and not existing:
            # The stream of a process that is killed goes when the last one has left it.
            return self._client.stream(self.name, "queue", depth=depth, produce=True, ttl=_TTL)
        try:
            return self._client.stream(self.name, "queue", depth=depth, existing=existing)
        except InvalidError:
            if self._maxsize:
                raise
            return self._client.stream(self.name, "queue", existing=True)  # it has a size of its own

    def _end_with_this_process(self):
        from multiprocessing.util import Finalize

        # After the children were joined, which has a higher priority.
        self._given = [_forks]
        Finalize(self, _delete, (self._client, self.name, self._given), {"pid": os.getpid()}, exitpriority=-100)

    def __getstate__(self):
        if self._own and self._here is not None and self._here.pid == os.getpid():
            self._given[:] = [None]
        arguments = self._client._arguments
        return self.name, self._own, self._maxsize, self._shared, self._redeliver, arguments

    def __setstate__(self, state):
        self.name, self._own, self._maxsize, self._shared, self._redeliver, arguments = state
        self._given, self._here = [None], None
        self._client = client_for(*arguments)

    def _ends(self):
        here = self._here
        if here is None or here.pid != os.getpid():
            with _opening():
                here = self._here
                if here is None or here.pid != os.getpid():
                    here = self._here = _Ends(self._open(self._own), self._client._uid())
        if here.closed:
            raise ValueError(f"{self!r} is closed")
        return here

    def _reopen_later(self, error):
        if error.errno != errno.ESTALE:
            return
        self._here = None
        if threading.current_thread().daemon:
            from multiprocessing import util

            if util.is_exiting():  # this process has just ended its queues: the thread waits for its own end
                threading.Event().wait()

    def put(self, obj, block=True, timeout=None):
        """Put a copy of an object into the queue.

        block, timeout: whether to wait, and for how many seconds at most, while it is full. queue.Full: it was all the
        time; after a wait its text says why.
        """
        self._ends()
        self._put(*_packed(obj), block, timeout)

    def _put(self, tensors, metadata, block, timeout):
        here = self._ends()
        try:
            here.puts.run(lambda left: here.put(tensors, metadata, left), _seconds(block, timeout), Full())
        except Error as error:
            self._reopen_later(error)
            raise

    def get(self, block=True, timeout=None):
        """Take an object from the queue and return it.

        block, timeout: whether to wait, and for how many seconds at most, while it is empty. queue.Empty: it was all the
        time.
        """
        here = self._ends()
        if self._redeliver:
            self._acknowledge(here)
        try:
            item = here.gets.run(lambda left: here.get(left, self._redeliver), _seconds(block, timeout), Empty())
            if item is False:
                raise StreamEndedError(errno.EPIPE, f"the stream '{self.name}' was ended")
            try:
                if item.uid != here.uid:
                    raise PermissionDeniedError(errno.EACCES, f"an object in '{self.name}' is of user {item.uid}: not unpickled")
                thing = _unpacked(item, self.name, self._shared, self._copied(item))
            except BaseException:
                item.release()
                raise
            if self._redeliver:
                here.held.item = item
            else:
                item.release()
        except Error as error:
            self._reopen_later(error)
            raise
        return thing

    def _copied(self, item):
        """Return how large the arrays of an item are at most that are copied, and not mapped."""
        return _COPY_MAX

    def put_nowait(self, obj):
        """put(obj, False)."""
        self.put(obj, False)

    def get_nowait(self):
        """get(False)."""
        return self.get(False)

    def _acknowledge(self, here):
        item = getattr(here.held, "item", None)
        here.held.item = None
        if item is not None:
            item.release()
        return item is not None

    def task_done(self):
        """With redeliver: the object that this thread got last is done, and goes to nobody else.

        ValueError: there is none. Error with errno ESTALE: it was given to another process, since this one was taken
        for dead.
        """
        if not self._acknowledge(self._ends()):
            raise ValueError("task_done() called too many times")

    def qsize(self):
        """Return how many objects wait in it."""
        return self._ends().stream.info().length

    def empty(self):
        """Return whether none waits in it."""
        return self.qsize() == 0

    def full(self):
        """Return whether put() would wait."""
        info = self._ends().stream.info()
        return info.length >= info.depth

    def close(self):
        """Say that this process puts and gets no more. What it has put stays for others, and other processes go on."""
        here = self._here
        if here is None or here.pid != os.getpid():
            with _opening():
                here = self._here = _Ends(None)
        here.closed = True
        if here.subscription is not None:
            here.subscription.close()
        if here.stream is not None:
            here.stream.close()

    def join_thread(self):
        """Return at once: there is no thread. As in multiprocessing, close() comes first."""
        if self._here is None or not self._here.closed:
            raise AssertionError(f"{self!r} is not closed")

    def cancel_join_thread(self):
        """Do nothing: there is no thread."""

    def __repr__(self):
        return f"<tensorlease.Queue {self.name!r}>"


def _delete(client, name, given, pid):
    """End a queue without a name, at the end of its object or of its process."""
    from multiprocessing import util

    if os.getpid() != pid:
        return
    if given != [_forks] and not util.is_exiting():  # other processes may have it
        util.Finalize(None, _delete, (client, name, given, pid), exitpriority=-100)
        return
    try:
        (client_for(*client._arguments) if client.closed else client).delete(name)
    except (OSError, ValueError):  # it is gone, or its daemon is
        pass
