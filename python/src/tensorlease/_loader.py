# SPDX-License-Identifier: Apache-2.0
"""DataLoader: PyTorch's own, whose workers hand their batches over through a tensorlease.Queue."""

import contextlib
import errno
import functools
import math
import multiprocessing
import os
import time
import warnings
import weakref
from queue import Full

import torch
from torch._utils import ExceptionWrapper
from torch.utils import data
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from . import _dataset, _samples
from ._cache import try_claim
from ._errors import Error, NoSpaceError
from ._queue import Queue, _packed

_LOOK = 5.0  # seconds after which a worker says that it waits, or that there is no space
_LOOK_AT = 4  # batches, after which it is looked how many are kept
_ROWS = 512  # of a stream, which has 1024, and
_FULL = 0.75  # of the capacity
_ROUND = 0.2  # seconds for which a worker waits until it looks whether its batch is still wanted, and
_POLL = 0.01  # if it has no memory
_DEPTH_MAX = 512
_GONE = errno.ESTALE, errno.ENOENT, errno.EPIPE  # there is no such queue any more: who takes from it knows


def _end(client, name, pid):
    if os.getpid() == pid:
        with contextlib.suppress(Error, ValueError):  # there is no daemon, or the client is closed
            client.delete(name, missing_ok=True)


class _Batches(Queue):
    """The queue of what workers have made. It has room for all that is asked for at once.

    The memory may hold fewer batches than are under way: one whose turn has not come must not keep the room that the one
    whose turn it is needs. Then the program copies what it takes, and a worker keeps no memory for its next batch, so
    that whoever finds none only waits until others are taken.

    It ends with its iterator, although the workers were given it: they have ended before.
    """

    given_up = None  # the Event that says that nobody wants batches any more
    share = None  # of the memory that batches may have which are put and not taken, beside a first one; None: all
    _gets = 0
    _many = False

    def _end_with_this_process(self):
        super()._end_with_this_process()
        weakref.finalize(self, _end, self._client, self.name, os.getpid()).atexit = False

    def _copied(self, item):
        """A program that keeps many batches gets copies, so that workers have memory."""
        self._gets += 1
        if self._gets % _LOOK_AT == 0 and not self._many:
            self._many = self._ends().stream.info().rows > _ROWS
        status = self._client.status()  # which is no request
        next_one = sum(tensor.nbytes for tensor in item.tensors)
        if self._many or self._shares(next_one) or status.bytes_used + next_one > status.capacity * _FULL:
            return math.inf
        return super()._copied(item)

    def __getstate__(self):
        return super().__getstate__(), self.given_up, self.share

    def __setstate__(self, state):
        super().__setstate__(state[0])
        self.given_up, self.share = state[1:]

    def _shares(self, nbytes):
        """Whether batches of that size, as many as may be under way, would have more than their share."""
        return self.share is not None and self._maxsize * nbytes > self._client.status().capacity * self.share

    def _put_in_turn(self, packed, nbytes):
        """One worker at a time looks whether there is room within the share."""
        held, name = [], f"{self.name}.room"
        try:
            if not try_claim(self._client, name, _ROUND, held):
                raise Full("other workers hand their batches over")
            info, capacity = self._ends().stream.info(), self._client.status().capacity
            if info.rows and info.nbytes + nbytes > capacity * self.share:
                time.sleep(_POLL)
                raise Full(f"{info.nbytes} bytes of batches wait, of {capacity * self.share:.0f} at most")
            self._put(*packed, True, _ROUND)
        finally:
            if held:
                with contextlib.suppress(Error):
                    self._client._unclaim(name)

    def put(self, made):
        packed, told, failed = _packed(made), False, False
        nbytes = sum(getattr(tensor, "nbytes", 0) for tensor in packed[0])
        begin = time.monotonic()
        late = begin + _LOOK  # so long nothing was there that the program could take
        while True:
            try:
                if self._shares(nbytes):
                    self._put_in_turn(packed, nbytes)
                else:
                    self._put(*packed, True, _ROUND)
                break
            except Full as error:  # since the program is slow, or because no more memory is there than we have
                self._leave()
                reason = str(error)
            except Error as error:
                if error.errno in _GONE:
                    return
                waits = isinstance(error, NoSpaceError) and nbytes <= self._client.status().capacity
                with contextlib.suppress(Error):  # which the next put has as well
                    if waits and not self.empty():
                        late = time.monotonic() + _LOOK
                if not waits or (self.share is None and time.monotonic() > late):
                    if failed:
                        raise
                    packed, failed = _packed((made[0], _wrapped(error, nbytes))), True  # who asked for it is told
                    continue
                time.sleep(_POLL)
                reason = error.strerror
            parent = multiprocessing.parent_process()
            if self.given_up.is_set() or (parent is not None and not parent.is_alive()):
                return
            if not told and time.monotonic() > begin + _LOOK:
                warnings.warn(f"a worker has waited for {_LOOK:g} s to hand a batch over: {reason}", stacklevel=2)
                told = True
        if get_worker_info().num_workers > 1 and self._maxsize * nbytes > self._client.status().capacity * _FULL:
            self._leave()

    def _leave(self):
        """Give the memory of what was put back once it is taken."""
        here, self._here = self._here, None
        if here is not None:
            here.stream.close()


def _wrapped(error, nbytes):
    where = "in a worker of a tensorlease.torch.DataLoader"
    if isinstance(error, NoSpaceError):
        where += (
            f", whose batch has {nbytes} bytes: make batches smaller or the daemon's --capacity larger,"
            " which in a container needs a larger /dev/shm (docker run --shm-size)"
        )
    return ExceptionWrapper(where=where)


def _stack(batch, **_):
    return torch.stack(batch)


class _Begin:
    """Begins a worker, whose batches need not lie in memory that another process can map: put() copies them there."""

    def __init__(self, worker_init_fn):
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker):
        _samples.batches_are_copied()
        if default_collate_fn_map[torch.Tensor] is collate_tensor_fn:
            default_collate_fn_map[torch.Tensor] = _dataset.USUAL[torch.Tensor] = _stack
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


class _Context:
    """A context of multiprocessing whose first queue, which is that of the batches, is another one."""

    def __init__(self, context, make):
        self._context, self._make, self._batches = context, make, None

    def Queue(self):  # noqa: N802
        if self._batches:
            return self._context.Queue()
        self._batches = self._make()
        return self._batches

    def Event(self):  # noqa: N802
        self._batches.given_up = event = self._context.Event()  # the only one: it tells the workers to end
        return event

    def __getattr__(self, name):
        return getattr(self._context, name)


class DataLoader(data.DataLoader):
    """torch.utils.data.DataLoader, whose workers hand batches over through shared memory that is used again and again.

    PyTorch makes a file in /dev/shm for each tensor of each batch, which takes longer than many a batch takes to make, and
    needs a descriptor for each; a worker that is killed leaves files behind. Here a batch is an item of a stream:
    tensors of more than 128 KiB are mapped copy-on-write, so that they may be written to, and smaller ones are copied.
    A program that keeps hundreds of them, or most of the memory, gets copies from then on. Nothing is left behind,
    whoever is killed.

    Arguments are those of torch.utils.data.DataLoader, and:
    client: the Client whose daemon has the memory. None: that of connect(). Loading is fastest if the daemon has space for
        all batches that workers make ahead, num_workers * prefetch_factor. With less, workers wait for each other. If
        there is no space for a single one, iterating raises an error that says so.
    Without workers it is the same as PyTorch's.
    """

    _share: float | None = None  # as in _Batches

    def __init__(self, *args, client=None, **kwargs):
        self._client_of_batches = client
        super().__init__(*args, **kwargs)
        self.worker_init_fn = _Begin(self.worker_init_fn)

    @property
    def multiprocessing_context(self):
        given = data.DataLoader.multiprocessing_context.fget(self)
        if not self.num_workers:
            return given
        ahead = self.num_workers * ((self.prefetch_factor or 2) + 1)

        def make():
            batches = _Batches(min(ahead, _DEPTH_MAX), client=self._client_of_batches)
            batches.share = self._share
            return batches

        return _Context(given or torch.multiprocessing, make)

    @multiprocessing_context.setter
    def multiprocessing_context(self, given):
        data.DataLoader.multiprocessing_context.fset(self, given)
