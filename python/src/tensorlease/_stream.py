# SPDX-License-Identifier: Apache-2.0
"""Streams: what Client.stream() returns."""

import asyncio
import contextlib
import errno
import math
import os
import time
import weakref

from ._arrays import NUMBERS
from ._cuda import device_pair, interface_of
from ._dtypes import parse_sizes
from ._errors import Error, NotNewerError, TimeoutError
from ._tensor import Tensor, _no_interface
from ._tuples import Rows, StreamInfo, StreamMember
from ._waiter import running_trio

_MODES = {"broadcast": 1, "queue": 2}
_EXISTING, _DROP_OLDEST, _PRODUCER, _SHARED = 1, 2, 4, 8
_LOSSY, _KEPT = 1, 2


async def _readable(fd, seconds):
    """Wait until the descriptor is readable, or for so long."""
    trio = running_trio()
    own = os.dup(fd)  # a loop waits for each descriptor once, and several tasks may wait
    try:
        if trio:
            with trio.move_on_after(seconds):
                await trio.lowlevel.wait_readable(own)
            return
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.add_reader(own, lambda: future.done() or future.set_result(None))
        try:
            await asyncio.wait((future,), timeout=None if seconds == math.inf else seconds)
        finally:
            loop.remove_reader(own)
            future.cancel()
    finally:
        os.close(own)


async def _until(call, timeout, fileno):
    """Return call(None) once that does not find the stream empty or full. After the timeout, fail as call() does."""
    start = time.monotonic()
    while timeout is not None and (left := timeout - (time.monotonic() - start)) > 0:
        try:
            return call(None)
        except NotNewerError:
            await _readable(fileno(), left)
    return call(1e-9 if timeout and timeout > 0 else timeout)


class Item:
    """What was put into a stream at once: one tensor, or several, with metadata.

    It is given back when it is released, or collected, or at the end of a with block; its Tensors stay as long as they
    are used. In a queue that acknowledges it, so that nobody else gets it. Who wants to acknowledge it earlier calls
    done(); what a process has not acknowledged when it dies goes to another subscriber.
    """

    __slots__ = ("__weakref__", "_item", "_tensors", "metadata", "number", "producer", "put_ns", "skipped", "tries", "uid")

    def __init__(self, item):
        self._item = item
        self._tensors = None
        self.number, self.put_ns, self.skipped, self.tries, self.producer, self.uid, self.metadata = item.info()

    def _all(self):
        if self._tensors is None:
            self._tensors = self._item.tensors()
        return self._tensors

    @property
    def tensors(self):
        """Its Tensors, a list."""
        return [tensor for _, tensor in self._all()]

    @property
    def tensor(self):
        """Its Tensor, if it has only one."""
        tensors = self._all()
        if len(tensors) != 1:
            raise ValueError(f"the item has {len(tensors)} tensors: use item.tensors, or item[name]")
        return tensors[0][1]

    def keys(self):
        """The names of its tensors, a list; those without a name are not in it."""
        return [name for name, _ in self._all() if name is not None]

    def __len__(self):
        return len(self._all())

    def __iter__(self):
        """Iterate over the names, as in a dict, or over the Tensors of a list, which have none."""
        return iter(self.keys() or self.tensors)

    def __contains__(self, name):
        return name in self.keys()

    def items(self):
        """Its names and Tensors, a list of pairs."""
        return [(name, tensor) for name, tensor in self._all() if name is not None]

    def values(self):
        """Its Tensors, a list."""
        return self.tensors

    def __array__(self, dtype=None, copy=None):
        """The array of its Tensor, if it has only one. So numpy.asarray(item) is what was put."""
        array = self.tensor.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __getitem__(self, key):
        """Return the Tensor of that name, or of that number."""
        tensors = self._all()
        if isinstance(key, int):
            return tensors[key][1]
        for name, tensor in tensors:
            if name == key:
                return tensor
        raise KeyError(key)

    def done(self):
        """Acknowledge an item of a queue: nobody else gets it, even if this process dies while it holds it.

        Error with errno ESTALE: it was given to another subscriber, since this one was taken for dead.
        """
        self._item.done()

    def release(self):
        """Give the item back, as the end of the object does, and acknowledge it. Fails as done()."""
        self._tensors = None
        self._item.release()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.release()

    def __repr__(self):
        names = self.keys()
        what = f"{len(self)} tensors" if not names else ", ".join(map(repr, names))
        return f"<tensorlease.Item {self.number}: {what}>"


class _DraftTensor(Tensor):
    """A tensor of an ItemDraft."""

    __slots__ = ("_arrays",)

    def numpy(self, *, copy=False):
        array = super().numpy(copy=copy)
        if not copy:
            self._arrays.append(weakref.ref(array, self._arrays.remove))
        return array

    def __setitem__(self, index, value):
        self.numpy()[index] = value

    @property
    def __cuda_array_interface__(self):
        if self.device == "cpu":
            _no_interface()
        return interface_of(self, None, False)

    def _end(self):
        """Make what numpy() returned read-only, as a commit of a Draft does, and give the memory back."""
        self.release()
        for array in [ref() for ref in self._arrays]:
            if array is not None:
                array.flags.writeable = False


_DraftTensor.__name__ = Tensor.__name__  # for the texts of errors


class ItemDraft:
    """What Stream.draft() returns: an item that is written in place.

    Write to ``draft.tensor.numpy()``, or ``draft[name].torch()``, ..., then call commit() or abort(). As a context
    manager it is committed when the block ends, unless the block has ended it, and aborted if the block raises. Views
    stay valid after that, but must not be written to: others read those bytes, or a later item has them. So arrays that
    numpy() returned become read-only, and the draft's Tensors are released; with other views this is up to the writer.

    On a GPU consumers wait for the work of one stream: the one named by commit(stream=...), else the one that was named
    when its Tensors were taken by DLPack, as torch() does, else CUDA's legacy default stream. If they were taken for
    another stream than the legacy one, abort() waits until the GPU has done its work.
    """

    __slots__ = ("_draft", "_ended", "_names", "tensors")

    def __init__(self, draft, names):
        self._draft, self._names, self._ended = draft, names, False
        self.tensors = draft.tensors(_DraftTensor)
        for tensor in self.tensors:
            tensor._arrays = []

    @property
    def tensor(self):
        """Its writable Tensor, if it has only one."""
        if len(self.tensors) != 1:
            raise ValueError(f"the draft has {len(self.tensors)} tensors: use draft.tensors, or draft[name]")
        return self.tensors[0]

    def __len__(self):
        return len(self.tensors)

    def __getitem__(self, key):
        """Return the writable Tensor of that name, or of that number."""
        if isinstance(key, int):
            return self.tensors[key]
        try:
            return self.tensors[self._names.index(key)]
        except ValueError:
            raise KeyError(key) from None

    def commit(self, *, metadata=None, timeout=math.inf, stream=None):
        """Put the item, and return its number. If that fails it stays a draft.

        metadata: what to attach, at most as many bytes as the draft was made for. timeout and errors: as for Stream.put().
        stream: on a GPU, the stream that writes the draft, as for Draft.commit(). ValueError: none is named, and its
            Tensors were taken on several.
        """
        number = self._draft.commit(metadata, timeout, stream)
        self._end()
        return number

    def abort(self):
        """Give it up."""
        self._draft.abort()
        self._end()

    def _end(self):
        self._ended = True
        for tensor in self.tensors:
            tensor._end()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if self._ended:
            return
        if kind is None:
            self.commit()
        else:
            self.abort()


class _Items:
    """What a loop over a Subscription uses. Asking for the next item acknowledges the former one."""

    def __init__(self, subscription):
        self._subscription, self._former = subscription, lambda: None

    def _acknowledge(self):
        former = self._former()
        if former is not None:
            with contextlib.suppress(Error, ValueError):  # it was given to another one, or released
                former.done()

    def __iter__(self):
        return self

    def __next__(self):
        self._acknowledge()
        item = next(self._subscription)
        self._former = weakref.ref(item)
        return item

    def __aiter__(self):
        return self

    async def __anext__(self):
        self._acknowledge()
        item = await self._subscription.__anext__()
        self._former = weakref.ref(item)
        return item


def _parse_part(default, shape, dtype, device=None):
    return *parse_sizes(shape, dtype), device_pair(default if device is None else device)


class Subscription:
    """What Stream.subscribe() returns: Items to iterate over, also with ``async for``. That ends when the stream is ended.

    When a loop asks for the next Item it acknowledges the former one; get() and take() do not.
    Several threads may take from one subscription. It is closed by close(), at the end of a with block, or when it is
    collected.
    """

    def __init__(self, subscription, name):
        self._subscription, self.name = subscription, name
        self.ended = False

    def __repr__(self):
        return f"<tensorlease.Subscription to {self.name!r}{', ended' if self.ended else ''}>"

    def _repr_html_(self):
        from ._html import title_html

        return title_html(repr(self))

    def get(self, timeout=math.inf):
        """Return the next Item; None if the stream is ended.

        timeout: seconds to wait. None: do not wait. TimeoutError: none came in time. NotNewerError: there is none, and
            the call does not wait.
        """
        item = self._subscription.take(timeout)
        if item is None:
            raise self._late(timeout)
        self.ended = item is False
        return None if self.ended else Item(item)

    def _late(self, timeout):
        if timeout is None or timeout == 0:
            return NotNewerError(errno.EAGAIN, f"the stream '{self.name}' has no further item")
        return TimeoutError(errno.ETIMEDOUT, f"no further item of the stream '{self.name}' came in time")

    def take(self, n, timeout=math.inf):
        """Return a list of 1 to n Items: waits for the first, and takes what else is there. Empty at the end."""
        items = []
        while len(items) < n:
            try:
                item = self.get(None if items else timeout)
            except NotNewerError:
                if not items:
                    raise
                break
            if item is None:
                break
            items.append(item)
        return items

    async def aget(self, timeout=math.inf):
        """get() for asyncio and trio."""
        return await _until(self.get, timeout, self.fileno)

    def fileno(self):
        """Return a descriptor for event loops: it is readable until get(None) has found no item. It is not yours."""
        return self._subscription.fileno()

    def __iter__(self):
        return _Items(self)

    def __next__(self):
        item = self.get()
        if item is None:
            raise StopIteration
        return item

    def __aiter__(self):
        return _Items(self)

    async def __anext__(self):
        item = await self.aget()
        if item is None:
            raise StopAsyncIteration
        return item

    def close(self):
        """Subscribe no longer. Items stay; in a queue those that are not acknowledged go to another subscriber."""
        self._subscription.close()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()


class Stream:
    """What Client.stream() returns: a named sequence of items that nobody who must have them misses.

    It is closed by close(), at the end of a with block, or when it is collected; what was put stays.
    """

    def __init__(
        self, client, name, mode, depth, keep, max_tries, max_bytes, drop_oldest, existing, produce, shared, ttl, owner_bound
    ):
        if mode is not None and mode not in _MODES:
            raise ValueError(f"mode is {mode!r}; it is 'broadcast' or 'queue'")
        if mode is None and not existing:
            raise ValueError("mode is missing: 'broadcast' or 'queue'")
        if not 0 <= max_bytes < 1 << 64:
            raise ValueError(f"max_bytes is {max_bytes}; it is 0, for no limit, or a number of bytes")
        flags = (_DROP_OLDEST if drop_oldest else 0) | (_EXISTING if existing else 0) | (_PRODUCER if produce else 0)
        flags |= _SHARED if shared else 0
        self.name, self._client = name, client
        self._stream = client._stream(
            name, _MODES.get(mode, 0), depth, keep, max_tries, flags, ttl, owner_bound, max_bytes
        )

    def __repr__(self):
        return f"<tensorlease.Stream {self.name!r}>"

    def _repr_html_(self):
        from ._html import stream_html

        return stream_html(repr(self), self._client, self.name)

    def put(self, array, *, metadata=None, timeout=math.inf, stream=None):
        """Put a copy of an array, or of several, as one item, and return its number.

        array: an object that Client.put() takes; or a dict of names and such objects, or a list or tuple of arrays.
            Those that are on a GPU are on one.
        metadata: what to attach, as for Client.put(), at most 65,536 bytes.
        timeout: seconds to wait while the stream is full. None: do not wait.
        stream: on a GPU, the stream on which arrays are copied, as for Client.put().
        TimeoutError: it was full all the time; its text says who holds it up. NotNewerError: it is full, and the call
        does not wait. StreamEndedError: it was ended.
        """
        if isinstance(array, dict):
            return self._stream.put(tuple(array), tuple(array.values()), metadata, timeout, stream)
        several = isinstance(array, (list, tuple))
        if several and any(type(one) in NUMBERS for one in array):  # one array of them may be meant
            raise TypeError("a list is several arrays here, and this one has numbers: numpy.asarray() makes an array of it")
        return self._stream.put(None, tuple(array) if several else (array,), metadata, timeout, stream)

    def draft(self, shape, dtype=None, *, device=None, metadata_size=0, timeout=math.inf):
        """Make an item that is written in place: put() without a copy. Return an ItemDraft.

        shape, dtype, device: of its tensor, as for Client.create(). For several: a dict of names and (shape, dtype), or
            (shape, dtype, device). Those that are on a GPU are on one.
        metadata_size: how many bytes of metadata it may have at most.
        timeout: seconds to wait while there is no memory for more items. None: do not wait. Errors: as for put().
        """
        names, specs = ("",), ((shape, dtype),)
        if isinstance(shape, dict):
            names, specs = tuple(shape), tuple(shape.values())
        specs = tuple(_parse_part(device, *spec) for spec in specs)
        made = self._stream.draft(names if isinstance(shape, dict) else None, specs, metadata_size, timeout)
        return ItemDraft(made, names)

    def put_nowait(self, array, *, metadata=None, stream=None):
        """put() that does not wait."""
        return self.put(array, metadata=metadata, timeout=None, stream=stream)

    async def aput(self, array, *, metadata=None, timeout=math.inf, stream=None):
        """put() for asyncio and trio."""
        def put(left):
            return self.put(array, metadata=metadata, timeout=left, stream=stream)

        return await _until(put, timeout, self.fileno)

    def end(self, timeout=math.inf):
        """Say that nothing more comes: subscribers get what is left, and then their iteration ends."""
        self._stream.end(timeout)

    async def aend(self, timeout=math.inf):
        """end() for asyncio and trio."""
        await _until(self.end, timeout, self.fileno)

    def info(self):
        """Return a StreamInfo: how long it is, who is there, how much memory it has."""
        return StreamInfo._make(self._client._stream_info(self.name))

    def members(self):
        """Return a list of StreamMembers: its producers and subscribers, where they are and what they hold."""
        return Rows(StreamMember._make(member) for member in self._client._members(self.name))

    def fileno(self):
        """Return a descriptor for event loops: it is readable until put_nowait() has found no room. It is not yours."""
        return self._stream.fileno()

    def reopen(self):
        """Let this object put after the end. Its next item reopens the stream for all."""
        self._stream.reopen()

    def subscribe(self, *, lossy=False, kept=False):
        """Return a Subscription.

        lossy: whether producers do not wait for it; then it may skip items, and `item.skipped` says how many.
        kept: whether it begins with the items that are kept (`keep` of the stream). Both are for a broadcast.
        """
        flags = (_LOSSY if lossy else 0) | (_KEPT if kept else 0)
        return Subscription(self._stream.subscribe(flags), self.name)

    def close(self):
        """Close the stream. Subscribers learn that this producer has ended; its items stay until they are taken."""
        self._stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()
