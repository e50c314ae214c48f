# SPDX-License-Identifier: Apache-2.0
"""CachedDataset: the samples of a dataset, made once on a machine.

Samples lie in packs, tensors below PREFIX/.samples/ with some hundred samples each; _samples.py has their form. Each
process knows by a watch which packs there are, and notes for each index where its sample lies. Who makes a sample claims
PREFIX/INDEX until the pack with it is published: a claim only saves work. What it got each process publishes as
.datasets/PREFIX/WORD, which `tensorlease status` adds up, too.
"""

import contextlib
import errno
import itertools
import math
import multiprocessing.util
import operator
import os
import secrets
import sys
import threading
import time
import weakref

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from . import _samples
from ._cache import PATIENCE, try_claim
from ._client import Client, connect
from ._errors import InvalidError, NoSpaceError, NotFoundError
from ._lock import ForkLock
from ._paths import below
from ._tensor import Tensor

_PACK = 256  # samples, and
_PACK_BYTES = 4 << 20  # bytes, of which a pack has one or the other
_AGE = 0.1  # seconds that a sample waits for others to come into its pack
_FULL = 5.0  # seconds after which it is tried again whether there is space
_COPIED = 1 << 20  # samples of at most so many bytes are copied, not mapped
_TRIES = 5
_REPORT = 1.0  # seconds between reports of what this process got, which stay
_REPORTED = 600.0  # seconds
_AT_ONCE = 64  # samples that are claimed and made together
_CLAIMS = 256  # that a client may have, by the daemon's limit
_ROW = 32  # bits of a place that are the row; above them is the pack's number
_NOWHERE = -1


# ---- Collating ----


class _Batch:
    """One that needs no collating."""

    def __init__(self, value):
        self.value = value


default_collate_fn_map[Tensor] = lambda given, **_: torch.stack([tensor.torch() for tensor in given])
default_collate_fn_map[_Batch] = lambda given, **_: given[0].value
USUAL = dict(default_collate_fn_map)


def _is_collated_as_usual(frame):
    """Return whether what a __getitems__(), called by that frame, returns goes to default_collate() as it is."""
    if frame.f_code is Subset.__getitems__.__code__:
        frame = frame.f_back
    fetcher = frame.f_locals.get("self")
    usual = isinstance(fetcher, _MapDatasetFetcher) and fetcher.collate_fn is default_collate
    return usual and default_collate_fn_map == USUAL


# ---- What is there, and what is made ----


class _Waiting:
    """Samples that were made and are in no pack yet, and the claims on them."""

    def __init__(self):
        self.samples = {}  # index: the Encoded that has it, and its row there
        self.parts, self.claimed, self.bytes, self.since = [], [], 0, math.inf

    def add(self, made, parts, claimed):
        self.samples.update(made)
        self.parts += parts
        self.claimed += claimed
        self.bytes += sum(encoded.size() for _, encoded in parts)
        self.since = min(self.since, time.monotonic())

    def are_enough(self):
        return len(self.samples) >= _PACK or self.bytes >= _PACK_BYTES or time.monotonic() - self.since > _AGE


def _flush_at_exit(reference):
    store = reference()
    if store is not None:
        store.flush_quietly()
        store.report_soon(True)


def _chunks(indexes, size):
    return [indexes[at : at + size] for at in range(0, len(indexes), size)]


def _encode(indexes, samples):
    """Return pairs of the indexes of some samples, and these in an Encoded."""
    parts, at = [], 0
    for encoded in _samples.encode(samples) if samples else ():
        parts.append((indexes[at : at + encoded.count], encoded))
        at += encoded.count
    return parts


def _samples_of(dataset, indexes):
    """Return the samples of a dataset, whose __getitems__() may be faster than one after the other."""
    if len(indexes) == 1 or not callable(getattr(dataset, "__getitems__", None)):
        return [dataset[index] for index in indexes]
    samples = list(dataset.__getitems__(indexes))
    if len(samples) != len(indexes):
        raise ValueError(f"__getitems__() of {type(dataset)!r} returned {len(samples)} samples for {len(indexes)} indexes")
    return samples


class _Store:
    """What this process knows of the samples that are there, and those that it makes."""

    def __init__(self, client, prefix, dataset, options):
        self.client, self.path, self.options = client, below(prefix), options
        count = len(dataset)
        self.of = f"{count} samples of {type(dataset).__qualname__}"  # what packs have as metadata
        self.places = numpy.full(count, _NOWHERE, "int64")  # pack's number << _ROW | row, for each index
        self.count, self.packs = itertools.count(), {}  # number: name and head of each pack that there has been
        self.numbers = {}  # name: number of each pack that is there
        self.own = {}  # name: head and indexes of a pack that this process publishes, until the watch tells of it
        self.strange = {}  # name: what packs have samples of that are another dataset's
        self.bases = numpy.zeros((64, 1), "int64")  # of a pack with one layout: where its columns begin
        self.reports = f".datasets/{below(prefix)}"
        self.full_until = 0.0
        self.opened = time.monotonic()
        self.lock = ForkLock()
        self.buffer = None  # of packs
        self.begin()

    def begin(self):
        self.pid, self.events, self.waiting, self.storing = os.getpid(), None, _Waiting(), []
        self.timer = self.thread = self.failure = None  # thread: stores a pack; failure: of that
        self.reported, self.word = 0.0, secrets.token_hex(8)
        self.begin_counts()
        multiprocessing.util.Finalize(None, _flush_at_exit, args=(weakref.ref(self),), exitpriority=10)

    def begin_after_fork(self):
        """A child knows what its parent knew, and has a watch and claims of its own."""
        if self.pid != os.getpid():
            self.begin()

    def refresh(self):
        """Note what has come and gone."""
        with self.lock():
            gone = set()
            if self.events is None:
                gone |= self.numbers.keys()
                self.events = self.client.events(self.path + ".samples", timeout=None)
            while (event := self.events.poll()) is not None:
                if event.what == "restarted":
                    gone |= self.numbers.keys()
                    continue
                gone.discard(event.name)
                if event.what in ("deleted", "lost"):
                    self.drop(event.name)
                elif event.what == "published" and event.name not in self.numbers:
                    self.add(event.name)
            for name in gone:
                self.drop(name)
            for name, of in self.strange.items():
                raise InvalidError(
                    errno.EINVAL,
                    f"{name!r} has {of}, and this is a dataset of {self.of}: give each its own prefix=, or call clear()",
                )

    def add(self, name):
        found = self.own.pop(name, None) or self.read_head(name)
        if not found:
            return
        head, indexes = found
        number, known = next(self.count), (indexes >= 0) & (indexes < len(self.places))
        self.packs[number] = name, head
        if len(head.sections) == 1:
            self.note_columns(number, head.sections[0].columns)
        self.places[indexes[known]] = (number << _ROW) + numpy.flatnonzero(known)
        self.numbers[name] = number  # last: a child of a fork before this learns of the pack anew

    def read_head(self, name):
        """Return head and indexes of a pack, or None if it has gone, is a stranger's, or has another dataset's samples."""
        try:
            tensor = self.client.get(name)
        except NotFoundError:
            return None
        with tensor:
            if tensor.uid not in (0, self.client._own_uid()):
                return None
            of = str(tensor.metadata, "utf-8", "replace")
            if of != self.of:
                self.strange[name] = of or "other samples"
                return None
            return _samples.read_head(memoryview(tensor))

    def note_columns(self, number, columns):
        rows, wide = self.bases.shape
        if number >= rows or len(columns) > wide:
            larger = numpy.zeros((max(rows, 2 * number), max(wide, len(columns))), "int64")
            larger[:rows, :wide] = self.bases
            self.bases = larger
        self.bases[number, : len(columns)] = columns

    def drop(self, name):
        self.strange.pop(name, None)
        number = self.numbers.get(name)
        if number is not None:  # its name and head stay, for a thread that has just read a place in it
            self.places[self.places >> _ROW == number] = _NOWHERE
            self.numbers.pop(name, None)

    # Counts

    def begin_counts(self):
        self.hits = self.made = self.unkept = 0
        self.told = [0, 0, 0]

    def report(self):
        """Publish what this process got, if that is news."""
        counts, self.reported = [self.hits, self.made, self.unkept], time.monotonic()
        if counts != self.told:
            self.client.put(self.reports + self.word, numpy.array(counts), ttl=_REPORTED, ring=False)
            self.told = counts

    def report_soon(self, now=False):
        """Publish it once a second. That it cannot be published is no reason to give no sample."""
        if self.pid == os.getpid() and (now or time.monotonic() - self.reported > _REPORT):
            with contextlib.suppress(Exception):
                self.report()

    def all_reports(self):
        return [name for name in self.client.keys(self.reports) if "/" not in name[len(self.reports) :]]

    def counts(self):
        """Return what all processes got."""
        self.report()
        counts = numpy.zeros(3, "int64")
        for name in self.all_reports():
            with contextlib.suppress(NotFoundError), self.client.get(name) as tensor:
                ours = tensor.uid in (0, self.client._own_uid())
                if ours and (tensor.dtype, tensor.shape) == ("int64", counts.shape):
                    counts += tensor.numpy()
        return counts.tolist()

    # Made samples

    def flush(self):
        """Store what waits."""
        if self.thread:
            self.thread.join()
        self.store()

    def store(self):
        with self.lock():
            waiting = self.waiting
            self.storing = [*self.storing, waiting]
            self.waiting = _Waiting()
        try:
            if waiting.parts:
                self.publish(waiting.parts)
        finally:
            with self.lock():
                self.storing = [one for one in self.storing if one is not waiting]
            self.client._unclaim(*waiting.claimed)

    def unstored(self, index):
        """Return where that sample is, or None if it was not made or is in a pack."""
        for waiting in (self.waiting, *self.storing):
            if index in waiting.samples:
                return waiting.samples[index]
        return None

    def flush_quietly(self):
        """For a timer and an exit: nobody is there for an error, and the samples are made anew."""
        if self.pid == os.getpid():
            with contextlib.suppress(Exception):
                self.flush()

    def flush_aside(self):
        """Store what waits while the next samples are made. If that fails, the next call does."""

        def store():
            try:
                self.store()
            except Exception as error:
                self.failure = error

        if self.thread:
            self.thread.join()
        self.thread = threading.Thread(target=store, daemon=True)
        self.thread.start()

    def flush_soon(self):
        with self.lock():
            if self.waiting.samples and (self.timer is None or not self.timer.is_alive()):
                self.timer = threading.Timer(_AGE, self.flush_quietly)
                self.timer.daemon = True
                self.timer.start()

    def publish(self, parts):
        """Store the samples, in space of what nobody has used since we began.

        An epoch needs each sample once. If new ones took the place of those that were used least recently, each would go
        just before it is needed again, as soon as one does not fit.
        """
        name, ours = f"{self.path}.samples/{secrets.token_hex(8)}", time.monotonic() - self.opened
        pack = _samples.Pack(parts)
        self.own[name] = pack.head, pack.indexes
        options = {**self.options, "metadata": self.of, "evict_idle": max(1.0, ours)}
        data, self.buffer = self.buffer, None  # kept, since the pages of a new one would have to be made
        if data is None or len(data) < pack.head.size:
            data = numpy.empty(max(pack.head.size, 2 * _PACK_BYTES), "uint8")
        pack.write(data)
        try:
            self.client.put(name, data[: pack.head.size], **options)
        except BaseException as error:
            self.own.pop(name, None)
            if not isinstance(error, NoSpaceError):
                raise
            self.full_until = time.monotonic() + _FULL
            self.unkept += sum(encoded.count for _, encoded in parts)
        if len(data) <= 2 * _PACK_BYTES:  # not that of a larger sample
            self.buffer = data

    def make(self, dataset, indexes, timeout, made, fresh):
        """Make the samples that no other process makes, all at once. Return the indexes of the others."""
        names, held = [f"{self.path}{index}" for index in indexes], []
        try:
            if timeout:
                ours = [try_claim(self.client, name, timeout, held) for name in names]
            else:
                ours = self.client._claim_many(tuple(names), held)
            self.refresh()
            mine = [index for index, our in zip(indexes, ours, strict=True) if our is not None]
            missing = [index for index in mine if self.places[index] == _NOWHERE]
            self.hits += len(mine) - len(missing)  # another process has made them
            if missing:
                self.make_missing(dataset, missing, made, fresh, held)
        finally:
            self.client._unclaim(*held)
        return [index for index, our in zip(indexes, ours, strict=True) if our is None]

    def make_missing(self, dataset, indexes, made, fresh, held):
        samples = _samples_of(dataset, indexes)
        fresh.update(zip(indexes, samples, strict=True))
        parts = _encode(indexes, samples)
        ours = {index: (encoded, row) for some, encoded in parts for row, index in enumerate(some)}
        made.update(ours)
        self.made += len(indexes)
        self.keep(ours, parts, held)

    def keep(self, made, parts, held):
        """Have samples stored with others, if there is space, and the claims on them that are held last until then."""
        if time.monotonic() < self.full_until:
            self.unkept += len(made)
            return
        claimed = {name for name in held if int(name[len(self.path) :]) in made}
        with self.lock():
            self.waiting.add(made, parts, claimed)
        held[:] = [name for name in held if name not in claimed]

    def fill(self, dataset, indexes, fresh):
        """Make the samples that are nowhere, and put them into `fresh`. Return where those are that may be in no pack yet."""
        made, wanted, others = {}, {}, []
        failure, self.failure = self.failure, None
        if failure:
            raise failure
        self.refresh()
        if not (self.places[indexes] == _NOWHERE).any():
            self.hits += len(indexes)
            return made
        for index in indexes:
            waiting = self.unstored(index)
            if self.places[index] != _NOWHERE or waiting or index in wanted:
                self.hits += 1
                if waiting:
                    made[index] = waiting
            else:
                wanted[index] = None
        for chunk in _chunks(list(wanted), _AT_ONCE):
            if sum(len(one.claimed) for one in (self.waiting, *self.storing)) + len(chunk) > _CLAIMS:
                self.flush()
            others += self.make(dataset, chunk, 0.0, made, fresh)
            if self.waiting.bytes >= _PACK_BYTES:  # else it is mostly work of Python, of which one thread does as much
                self.flush_aside()
            elif self.waiting.are_enough():
                self.flush()
        if others:
            self.flush()  # nobody waits for what waits for somebody
        for index in others:
            if self.make(dataset, [index], PATIENCE, made, fresh):
                self.made += 1
                made[index] = _samples.Encoded([dataset[index]]), 0
        self.flush_soon()
        return made

    # Reading

    def sample(self, dataset, index, made, fresh):
        for _ in range(_TRIES):
            if index in made:
                break
            found = self.read(int(self.places[index]))
            if found:
                return found[0]
            made = self.fill(dataset, [index], fresh)  # its pack has gone
        encoded, row = made[index] if index in made else (_samples.Encoded([dataset[index]]), 0)
        return encoded.sample(row, fresh.pop(index, None))

    def read(self, place):
        """Return the sample there, in a tuple, or None if it has gone."""
        if place == _NOWHERE:
            return None
        number, row = place >> _ROW, place & (1 << _ROW) - 1
        name, head = self.packs[number]
        section = head.section_of(row)
        large = sum(section.layout.rows) > _COPIED
        try:
            tensor = self.client.get(name, mode="c" if large else "r")
        except NotFoundError:
            return None
        data = memoryview(tensor.numpy() if large else tensor)
        fixed, varying = _samples.fixed_of(section, data, row), _samples.varying_of(section, data, row)
        return (section.layout.sample(fixed, varying, copied=not large),)

    def batch(self, indexes):
        """Return a _Batch of the samples, or None if their layouts differ or some have gone."""
        places = self.places[indexes]
        if (places == _NOWHERE).any():
            return None
        numbers, rows = places >> _ROW, places & (1 << _ROW) - 1
        of_each = numbers.tolist()
        layout = self.packs[of_each[0]][1].sections[0].layout
        for number in set(of_each):
            sections = self.packs[number][1].sections
            if len(sections) != 1 or sections[0].layout is not layout:
                return None
        columns, outs, offsets = layout.columns(len(of_each)), [], []
        for n, (size, column) in enumerate(zip(layout.rows, columns, strict=True)):
            if size:
                outs.append(column.view(-1, size).numpy())
                offsets.append(self.bases[numbers, n] + rows * size)
        try:
            if outs:
                names = tuple([self.packs[number][0] for number in of_each])
                self.client._gather(names, tuple(outs), tuple(offsets), None)
            varying = self.varying(of_each, rows) if layout.varying else ()
        except NotFoundError:
            return None
        return _Batch(layout.batch(columns, varying, len(of_each)))

    def varying(self, numbers, rows):
        """Return the bytes of all samples for each varying leaf."""
        each = []
        for number, row in zip(numbers, rows.tolist(), strict=True):
            name, head = self.packs[number]
            with self.client.get(name) as tensor:
                each.append(_samples.varying_of(head.sections[0], memoryview(tensor), row))
        return zip(*each, strict=True)


class CachedDataset(Dataset):
    """A map-style dataset whose samples are made once on the machine and shared by all workers of all programs.

    dataset: any dataset with a length and items that are tensors, arrays, numbers, texts, bytes, images of PIL, or lists,
        tuples, named tuples and dicts of these. What it does at random is done once too: augment what comes out of this.
    client: a Client, or None for one that each process connects when it needs it, to the default address.
    prefix: of the names, which are PREFIX/.samples/... Each dataset needs its own, and a new one as soon as it returns
        something else, for example after a change of its transform: nothing tells samples apart but their index.
        InvalidError: the samples there are of a dataset of another class or length.
    evictable: whether samples may go when the daemon needs space; then they are made anew.
    ttl: seconds after which samples go, and are made anew. None: they stay until clear(), also when all programs have
        ended, and a daemon that was started for them stays too.
    Other attributes are those of the dataset, such as `classes` or `features`. If it has __getitems__(), as those of
    Hugging Face have, samples that are missing in a batch are made by one call of it.
    A DataLoader without a collate_fn of its own gets whole batches, which are copied at once from where the samples lie,
    and are what default_collate() makes of the samples. Tensors and arrays of a sample may be written to, and nobody else
    sees it: those of a sample of more than 1 MiB lie in the shared memory, over a copy-on-write mapping; smaller ones are
    copied, which is faster. The order of their dimensions in memory is kept, as torch.channels_last, but no gaps between
    elements. Only samples of this user and of root are taken. A sample that was just made waits for others for up to 0.1
    s, to be stored with them; a process that is killed meanwhile loses it.
    """

    def __init__(self, dataset, client=None, prefix=None, *, evictable=True, ttl=None):
        if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(f"the samples of {type(dataset)!r} have no indexes: a dataset needs __getitem__ and __len__")
        if client is not None and not isinstance(client, Client):
            raise TypeError(f"client must be a Client or None, not {type(client)!r}")
        if not isinstance(prefix, str) or not prefix:
            raise TypeError(f"prefix must be a str that only this dataset has, such as 'mnist/train', not {prefix!r}")
        self.dataset, self.client, self.evictable, self.ttl = dataset, client, evictable, ttl
        self.prefix = prefix.removesuffix("/")
        self._known = None

    def __getstate__(self):
        return {**self.__dict__, "_known": None}

    def __len__(self):
        return len(self.dataset)

    def __getattr__(self, name):
        """Return an attribute of the dataset, such as its classes or features."""
        if name.startswith("_") or "dataset" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def _store(self):
        if self.client is None:
            self.client = connect()
        if self._known is None:
            options = {"evictable": self.evictable, "ttl": self.ttl, "ring": False}
            self._known = _Store(self.client, self.prefix, self.dataset, options)
        self._known.begin_after_fork()
        return self._known

    def flush(self):
        """Store the samples that this process has just made, which wait for others."""
        self._store().flush()

    def clear(self):
        """Delete the samples and counts, for all programs. Samples are made anew when somebody asks for them.

        What another process has just made, and has not stored yet, comes after that.
        """
        store = self._store()
        store.flush()
        store.begin_counts()
        for name in self.client.keys(below(self.prefix) + ".samples") + store.all_reports():
            self.client.delete(name, missing_ok=True)

    def stats(self):
        """Return a dict of the samples that programs got: "hits" from the store, "made", and of these "unkept" for want of space.

        They are those of all processes of this user that have got one in the last ten minutes, such as the workers of a
        DataLoader, as each of them has told last; it does once a second. `tensorlease status` shows them.
        """
        return dict(zip(("hits", "made", "unkept"), self._store().counts(), strict=True))

    def _indexes(self, indexes):
        size, checked = len(self.dataset), []
        for index in indexes:
            try:
                checked.append(operator.index(index))
            except TypeError:
                raise TypeError(f"the index of a sample must be an int, not {type(index)!r}") from None
            if not -size <= checked[-1] < size:
                raise IndexError(f"sample {index} of {size}")
        return [index % size for index in checked]

    def __getitem__(self, index):
        store, (index,), fresh = self._store(), self._indexes([index]), {}
        made = store.fill(self.dataset, [index], fresh)
        store.report_soon()
        return store.sample(self.dataset, index, made, fresh)

    def __getitems__(self, indexes):
        as_usual = _is_collated_as_usual(sys._getframe(1))
        store, indexes, fresh = self._store(), self._indexes(indexes), {}
        made = store.fill(self.dataset, indexes, fresh)
        store.report_soon()
        if as_usual and fresh and all(index in fresh for index in indexes):
            return [fresh[index] for index in indexes]  # default_collate() copies them
        batch = store.batch(indexes) if as_usual and indexes and not made else None
        if batch:
            return [batch]
        return [store.sample(self.dataset, index, made, fresh) for index in indexes]
