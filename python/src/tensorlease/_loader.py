# SPDX-License-Identifier: Apache-2.0
"""DataLoader: PyTorch's own, whose workers hand their batches over through a tensorlease.Queue."""

import contextlib
import functools
import math
import multiprocessing
import os
import warnings
import weakref
from queue import Full

import torch
from torch._utils import ExceptionWrapper
from torch.utils import data
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from . import _dataset, _samples
from ._errors import Error
from ._queue import Queue

_LOOK = 5.0  # seconds after which a worker looks whether its parent is still there
_LOOK_AT = 4  # batches, after which it is looked how many are kept
_ROWS = 512  # of a stream, which has 1024, and
_FULL = 0.75  # of the capacity: with more, batches are copied
_DEPTH_MAX = 512


def _end(client, name, pid):
    if os.getpid() == pid:
        with contextlib.suppress(Error, ValueError):  # there is no daemon, or the client is closed
            client.delete(name, missing_ok=True)


class _Batches(Queue):
    """The queue of what workers have made. It has room for all that is asked for at once.

    It ends with its iterator, although the workers were given it: they have ended before.
    """

    _gets = 0

    def _end_with_this_process(self):
        super()._end_with_this_process()
        weakref.finalize(self, _end, self._client, self.name, os.getpid()).atexit = False

    def get(self, *args, **kwargs):
        """Do what Queue.get() does. A program that keeps many batches gets copies, so that workers have memory."""
        self._gets += 1
        if self._gets % _LOOK_AT == 0 and self._copied < math.inf:
            status, rows = self._client.status(), self._ends().stream.info().rows
            if rows > _ROWS or status.bytes_used > status.capacity * _FULL:
                self._copied = math.inf
        return super().get(*args, **kwargs)

    def put(self, made):
        told = False
        while True:
            try:
                return self._put_or_say(made)
            except Full as error:
                parent = multiprocessing.parent_process()
                if parent is not None and not parent.is_alive():
                    raise
                if not told:
                    warnings.warn(f"a worker has waited for {_LOOK:g} s to hand a batch over: {error}", stacklevel=2)
                told = True

    def _put_or_say(self, made):
        try:
            super().put(made, timeout=_LOOK)
        except Error:  # there is no space: who asked for the batch is told
            super().put((made[0], ExceptionWrapper(where="in a worker of a tensorlease.torch.DataLoader")), timeout=_LOOK)


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
        self._context, self._make = context, make

    def Queue(self):  # noqa: N802
        make, self._make = self._make, None
        return make() if make else self._context.Queue()

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
    client: the Client whose daemon has the memory. None: that of connect(). It needs about as many batches as workers
        make ahead: num_workers * prefetch_factor. If there is no space for one, iterating raises an error that says so.
    Without workers it is the same as PyTorch's.
    """

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
        make = functools.partial(_Batches, min(ahead, _DEPTH_MAX), client=self._client_of_batches)
        return _Context(given or torch.multiprocessing, make)

    @multiprocessing_context.setter
    def multiprocessing_context(self, given):
        data.DataLoader.multiprocessing_context.fset(self, given)
