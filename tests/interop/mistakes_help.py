# SPDX-License-Identifier: Apache-2.0
"""Helpers of mistakes_test.py: what is left behind, what others hand us, and every way in which we hand tensors out."""

import contextlib
import ctypes
import functools
import gc
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "python" / "tests"))

import dlpack_abi as abi
from conftest import eventually

import tensorlease

REFUSALS = (BufferError, tensorlease.Error)
PAYLOAD = bytes(range(64))
CAPSULE_END = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # a capsule's destructor, which runs with the GIL

NUMPY = {"dl_device": None, "copy": None, "max_version": (1, 0)}  # what NumPy asks for
VERSIONED = {"max_version": (1, 0)}  # what most libraries ask for


# ---- What is left behind ----


class Left(NamedTuple):
    leases: int
    descriptors: int
    drafts: int
    tensors: int
    bytes_used: int
    retired: int


def left(observer):
    gc.collect()
    status = observer.status()
    leases = sum(c.leases for c in observer.clients() if c.pid == os.getpid())
    descriptors = len(os.listdir("/proc/self/fd"))
    return Left(leases, descriptors, status.drafts, status.tensors, status.bytes_used, status.retired)


def until_nothing_more(observer, before, **ignored):
    """Waits for what the daemon hears of later than this process. What came before may go meanwhile."""

    def more():
        after = left(observer)._replace(**ignored)
        return after[:2] != before[:2] or any(now > then for now, then in zip(after, before))

    with contextlib.suppress(AssertionError):  # to show the numbers
        eventually(lambda: not more())
    assert not more(), (before, left(observer))


@contextlib.contextmanager
def nothing_stays(client, observer):
    before = left(observer)
    yield
    until_nothing_more(observer, before)


# ---- What others hand us ----


def refused(client, observer, make, match, deleted=1):
    """put() and publish() refuse what make() makes, and its deleter has been called `deleted` times."""
    for call in (client.put, client.publish):
        producer = make()
        with nothing_stays(client, observer), pytest.raises(REFUSALS, match=match):
            call("mistakes/refused", producer)
        assert producer.deleted == deleted and "mistakes/refused" not in client


def taken(client, observer, make, expected, shape, dtype):
    """put() and publish() publish a copy of what make() makes, and call its deleter once."""
    for call in (client.put, client.publish):
        client.put("mistakes/taken", b"")
        with nothing_stays_but_bytes(client, observer):
            producer = make()
            call("mistakes/taken", producer)
            assert producer.deleted == 1
            with client.get("mistakes/taken") as tensor:
                assert (plain(tensor), tensor.shape, word(tensor)) == (bytes(expected), shape, dtype)
                assert tensor._address % 256 == 0


@contextlib.contextmanager
def nothing_stays_but_bytes(client, observer):
    before = left(observer)
    yield
    until_nothing_more(observer, before, bytes_used=0, drafts=0)  # prefetched drafts belong to the next put


def plain(tensor):
    capsule = tensor.__dlpack__(**NUMPY)
    return abi.bytes_of(abi.versioned_of(capsule).tensor, tensor.nbytes) if tensor.nbytes else b""


def word(tensor):
    return str(tensor._dtype_word)


def elements(*places, size=4):
    return b"".join(PAYLOAD[place : place + size] for place in places)


class Once:
    """Hands out a capsule that was made elsewhere, with the only reference to it."""

    def __init__(self, producer, capsule):
        self.producer, self.capsule = producer, capsule

    @property
    def deleted(self):
        return self.producer.deleted

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        capsule, self.capsule = self.capsule, None
        return capsule


def both(**arguments):
    """The same mistake in both kinds of capsule."""
    return [functools.partial(abi.Producer, legacy=legacy, **arguments) for legacy in (False, True)]


def with_destructor(destructor, **arguments):
    """A producer whose capsule has a destructor that calls destructor(producer, capsule's address)."""
    producer = abi.Producer(**arguments)
    callback = CAPSULE_END(lambda capsule: destructor(producer, capsule))
    producer.destructor = callback
    capsule = abi.api.PyCapsule_New(
        ctypes.addressof(producer.managed), ctypes.addressof(producer.name), ctypes.cast(callback, ctypes.c_void_p)
    )
    return Once(producer, capsule)


# ---- What we hand out ----

KINDS = {
    "three dimensions": ((2, 3, 4), "int16", {}),
    "none": ((), "float64", {}),
    "size zero": ((3, 0, 7), "float32", {}),
    "sizes of one": ((1, 5, 1, 2), "bool", {}),
    "many dimensions": ((1,) * 63 + (3,), "uint8", {}),
    "bfloat16": ((5,), "bfloat16", {}),
    "float4": ((3,), "float4_e2m1fn", {}),
    "float4 in pairs": ((3,), "float4_e2m1fnx2", {}),
    "padded": ((3,), "int4", {"padded": True}),
}


class Export(NamedTuple):
    kind: str
    way: str
    source: object  # the Tensor or Draft
    managed: object  # the struct
    keep: object

    @property
    def legacy(self):
        return isinstance(self.managed, abi.Managed)

    @property
    def flags(self):
        return None if self.legacy else self.managed.flags

    @property
    def shape(self):
        return tuple(self.managed.tensor.shape[i] for i in range(self.managed.tensor.ndim))

    @property
    def strides(self):
        return tuple(self.managed.tensor.strides[i] for i in range(self.managed.tensor.ndim))


def by_capsule(asked):
    def export(source):
        capsule = source.__dlpack__(**asked)
        struct = abi.legacy_of if abi.name_of(capsule) == "dltensor" else abi.versioned_of
        return struct(capsule), capsule

    return export


class Exchanged:
    """A tensor from the C exchange interface. It is deleted with this object."""

    def __init__(self, source):
        self.out = ctypes.POINTER(abi.Versioned)()
        assert abi.exchange_of(source).from_py(source, ctypes.byref(self.out)) == 0

    def __del__(self):
        self.out.contents.deleter(self.out)


def by_exchange(source):
    exchanged = Exchanged(source)
    return exchanged.out.contents, exchanged


WAYS = {
    ("r", "NumPy's request"): by_capsule(NUMPY),
    ("r", "a versioned capsule"): by_capsule(VERSIONED),
    ("r", "a copy"): by_capsule({"copy": True, **VERSIONED}),
    ("r", "a legacy copy"): by_capsule({"copy": True}),
    ("r", "the exchange interface"): by_exchange,
    ("c", "NumPy's request"): by_capsule(NUMPY),
    ("c", "a versioned capsule"): by_capsule(VERSIONED),
    ("c", "a legacy capsule"): by_capsule({}),
    ("c", "the exchange interface"): by_exchange,
    ("draft", "a versioned capsule"): by_capsule(VERSIONED),
    ("draft", "a legacy capsule"): by_capsule({}),
    ("draft", "the exchange interface"): by_exchange,
}


def exports(client):
    """Yields every kind of tensor in every way in which we hand it out. The bytes are 0.

    A capsule without a version cannot say that elements are padded, so no such tensor goes into one.
    """
    for kind, (shape, dtype, options) in KINDS.items():
        with client.create("mistakes/kind", shape, dtype, **options) as draft:
            managed, _ = by_capsule(VERSIONED)(draft)
            if draft.nbytes:
                ctypes.memset(managed.tensor.data, 0, int(draft.nbytes))
        for (mode, way), export in WAYS.items():
            if options.get("padded") and "legacy" in way:
                continue
            if mode == "draft":
                source = client.create("mistakes/draft", shape, dtype, **options)
            else:
                source = client.get("mistakes/kind", mode=mode)
            managed, keep = export(source)
            yield Export(kind, f"{mode}, {way}", source, managed, keep)
