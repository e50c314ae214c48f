# SPDX-License-Identifier: Apache-2.0
"""SharedLoader: the batches of one loader for all trainers of a machine.

Batches are items of a broadcast. Each says where it is: the epoch, and how many samples of the epoch come before it. One
of the trainers has the claim on NAME/.loads, in a process that makes batches and puts them. When it ends, whoever gets the
claim goes on behind the last item. Trainers know what comes next, so they leave out an item that comes twice, and notice one
that does not come.
"""

import collections
import contextlib
import errno
import itertools
import math
import multiprocessing
import multiprocessing.util
import os
import signal
import struct
import threading
import time
import warnings
import zlib
from typing import NamedTuple

import numpy
import torch
from torch.utils.data import IterableDataset, default_collate

from . import _batches
from ._cache import try_claim
from ._client import Client
from ._errors import Error, NotNewerError, StreamEndedError, TimeoutError
from ._loader import DataLoader
from ._paths import below
from ._ref import client_for

_LOOK = 0.2  # seconds between looks whether something has ended
_HELD_UP = 30.0  # seconds after which it is told who holds the others up
_TTL = 60.0  # seconds that the batches stay when all trainers were killed
_LEAVE = 10.0  # seconds to wait for the end of a process, whose workers may be making batches
_TRIES = 3
_DEPTH_MIN, _DEPTH_MAX = 2, 512
_LAST, _ERROR, _ROWS = 1, 2, 4
_OURS = 1 / 2  # of the capacity is for batches that trainers get, the rest for those that workers make, and
_KEPT = 3 / 8  # may be taken before a trainer gets copies
_ROWS_MAX = 512  # of 1024 that a stream has, likewise
_LOOK_AT = 4  # batches, after which it is looked how many are kept
_HEAD = struct.Struct("<16sqqqqqqII")
_MARK = b"SharedLoader 1\0\0"


class _Head(NamedTuple):
    """The metadata of an item."""

    epoch: int
    start: int  # samples of the epoch before it
    samples: int
    total: int  # samples of an epoch; -1: nobody knows
    size: int  # of the batches of whoever began
    seed: int
    order: int  # a checksum of the order of samples; of an IterableDataset how many workers it has
    flags: int  # _ROWS: default_collate() has made it, so that it can be divided

    @property
    def end(self):
        """Where the next one begins."""
        return (self.epoch + 1, 0) if self.flags & _LAST else (self.epoch, self.start + self.samples)

    def pack(self):
        return _HEAD.pack(_MARK, *self)

    @classmethod
    def of(cls, item, name):
        mark = item.metadata[:16]
        if mark != _MARK or len(item.metadata) != _HEAD.size:
            raise TypeError(f"item {item.number} of the stream {name!r} was not put by a SharedLoader: choose another name")
        return cls(*_HEAD.unpack(item.metadata)[1:])


# ---- Making batches ----


class _Workers(DataLoader):
    _share = 1 - _OURS


def _with_last(iterable):
    """Yield (whether it is the last one, element)."""
    held = []
    try:
        for one in iterable:
            if held:
                yield False, held.pop()
            held.append(one)
    except Exception:
        if held:
            yield False, held.pop()
        raise
    if held:
        yield True, held.pop()


_ORDER = (
    "give all trainers the same dataset, shuffle and sampler, and the sampler a set_epoch() or the attribute generator. "
    "A sampler for one of several ranks gives each a share; here all get all"
)


class _Once:
    """A batch sampler that is iterated once."""

    def __init__(self, iterator):
        self.iterator = iterator

    def __iter__(self):
        return self.iterator


class _Counted:
    """Collates samples of an IterableDataset, of which nothing else says how many they are."""

    def __init__(self, collate_fn):
        self.collate_fn = collate_fn or default_collate

    def __call__(self, samples):
        return len(samples), self.collate_fn(samples)


class _Source:
    """Makes the batches of a dataset, epoch after epoch."""

    def __init__(self, dataset, size, shuffle, sampler, batch_sampler, seed, options):
        self.dataset, self.size, self.shuffle = dataset, size, shuffle
        self.sampler, self.batch_sampler, self.seed, self.options = sampler, batch_sampler, seed, options
        self.iterable = isinstance(dataset, IterableDataset)
        self.rows = _ROWS if options["collate_fn"] in (None, default_collate) else 0
        self.before = None  # the _Head behind which it goes on

    def total(self):
        """Return how many samples an epoch has, or -1."""
        samples = self.dataset if self.sampler is None else self.sampler
        if self.iterable or self.batch_sampler is not None or not hasattr(samples, "__len__"):
            return -1
        return len(samples)

    def go_on(self, head):
        """Make what comes behind an item of another process."""
        self.size, self.seed, self.before = head.size, head.seed, head
        if self.iterable:
            self.options = {**self.options, "num_workers": head.order}

    def ordered(self, epoch):
        """Return the samples of an epoch, or its batches, and a checksum of them."""
        order = self.order(epoch)
        try:
            return order, zlib.crc32(numpy.fromiter(order, "int64"))
        except (TypeError, ValueError):
            return order, zlib.crc32(repr(order).encode())

    def check(self, head, name):
        """Raise a ValueError if another process takes other samples, or in another order, than this one would."""
        if self.total() != head.total:
            raise ValueError(
                f"{name!r} is loaded by a program that takes {head.total} samples in an epoch, and this one would take "
                f"{self.total()}: give all the same dataset and sampler, or another name"
            )
        self.seed = head.seed
        if not self.iterable and not head.flags & _ERROR and self.ordered(head.epoch)[1] != head.order:
            raise ValueError(f"{name!r} is loaded in another order than this process has: {_ORDER}")

    def order(self, epoch):
        generator = torch.Generator().manual_seed(self.seed + epoch)
        given = self.sampler if self.batch_sampler is None else self.batch_sampler
        if given is None:
            count = len(self.dataset)
            return torch.randperm(count, generator=generator).tolist() if self.shuffle else range(count)
        for one in (given, getattr(given, "sampler", None)):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)
            elif hasattr(one, "generator"):
                one.generator = generator
        return list(given)

    def batches_of(self, epoch, start):
        """Yield (head, indexes) for the batches of an epoch from that sample on."""
        (order, check), total = self.ordered(epoch), self.total()
        if self.before and self.before.epoch == epoch and self.before.order != check:
            raise RuntimeError(f"the process that loaded has ended, and the next one has another order: {_ORDER}")
        if self.batch_sampler is None:
            batches = (order[at : at + self.size] for at in range(start, len(order), self.size))
            at = start
        else:
            batches, at = order, 0
        for last, batch in _with_last(batches):
            if at + len(batch) > start:
                yield _Head(epoch, at, len(batch), total, self.size or 0, self.seed, check, last | self.rows), list(batch)
            at += len(batch)

    def loader(self, epoch, start, **options):
        # What samples do at random is new in each epoch, and in each process that goes on.
        generator = torch.Generator().manual_seed((self.seed + epoch * 1_000_003 + start) % (1 << 63))
        return _Workers(self.dataset, generator=generator, **{**self.options, **options})

    def mapped(self, epoch, start):
        heads = collections.deque()

        def indexes():
            for number in itertools.count(epoch):
                head = None
                for head, batch in self.batches_of(number, start if number == epoch else 0):
                    heads.append(head)
                    yield batch
                if head is None and not (start and number == epoch):  # else it begins at the end
                    raise ValueError(f"epoch {number} has no samples")

        # One iteration over all epochs, so that workers make the first batches of the next one meanwhile.
        for batch in self.loader(epoch, start, batch_sampler=_Once(indexes())):
            yield heads.popleft(), batch

    def iterated(self, epoch, start):
        for number in itertools.count(epoch):
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(number)
            at, workers = 0, self.options["num_workers"]
            counted = _Counted(self.options["collate_fn"])
            for last, (count, batch) in _with_last(self.loader(number, 0, batch_size=self.size, collate_fn=counted)):
                if number > epoch or at + count > start:
                    yield _Head(number, at, count, -1, self.size, self.seed, workers, last | self.rows), batch
                at += count
            if not at:
                raise ValueError(f"epoch {number} has no samples")

    def batches(self, epoch, start):
        """Yield (head, batch) from there on for ever."""
        return self.iterated(epoch, start) if self.iterable else self.mapped(epoch, start)


# ---- The processes ----


class _Loading:
    """The process of a trainer that loads whenever no other trainer's does. It ends with its trainer.

    It is a process, begun by the thread that iterates: another one may have any lock when it is time to begin workers.
    """

    def __init__(self, client, name, depth, trainers, device, source):
        self.client, self.name, self.depth, self.trainers = client, name, depth, trainers
        self.device, self.source = device, source

    def open(self, **options):
        ours = int(self.client.status().capacity * _OURS)
        return self.client.stream(
            self.name, "broadcast", depth=self.depth, keep=self.depth, max_bytes=ours, ttl=_TTL, **options
        )

    def start(self, context, begin):
        """Return the process and a pipe to it. begin: where the first item is, if there is none."""
        ours, its = context.Pipe()
        with its:
            process = context.Process(target=self.run, args=(begin, its, ours), name=f"SharedLoader {self.name}")
            process.start()
        return process, ours

    def run(self, begin, pipe, other_end):
        other_end.close()  # what fork() gave us
        torch.set_num_threads(1)  # as in PyTorch's workers: threads of OpenMP are not there after fork()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # they are for the trainer
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.ending, self.loads = threading.Event(), False
        try:
            self.stream = self.open(existing=True)
            threading.Thread(target=self.await_end, args=(pipe,), daemon=True).start()
            self.load_in_turn(begin)
        except Exception as error:
            if not self.ending.is_set():
                pipe.send(error)

    def await_end(self, pipe):
        """End this process when its trainer says so, or has ended."""
        parent = os.getppid()  # other children of the trainer may have the pipe's other end
        with contextlib.suppress(EOFError, OSError):
            while not pipe.poll(_LOOK) and os.getppid() == parent:
                pass
        self.ending.set()
        if self.loads:
            self.stream.close()  # so that a put waits no longer
            time.sleep(_LEAVE)  # for what makes a sample
        os._exit(1)

    def load_in_turn(self, begin):
        held, name = [], below(self.name) + ".loads"
        try:
            try_claim(self.client, name, math.inf, held)
            if not held:
                raise RuntimeError(f"{name!r} cannot be claimed: it is published, or this user has too many claims")
            self.loads = True
            self.load(begin)
        finally:
            if held:
                with contextlib.suppress(Error):
                    self.client._unclaim(name)

    def load(self, begin):
        last = self.last_item()
        while last is None and trainers_of(self.stream) < self.trainers:
            if self.ending.wait(0.02):
                return
        for head, arrays in self.items(*(last.end if last else begin)):
            while not self.ending.is_set() and not trainers_of(self.stream):  # who comes next deletes it
                self.ending.wait(_LOOK)
            if self.ending.is_set():
                return
            self.put(arrays, head)

    def last_item(self):
        """Return the _Head of the last item, or None, and let the source go on behind it."""
        last = None
        with self.stream.subscribe(lossy=True, kept=True) as items, contextlib.suppress(NotNewerError):
            while (item := items.get(None)) is not None:
                head = _Head.of(item, self.name)
                last = head if last is None else max(last, head, key=lambda one: one.end)
                item.release()
        if last:
            self.source.go_on(last)
        return last

    def items(self, epoch, start):
        """Yield (head, arrays) for ever. What cannot be made is an item that says so, the last one of its epoch."""
        while True:
            try:
                for head, batch in self.source.batches(epoch, start):
                    arrays = _batches.packed(batch, self.device)
                    epoch, start = head.end
                    yield head, arrays
            except Exception as error:
                text = f"{type(error).__name__}: {error}".encode("utf-8", "replace")
            source = self.source
            head = _Head(epoch, start, 0, source.total(), source.size or 0, source.seed, 0, _LAST | _ERROR)
            epoch, start = head.end
            yield head, [numpy.frombuffer(text, "uint8")]

    def put(self, arrays, head):
        try:
            return self.stream.put(arrays, metadata=head.pack(), timeout=_HELD_UP)
        except TimeoutError as error:
            warnings.warn(f"batches have waited for {_HELD_UP:g} s: {error}", stacklevel=2)
        self.stream.put(arrays, metadata=head.pack())


def trainers_of(stream):
    return sum(member.role == "subscriber" for member in stream.members())


class _Run:
    """A SharedLoader as one process has it open: its subscription, and the process that may load."""

    def __init__(self, loading, context, begin):
        self.loading, self.client, self.name = loading, loading.client, loading.name
        self.pid, self.context, self.begin = os.getpid(), context, begin
        if multiprocessing.current_process().daemon:
            raise RuntimeError(
                "a daemonic process, such as one of a multiprocessing.Pool, may have no children, and a SharedLoader needs "
                "one: make the process with daemon=False"
            )
        self.last, self.begun = None, 0  # the last item's _Head, and how many processes were begun since
        self.is_new, self.gets, self.copied = True, 0, False
        self.process = self.pipe = None
        with self.alone():
            self.stream = loading.open(produce=False)
            info = self.stream.info()
            if info.next > info.first and not trainers_of(self.stream):  # all were killed
                self.client.delete(self.name)
                self.stream = loading.open(produce=False)
            self.subscription = self.stream.subscribe(kept=True)
        try:
            self.start()
        except BaseException:
            self.leave()
            raise

    def start(self):
        self.process, self.pipe = self.loading.start(self.context, self.begin)
        self.begun += 1

    @contextlib.contextmanager
    def alone(self):
        """Let no other process open or leave it meanwhile."""
        held, name = [], below(self.name) + ".opens"
        try:
            try_claim(self.client, name, math.inf, held)
            yield
        finally:
            if held:
                self.client._unclaim(name)

    def close(self):
        if self.pid != os.getpid():
            return
        with contextlib.suppress(OSError):  # it has ended
            self.pipe.send_bytes(b"end")
        self.pipe.close()
        self.process.join(_LEAVE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.leave()

    def leave(self):
        with contextlib.suppress(Error, ValueError), self.alone():  # there is no daemon, or the client is closed
            self.subscription.close()
            trainers = trainers_of(self.stream)
            self.stream.close()
            if not trainers:
                self.client.delete(self.name, missing_ok=True)

    def batch(self, item):
        """Return the batch of an item: a copy if batches that are kept take much of the memory."""
        self.gets += 1
        if self.gets % _LOOK_AT == 1:
            info, capacity = self.stream.info(), self.client.status().capacity
            next_one = sum(tensor.nbytes for tensor in item.tensors)
            self.copied = (
                info.rows > _ROWS_MAX or info.nbytes > capacity * _KEPT or info.nbytes + next_one > capacity * _OURS
            )
        return _batches.unpacked(item.tensors, self.copied)

    def look(self):
        """Raise what the process that may load has raised. If it was killed, begin another one."""
        failed, ended = None, self.process.exitcode is not None
        with contextlib.suppress(EOFError, OSError):  # it has ended; its workers may have the pipe
            if self.pipe.poll():
                failed = self.pipe.recv()
        if failed is not None:
            raise failed
        if not ended:
            return
        what = f"the process that loads {self.name!r} has ended with exit code {self.process.exitcode}"
        if self.begun > _TRIES:
            raise RuntimeError(f"{what}, {self.begun} times without a batch")
        warnings.warn(f"{what}: another one begins", stacklevel=2)
        self.pipe.close()
        self.start()

    def next(self, timeout):
        """Return (head, item) of the next item."""
        end = time.monotonic() + timeout
        while True:
            try:
                item = self.subscription.get(min(_LOOK, max(end - time.monotonic(), 0.001)))
            except TimeoutError:
                self.look()
                if time.monotonic() < end:
                    continue
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    f"no batch of {self.name!r} came within {timeout:g} s; `tensorlease stream info {self.name}` shows "
                    "who loads and who holds it up",
                ) from None
            if item is None:
                raise StreamEndedError(errno.EPIPE, f"the stream {self.name!r} was ended")
            head = _Head.of(item, self.name)
            epoch, start = self.last.end if self.last else (head.epoch, head.start)
            if (head.epoch, head.start) < (epoch, start):  # it was put twice
                item.release()
                continue
            if (head.epoch, head.start) != (epoch, start):
                raise RuntimeError(
                    f"batches of {self.name!r} are missing: sample {start} of epoch {epoch} comes next, and not sample "
                    f"{head.start} of epoch {head.epoch}"
                )
            self.last, self.begun = head, 0
            return head, item


def _close(holder):
    if holder:
        holder.pop().close()


class SharedLoader:
    """A loader whose batches all trainers of a machine get, which decodes each sample once for all of them.

        loader = tensorlease.torch.SharedLoader(dataset, batch_size=64, shuffle=True, name="imagenet", num_workers=8)
        for epoch in range(10):
            for images, labels in loader:
                ...

    Programs that name it, with the same dataset, get the same batches in the same order, each of every epoch once: a
    trainer that is slower holds the others up when it is `depth` batches behind. Each has a process that can load, and
    that of the first one does. When it ends, or is killed, another one goes on behind its last batch. A trainer that is
    killed holds nobody up.

    dataset: one with a length and indexes, or an IterableDataset, which must give the same samples whenever it is
        iterated, since whoever goes on with an epoch skips what came before.
    batch_size: of this trainer. The first one's is that of the batches that are shared; another size is made of these
        here, without a copy where one of those is divided. With a collate_fn all need the same one.
    shuffle, sampler, batch_sampler, drop_last, collate_fn: as for DataLoader. The order of an epoch must be the same in
        all processes, or iterating raises a ValueError: shuffle depends on seed and the epoch, and so does what a sampler
        with the attribute generator makes; others need a set_epoch(). A DistributedSampler is refused: it gives each rank
        a share, and here all get all. With a batch_sampler there is no batch_size.
    name: of the stream with the batches.
    num_workers: how many processes make samples for this trainer when it loads. None: as many as there are CPUs, at most
        8. 0: the one does that puts the batches.
    seed: of the order.
    depth: how many batches a trainer may be behind the fastest one, 2 to 512, the same for all. The daemon has memory for
        these, and for those that trainers keep.
    join: what a trainer that comes in the middle of an epoch begins with. "now": the rest of this epoch, and up to depth
        batches before it. "next": the next epoch.
    trainers: how many of them must be there before the first batch is made.
    pin_memory: whether this trainer gets copies in pinned memory, if PyTorch has a GPU.
    device: a GPU to which whoever loads copies the tensors of a batch, once for all. They must not be written to. It needs
        a multiprocessing_context other than "fork" if this process has used the GPU.
    timeout: seconds to wait for a batch. 0: for ever.
    client: the Client whose daemon has the batches. None: that of connect(), one for all in this process.
    options: worker_init_fn, multiprocessing_context, prefetch_factor, persistent_workers and in_order of DataLoader, for
        the processes. They stay for all epochs; those of an IterableDataset are begun for each.

    Batches are tensors as those of tensorlease.torch.DataLoader: they may be written to, and nobody else sees it. Nothing
    is pickled between trainers. If a sample cannot be made, each trainer's iteration raises a RuntimeError that says why,
    and the next iteration is the next epoch. TimeoutError: no batch came in time. An Error: the daemon, or the stream, is
    gone. One thread at a time may iterate.

    A new iteration is a new epoch, also after one that was left; after a TimeoutError it goes on with the same one, unless
    samples of a batch of another size wait. Who keeps many batches gets copies from then on. A trainer is there from its first iteration to close(),
    the end of its with block, or of the object or process; between iterations too the others wait for it.
    """

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=False,
        sampler=None,
        batch_sampler=None,
        *,
        name,
        num_workers=None,
        collate_fn=None,
        drop_last=False,
        seed=0,
        depth=8,
        join="now",
        trainers=1,
        pin_memory=False,
        device=None,
        timeout=0,
        client=None,
        **options,
    ):
        if not isinstance(name, str) or not name:
            raise TypeError(f"name must be a str, the name of a stream, not {name!r}")
        if client is not None and not isinstance(client, Client):
            raise TypeError(f"client must be a Client or None, not {type(client)!r}")
        if not _DEPTH_MIN <= depth <= _DEPTH_MAX:
            raise ValueError(f"depth is {depth}; it is {_DEPTH_MIN} to {_DEPTH_MAX}")
        if join not in ("now", "next"):
            raise ValueError(f"join is {join!r}; it is 'now' or 'next'")
        unknown = options.keys() - {
            "worker_init_fn", "multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order"
        }
        if unknown:
            raise TypeError(f"SharedLoader() has no option {min(unknown)!r}")
        if isinstance(dataset, IterableDataset) and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("an IterableDataset has an order of its own: shuffle and samplers are for others")
        if sampler is not None and shuffle:
            raise ValueError("sampler and shuffle both say the order: give one of them")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError("batch_sampler says what batches are: no batch_size, shuffle, sampler or drop_last beside it")
            batch_size = None
        elif type(batch_size) is not int or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}; it is an int of at least 1")
        if type(seed) is not int:
            raise TypeError(f"seed must be an int, not {seed!r}")
        if num_workers is not None and num_workers < 0:
            raise ValueError(f"num_workers is {num_workers}; it is at least 0")
        if num_workers is None:
            num_workers = min(len(os.sched_getaffinity(0)), 8)
        options = {"num_workers": num_workers, "collate_fn": collate_fn, "client": client, **options}
        options.pop("persistent_workers", None)
        context = options.get("multiprocessing_context")
        self.dataset, self.batch_size, self.sampler, self.batch_sampler = dataset, batch_size, sampler, batch_sampler
        self.drop_last, self.name, self.pin_memory, self.timeout = drop_last, name, pin_memory, timeout
        self.epoch = None  # of the batches that one gets
        self._join, self._client = join, client
        self._settings = depth, trainers, device
        self._context = context if hasattr(context, "Process") else torch.multiprocessing.get_context(context)
        self._source_of = dataset, batch_size, shuffle, sampler, batch_sampler, seed, options
        self._target = self._position = (0, 0)  # where the next iteration begins, and which sample comes next
        self._run = []  # of this process, or empty
        self._iteration = self._back = None
        self._as_is = False  # whether batches are given as they were put

    def __getstate__(self):
        return {**self.__dict__, "_run": []}

    def __len__(self):
        """Return how many batches an epoch has."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        count = len(self.dataset if self.sampler is None else self.sampler)
        return count // self.batch_size if self.drop_last else math.ceil(count / self.batch_size)

    def set_epoch(self, epoch):
        """Begin the next iteration with this epoch, or a later one if the others are there already: see `epoch`."""
        self._target = self._position = (int(epoch), 0)

    def state_dict(self):
        """Return where this trainer is: the epoch, and how many samples of it were got."""
        return {"epoch": self._position[0], "samples": self._position[1]}

    def load_state_dict(self, state):
        """Begin the next iteration there, or later if the others are there already. The first trainer says where it is.

        All that go on together load one state, since what was before that of the first one does not come again.
        """
        self._target = self._position = (int(state["epoch"]), int(state["samples"]))
        self._back = True

    def close(self):
        """Leave: nobody waits for this trainer any more. Its batches stay valid. A later iteration joins again."""
        _close(self._run)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()

    def _open(self):
        if self._run and self._run[0].pid != os.getpid():
            self._run = []  # that of the parent
        if self._run and self._back and self._run[0].last and self._target < self._run[0].last.end:
            self.close()  # if nobody else is there, it begins anew
        self._back = None
        if not self._run:
            socket, namespace = os.environ.get("TENSORLEASE_SOCKET"), os.environ.get("TENSORLEASE_NAMESPACE")
            client = self._client or client_for(socket or None, namespace, None, 10.0)
            loading = _Loading(client, self.name, *self._settings, _Source(*self._source_of))
            self._run = [_Run(loading, self._context, self._target)]
            multiprocessing.util.Finalize(self, _close, (self._run,), exitpriority=10)
        return self._run[0]

    def __iter__(self):
        run, self._iteration = self._open(), object()
        return self._epoch_of(run, self._iteration)

    def _epoch_of(self, run, iteration):
        try:
            yield from self._sized(self._parts(run, iteration))
            self._position = self._target
        except TimeoutError:
            raise
        except (Error, TypeError, ValueError):
            self.close()  # nobody waits for this one; the next iteration joins again
            raise

    def _parts(self, run, iteration):
        """Yield (samples, batch) of one epoch, as they were put."""
        first = True
        while True:
            if self._iteration is not iteration:
                raise RuntimeError(f"another iteration of {self.name!r} has begun, and batches come once")
            head, item = run.next(self.timeout or math.inf)
            with item:
                if first and self._is_before(head, run.is_new):
                    continue
                if first:
                    run.loading.source.check(head, self.name)
                    self._check_size(head)
                    self.epoch, run.is_new = head.epoch, False
                    self._position = max((head.epoch, head.start), self._target)
                    skipped, self._target = self._position[1] - head.start, (head.epoch + 1, 0)
                if head.flags & _ERROR:
                    text = str(item.tensor.bytes(), "utf-8", "replace")
                    where = f"sample {head.start} of epoch {head.epoch}"
                    raise RuntimeError(f"{self.name!r} could not be loaded from {where} on: {text}")
                batch = run.batch(item)
            if first and skipped:
                batch = _batches.cut(batch, skipped, head.samples, head.samples)
                head = head._replace(samples=head.samples - skipped)
            first = False
            yield head.samples, batch
            batch = None
            if head.flags & _LAST:
                return

    def _is_before(self, head, is_new):
        """Return whether the iteration begins behind that item."""
        if (head.epoch, head.start + max(head.samples, 1)) <= self._target or head.epoch < self._target[0]:
            return True
        if self._join == "next" and (head.epoch, head.start) > self._target and head.start and is_new:
            self._target = (head.epoch + 1, 0)
            return True
        return False

    def _check_size(self, head):
        self._as_is = self.batch_size is None or not head.flags & _ROWS
        cut = self._target > (head.epoch, head.start) or self.batch_size != (head.size or None)
        if cut and not head.flags & (_ROWS | _ERROR):
            raise ValueError(
                f"the batches of {self.name!r} have up to {head.size} samples, and here up to {self.batch_size} are wanted: "
                "what a collate_fn has made cannot be divided, so that all trainers need the same batch_size"
            )

    def _sized(self, parts):
        """Yield the batches of this trainer's size."""
        waiting, have = [], 0
        try:
            for count, batch in parts:
                at = 0
                if self._as_is and not (self.drop_last and count < self.batch_size):
                    yield self._given([batch], count)
                while at < count and not self._as_is:
                    size = min(self.batch_size - have, count - at)
                    waiting.append(batch if size == count else _batches.cut(batch, at, at + size, count))
                    have, at = have + size, at + size
                    if have == self.batch_size:
                        yield self._given(waiting, have)
                        waiting, have = [], 0
                batch = None  # nobody holds it while the next one is waited for
        except TimeoutError:
            if not have:
                self._target = self._position  # the next iteration goes on there
            raise
        if have and not self.drop_last:
            yield self._given(waiting, have)

    def _given(self, waiting, count):
        self._position = (self._position[0], self._position[1] + count)
        batch = _batches.joined(waiting)
        if self.pin_memory and torch.cuda.is_available():
            batch = torch.utils.data._utils.pin_memory.pin_memory(batch)
        return batch
