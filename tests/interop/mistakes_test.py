# SPDX-License-Identifier: Apache-2.0
"""The 31 usual mistakes of DLPack producers, one by one. We do not make the mistake (`ours`). A tensor of somebody who
made it (`theirs`) is read as DLPack says, or refused with a text, and nothing of it stays.

A test that might kill its process runs in one of its own: @alone. tests/client/mistakes.c has the tests for C callers.
"""

import contextlib
import ctypes
import functools
import gc
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from conftest import no_client_stays
from limits import limit
from mistakes_help import (
    NUMPY,
    PAYLOAD,
    VERSIONED,
    Exchanged,
    abi,
    both,
    elements,
    exports,
    left,
    nothing_stays,
    nothing_stays_but_bytes,
    plain,
    refused,
    taken,
    until_nothing_more,
    with_destructor,
)

import tensorlease

COUNT = 31

# Mistakes in which a producer can hand us nothing, and why.
NOTHING_TO_HAND_OVER = {
    24: "put() and publish() never ask for a copy",
    28: "put() and publish() pass no stream: they take memory of the CPU only",
}

pytestmark = pytest.mark.usefixtures("quick_collections")

BODIES = {}


def alone(body):
    """Runs a test in a process of its own, whose death fails this test only."""

    def test(address, observer):
        with no_client_stays(observer):
            result = subprocess.run(
                [sys.executable, "-X", "faulthandler", __file__, body.__name__],
                env={**os.environ, "TENSORLEASE_SOCKET": address},
                capture_output=True,
                text=True,
                timeout=limit(100),
            )
        assert result.returncode == 0, result.stderr

    BODIES[body.__name__] = body
    return test


@pytest.fixture(autouse=True)
def nothing_is_left(observer):
    before = left(observer)
    yield
    for info in observer.list("mistakes/"):
        observer.delete(info.name)
    until_nothing_more(observer, before, bytes_used=0)


def c_strides(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def test_01_strides_in_bytes__ours(client):
    for e in exports(client):
        assert [s for s, n in zip(e.strides, e.shape) if n > 1] == [
            s for s, n in zip(c_strides(e.shape), e.shape) if n > 1
        ] or 0 in e.shape, e


def test_01_strides_in_bytes__theirs(client, observer):
    """They cannot be told from strides in elements, so they are taken as DLPack defines them."""
    for make in both(shape=(2, 2), strides=(8, 4)):  # (2, 1) was meant
        taken(client, observer, make, elements(0, 16, 32, 48), (2, 2), "int32")


def test_02_null_strides__ours(client):
    for e in exports(client):
        assert bool(e.managed.tensor.strides) or not e.shape, e


def test_02_null_strides__theirs(client, observer):
    for make in both(shape=(2, 3), strides=None):
        taken(client, observer, make, PAYLOAD[:24], (2, 3), "int32")


def test_03_byte_offset__ours(client):
    for e in exports(client):
        assert e.managed.tensor.byte_offset == 0, e


def test_03_byte_offset__theirs(client, observer):
    for offset in (4, 7, 48):
        for make in both(byte_offset=offset):
            taken(client, observer, make, PAYLOAD[offset : offset + 16], (4,), "int32")
    for make in both(byte_offset=(1 << 64) - 4):
        refused(client, observer, make, "byte_offset")


def test_04_null_data__ours(client):
    for e in exports(client):
        assert bool(e.managed.tensor.data) == (e.source.nbytes > 0), e


def test_04_null_data__theirs(client, observer):
    for make in both(data=None):
        refused(client, observer, make, "data is NULL")


def test_05_size_zero__ours(client):
    for e in exports(client):
        if e.kind == "size zero":
            assert e.managed.tensor.data is None and e.shape == (3, 0, 7), e


def test_05_size_zero__theirs(client, observer):
    for data in (None, "payload", 8):  # nobody reads there
        for make in both(shape=(3, 0), data=data):
            taken(client, observer, make, b"", (3, 0), "int32")


def test_06_no_dimensions__ours(client):
    for e in exports(client):
        if e.kind == "none":
            assert e.managed.tensor.ndim == 0 and e.managed.tensor.data, e


def test_06_no_dimensions__theirs(client, observer):
    for shape in ((), None):
        for make in both(shape=shape, ndim=0, strides=None):
            taken(client, observer, make, PAYLOAD[:4], (), "int32")


def test_07_negative_strides__ours(client):
    for e in exports(client):
        assert min(e.strides, default=0) >= 0, e
    flat = memoryview(bytearray(PAYLOAD))[::-1]
    client.put("mistakes/reversed", flat)
    capsule = client.get("mistakes/reversed").__dlpack__(**NUMPY)
    assert abi.versioned_of(capsule).tensor.strides[0] == 1


def test_07_negative_strides__theirs(client, observer):
    for make in both(strides=(-1,), byte_offset=12):
        taken(client, observer, make, elements(12, 8, 4, 0), (4,), "int32")
    for make in both(shape=(2, 2), strides=(2, -1), byte_offset=4):
        taken(client, observer, make, elements(4, 0, 12, 8), (2, 2), "int32")
    for stride in (-(1 << 56), -(1 << 63)):  # below the first address
        for make in both(strides=(stride,)):
            refused(client, observer, make, "element 0")


def test_08_stride_0_but_writable__ours(client):
    for e in exports(client):
        assert all(stride > 0 for stride, n in zip(e.strides, e.shape) if n > 1) or 0 in e.shape, e


def test_08_stride_0_but_writable__theirs(client, observer):
    for make in both(shape=(3, 2), strides=(0, 1)):
        taken(client, observer, make, PAYLOAD[:8] * 3, (3, 2), "int32")


def test_09_misaligned__ours(client):
    for e in exports(client):
        assert (e.managed.tensor.data or 0) % 256 == 0, e


def test_09_misaligned__theirs(client, observer):
    payload = ctypes.create_string_buffer(PAYLOAD)
    for offset in range(1, 9):
        for dtype, name, size in (
            ((0, 32, 1), "int32", 4),
            ((2, 64, 1), "float64", 8),
            ((5, 128, 1), "complex128", 16),
        ):
            for make in both(data=ctypes.addressof(payload) + offset, shape=(2,), dtype=dtype):
                taken(client, observer, make, PAYLOAD[offset : offset + 2 * size], (2,), name)
            for make in both(byte_offset=offset, shape=(2,), strides=(1,), dtype=dtype):
                taken(client, observer, make, PAYLOAD[offset : offset + 2 * size], (2,), name)


def test_10_impossible_shapes__ours(client):
    for shape in ((-1,), (3, -4), (1 << 62, 4), (1 << 62,)):
        with pytest.raises((ValueError, OverflowError)):
            client.create("mistakes/shape", shape, "float32")
    for e in exports(client):
        assert min(e.shape, default=0) >= 0 and e.shape == e.source.shape, e


@alone
def test_10_impossible_shapes__theirs(client, observer):
    for arguments, match in (
        ({"ndim": -1}, "dimensions"),
        ({"ndim": -(1 << 31)}, "dimensions"),
        ({"ndim": 2, "shape": None, "strides": None}, "shape"),
        ({"shape": (-4,), "strides": (1,)}, r"shape\[0\] is -4"),
        ({"shape": (0, -4), "strides": (1, 1)}, r"shape\[1\] is -4"),
        ({"shape": (1 << 40, 1 << 40), "strides": (1, 1)}, "multiply"),
        ({"shape": (1 << 62,), "strides": (1,)}, "bytes"),
        ({"shape": (3, 3), "strides": (1 << 62, 1)}, "strides"),
        ({"shape": (1 << 58,), "strides": (1,), "dtype": (0, 8, 1)}, "element 0"),
    ):
        for make in both(**arguments):
            refused(client, observer, make, match)


def test_11_too_many_dimensions__ours(client):
    assert max(len(e.shape) for e in exports(client)) == 64
    with pytest.raises(ValueError, match="64"):
        client.create("mistakes/shape", (1,) * 65, "float32")


@alone
def test_11_too_many_dimensions__theirs(client, observer):
    for ndim in (32, 33, 64):
        for make in both(shape=(1,) * ndim):
            taken(client, observer, make, PAYLOAD[:4], (1,) * ndim, "int32")
    for ndim in (65, 1 << 20, (1 << 31) - 1):
        for make in both(shape=(1,) * 65, ndim=ndim):
            refused(client, observer, make, "ndim")


def test_12_bool_lanes_bits__ours(client):
    for e in exports(client):
        if e.source.dtype == "bool":
            dtype = e.managed.tensor.dtype
            assert (dtype.code, dtype.bits, dtype.lanes) == (6, 8, 1), e
    assert {e.source.dtype == "bool" for e in exports(client)} == {True, False}


def test_12_bool_lanes_bits__theirs(client, observer):
    for dtype in ((6, 1, 1), (6, 32, 1), (0, 32, 0), (0, 0, 1), (6, 8, 0), (2, 24, 1), (200, 8, 1), (255, 255, 65535)):
        for make in both(dtype=dtype):
            refused(client, observer, make, r"dtype is \S+ {code")
    for dtype, expected, name in (
        ((1, 8, 1), PAYLOAD[:4], "uint8"),  # a bool called uint8 is one
        ((2, 32, 3), PAYLOAD[:48], "float32x3"),
        ((1, 1, 1), PAYLOAD[:1], "uint1"),  # as MXNet calls its bool: 4 bits
    ):
        mask = 0x0F if dtype == (1, 1, 1) else 0xFF
        for make in both(dtype=dtype):
            taken(client, observer, make, bytes(byte & mask for byte in expected), (4,), name)


def test_13_less_than_a_byte__ours(client):
    expected = {"float4": (17, 4, 1, 0), "float4 in pairs": (17, 4, 2, 0), "padded": (0, 4, 1, abi.PADDED)}
    for e in exports(client):
        if e.kind in expected:
            dtype = e.managed.tensor.dtype
            padded = expected[e.kind][3] if e.flags is None else e.flags & abi.PADDED
            assert (dtype.code, dtype.bits, dtype.lanes, padded) == expected[e.kind], e


def test_13_less_than_a_byte__theirs(client, observer):
    packed = bytes((0x21, 0xF3, 0x05)) + bytes(61)
    for arguments, expected, name in (
        ({"dtype": (17, 4, 1)}, b"\x21\x03", "float4_e2m1fn"),  # an odd count, so the last half byte is unused
        ({"dtype": (17, 4, 2)}, b"\x21\xf3\x05", "float4_e2m1fnx2"),
        ({"dtype": (17, 4, 1), "strides": (2,)}, b"\x31\x05", "float4_e2m1fn"),
        ({"dtype": (1, 2, 1)}, b"\x21", "uint2"),
    ):
        for make in both(payload=packed, shape=(3,), **arguments):
            taken(client, observer, make, expected, (3,), name)
    padded = functools.partial(abi.Producer, packed, shape=(3,), dtype=(17, 4, 1), flags=abi.PADDED)
    taken(client, observer, padded, b"\x21\xf3\x05", (3,), "float4_e2m1fn")


def test_14_another_kinds_name__ours(client):
    for e in exports(client):
        if not e.legacy:
            assert e.managed.major == 1
        if not isinstance(e.keep, Exchanged):
            assert abi.name_of(e.keep) == ("dltensor" if e.legacy else "dltensor_versioned"), e
            assert e.managed.tensor.ndim == len(e.source.shape)  # in the struct of that name


@alone
def test_14_another_kinds_name__theirs(client, observer):
    """The deleter is not where that name says, so we call none. The capsule's owner has to."""
    refused(client, observer, lambda: abi.Producer(name="dltensor"), "holds a struct with a version", deleted=0)
    refused(client, observer, lambda: abi.Producer(name="dltensor", minor=3), "with a version", deleted=0)
    legacy = functools.partial(abi.Producer, legacy=True, name="dltensor_versioned")
    refused(client, observer, legacy, "holds a struct without a version", deleted=0)
    for name in ("used_dltensor", "used_dltensor_versioned", "dltensor_", "DLTENSOR", "x"):
        for legacy in (False, True):
            make = functools.partial(abi.Producer, legacy=legacy, name=name)
            refused(client, observer, make, "no unused DLPack capsule", deleted=0)


@pytest.mark.parametrize("version", [None, (0, 0), (0, 8)])
def test_15_versioned_capsule_unsolicited__ours(client, version):
    client.put("mistakes/asked", PAYLOAD)
    draft = client.create("mistakes/draft", 3, "int8")
    for source in (client.get("mistakes/asked", mode="c"), draft):
        for asked in ({"max_version": version}, {"max_version": version, "copy": True}):
            assert abi.name_of(source.__dlpack__(**asked)) == "dltensor"
    assert abi.name_of(draft.__dlpack__()) == "dltensor"


def test_15_versioned_capsule_unsolicited__theirs(client, observer):
    class NoArguments(abi.Producer):
        def __dlpack__(self):
            return super().__dlpack__()

    taken(client, observer, NoArguments, PAYLOAD[:16], (4,), "int32")


@pytest.mark.parametrize("version", [(1, 0), (1, 3), (1, 99), (2, 0)])
def test_16_legacy_capsule_in_spite_of_the_version__ours(client, version):
    client.put("mistakes/asked", PAYLOAD)
    for source in (client.get("mistakes/asked"), client.get("mistakes/asked", mode="c")):
        for asked in ({"max_version": version}, {"max_version": version, "copy": True}):
            capsule = source.__dlpack__(**asked)
            assert abi.name_of(capsule) == "dltensor_versioned" and abi.versioned_of(capsule).major == 1


def test_16_legacy_capsule_in_spite_of_the_version__theirs(client, observer):
    class Deaf(abi.Producer):
        def __dlpack__(self, **_):
            return super().__dlpack__()

    taken(client, observer, lambda: Deaf(legacy=True), PAYLOAD[:16], (4,), "int32")


def test_17_destructor_that_leaks__ours(client, observer):
    def unused():
        for e in exports(client):
            assert e.managed.tensor.ndim >= 0
        client.delete("mistakes/kind")

    unused()  # once before counting: descriptors for copy-on-write mappings are kept for later
    with nothing_stays_but_bytes(client, observer):
        unused()


def test_17_destructor_that_leaks__theirs(client, observer):
    for legacy in (False, True):  # they are consumed: we delete
        make = functools.partial(with_destructor, lambda *_: None, legacy=legacy)
        taken(client, observer, make, PAYLOAD[:16], (4,), "int32")
        refused(client, observer, functools.partial(make, ndim=-1), "dimensions")


def test_18_destructor_after_use__ours(client, observer):
    client.put("mistakes/used", PAYLOAD)
    before = left(observer).leases
    for mode, asked in (
        ("r", NUMPY),
        ("r", VERSIONED),
        ("c", {}),
        ("c", VERSIONED),
        ("r", {"copy": True, **VERSIONED}),
    ):
        tensor = client.get("mistakes/used", mode=mode)
        capsule = tensor.__dlpack__(**asked)
        managed = abi.consume(capsule)
        tensor.release()
        del capsule
        gc.collect()
        assert abi.bytes_of(managed.tensor, 64) == PAYLOAD
        assert left(observer).leases == before + (not asked.get("copy"))
        managed.deleter(ctypes.byref(managed))
        assert left(observer).leases == before


@alone
def test_18_destructor_after_use__theirs(client, observer):
    """Its destructor would free what we are reading, and free a second time what we gave back."""

    def free(producer, _):
        producer.deleted += 1
        ctypes.memset(producer.managed.tensor.data, 0xEE, 64)

    for legacy in (False, True):
        make = functools.partial(with_destructor, free, legacy=legacy)
        taken(client, observer, make, PAYLOAD[:16], (4,), "int32")
        refused(client, observer, functools.partial(make, ndim=-1), "dimensions")


def test_19_destructor_and_exceptions__ours(client):
    client.put("mistakes/raise", PAYLOAD)

    def fails():
        capsules = [client.get("mistakes/raise").__dlpack__(**asked) for asked in (NUMPY, VERSIONED)]
        capsules.append(client.get("mistakes/raise", mode="c").__dlpack__())
        raise KeyError(len(capsules))

    with pytest.raises(KeyError, match="3"):
        fails()


@alone
def test_19_destructor_and_exceptions__theirs(client, observer):
    """A capsule that we refuse ends while our exception is on its way."""
    api = ctypes.pythonapi
    api.PyErr_SetString.argtypes = [ctypes.py_object, ctypes.c_char_p]

    ended = []

    def clears(producer, _):
        ended.append(producer)
        api.PyErr_Clear()

    def raises(producer, _):
        ended.append(producer)
        api.PyErr_SetString(KeyError, b"from a destructor")

    for destructor in (clears, raises):
        for arguments, match in (({"name": "x"}, "unused"), ({"name": "dltensor"}, "with a version")):
            for call in (client.put, client.publish):
                once = with_destructor(destructor, **arguments)
                with nothing_stays(client, observer), pytest.raises(BufferError, match=match):
                    call("mistakes/refused", once)
                assert ended.pop() is once.producer and not ended

    class Raising(abi.Producer):
        def _delete(self, _):
            super()._delete(_)
            raise KeyError("from a deleter")

    sys.unraisablehook = lambda _: None
    refused(client, observer, lambda: Raising(ndim=-1), "dimensions")
    taken(client, observer, Raising, PAYLOAD[:16], (4,), "int32")


@alone
def test_20_deleter_anywhere__ours(client, observer):
    """The deleter runs on a thread without the GIL while this one holds it, and when the interpreter is gone."""
    client.put("mistakes/deleter", PAYLOAD * 100)
    before = left(observer).leases
    for asked in (NUMPY, VERSIONED, {"copy": True, **VERSIONED}):
        many = [abi.consume(client.get("mistakes/deleter").__dlpack__(**asked)) for _ in range(64)]
        threads = [
            threading.Thread(target=lambda part: [m.deleter(ctypes.byref(m)) for m in part], args=(many[n::4],))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert left(observer).leases == before

        held = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # with the GIL, which the deleter must not want
        one = abi.consume(client.get("mistakes/deleter").__dlpack__(**asked))
        held(ctypes.cast(one.deleter, ctypes.c_void_p).value)(ctypes.addressof(one))
        assert left(observer).leases == before

    libc = ctypes.CDLL(None)
    libc.__cxa_atexit.argtypes = [ctypes.c_void_p] * 3
    for asked in (NUMPY, VERSIONED, {"copy": True, **VERSIONED}):
        late = abi.consume(client.get("mistakes/deleter").__dlpack__(**asked))
        deleter = ctypes.cast(late.deleter, ctypes.c_void_p)
        assert libc.__cxa_atexit(deleter, ctypes.addressof(late), None) == 0  # after Py_FinalizeEx()


@alone
def test_20_deleter_anywhere__theirs(client, observer):
    for make in both(deleter=False):
        for call in (client.put, client.publish):
            call("mistakes/taken", make())
            assert plain(client.get("mistakes/taken")) == PAYLOAD[:16]

    class NeedsTheGIL(abi.Producer):
        """A deleter like one in C that touches Python objects and does not take the GIL."""

        def __init__(self, **arguments):
            super().__init__(**arguments)
            kind = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
            self.callback = kind(self._delete)
            self.managed.deleter = ctypes.cast(self.callback, type(self.managed.deleter))

    for legacy in (False, True):
        taken(client, observer, functools.partial(NeedsTheGIL, legacy=legacy), PAYLOAD[:16], (4,), "int32")
        refused(client, observer, functools.partial(NeedsTheGIL, legacy=legacy, ndim=-1), "dimensions")


def test_21_shape_and_strides_shared__ours(client):
    client.put("mistakes/shape", PAYLOAD)
    tensor = client.get("mistakes/shape", mode="c")
    capsules = [tensor.__dlpack__(**asked) for asked in (VERSIONED, VERSIONED, NUMPY)]
    one, two, three = (abi.versioned_of(capsule) for capsule in capsules)
    assert len({ctypes.addressof(m.tensor.shape.contents) for m in (one, two, three)}) == 3
    one.tensor.shape[0] = one.tensor.strides[0] = 99
    del capsules[0]
    tensor.release()
    assert two.tensor.shape[0] == three.tensor.shape[0] == 64 and two.tensor.strides[0] == 1


class Scribbling(abi.Producer):
    """A producer whose deleter overwrites everything."""

    def _delete(self, _):
        super()._delete(_)
        ctypes.memset(self.shape, 0xEE, ctypes.sizeof(self.shape))
        ctypes.memset(self.strides, 0xEE, ctypes.sizeof(self.strides))
        ctypes.memset(self.payload, 0xEE, ctypes.sizeof(self.payload))


def test_21_shape_and_strides_shared__theirs(client, observer):
    for legacy in (False, True):
        make = functools.partial(Scribbling, legacy=legacy, shape=(2, 2), strides=(1, 2))
        taken(client, observer, make, elements(0, 8, 4, 12), (2, 2), "int32")


def test_22_memory_tied_to_the_managed_tensor__ours(client, observer):
    """mpi4py 3 calls the deleter at once and continues to read."""
    client.put("mistakes/tied", PAYLOAD)
    before = left(observer).leases
    tensor = client.get("mistakes/tied", mode="c")
    managed = abi.consume(tensor.__dlpack__())
    address = managed.tensor.data
    managed.deleter(ctypes.byref(managed))
    client.put("mistakes/tied", bytes(64))  # nor may the daemon use it again
    assert ctypes.string_at(address, 64) == PAYLOAD and left(observer).leases == before + 1
    draft = client.create("mistakes/draft", 64, "uint8")
    managed = abi.consume(draft.__dlpack__())
    address = managed.tensor.data
    managed.deleter(ctypes.byref(managed))
    ctypes.memmove(address, PAYLOAD, 64)
    draft.commit()
    assert plain(client.get("mistakes/draft")) == PAYLOAD


def test_22_memory_tied_to_the_managed_tensor__theirs(client, observer):
    for legacy in (False, True):
        taken(client, observer, functools.partial(Scribbling, legacy=legacy), PAYLOAD[:16], (4,), "int32")


@alone
def test_23_read_only_unsaid__ours(client, observer):
    """A consumer that is not told of a read-only tensor can write, and nobody else sees that."""
    unsaid = 0
    for e in exports(client):
        said = e.flags is not None and e.flags & abi.READ_ONLY
        if e.source.nbytes and not said:
            ctypes.memset(e.managed.tensor.data, 0xFF, int(e.source.nbytes))
            unsaid += 1
        if "draft" not in e.way:
            assert set(plain(client.get("mistakes/kind"))) <= {0}, e
        assert bool(said) == (e.way == "r, NumPy's request"), e
    assert unsaid > 50


@alone
def test_23_read_only_unsaid__theirs(client, observer):
    with tempfile.TemporaryFile() as file:
        file.write(PAYLOAD)
        file.flush()
        memory = mmap.mmap(file.fileno(), 64, prot=mmap.PROT_READ)
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        address = libc.mmap(None, 64, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
        for flags in (0, abi.READ_ONLY):
            make = functools.partial(abi.Producer, data=address, flags=flags)
            taken(client, observer, make, PAYLOAD[:16], (4,), "int32")
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        assert libc.munmap(address, 64) == 0
        memory.close()


@pytest.mark.parametrize("asked", [{}, VERSIONED, NUMPY])
@pytest.mark.parametrize("mode", ["r", "c", "draft"])
def test_24_copy_true_ignored__ours(client, mode, asked):
    client.put("mistakes/copy", PAYLOAD)
    source = client.create("mistakes/draft", 64, "uint8") if mode == "draft" else client.get("mistakes/copy", mode=mode)
    managed = abi.consume(source.__dlpack__(**{**asked, "copy": True}))
    content = abi.bytes_of(managed.tensor, 64)
    assert managed.tensor.data != source._address
    ctypes.memset(managed.tensor.data, 0xFF, 64)
    again = source.__dlpack__(**{**VERSIONED, "copy": True})
    assert abi.bytes_of(abi.versioned_of(again).tensor, 64) == content
    managed.deleter(ctypes.byref(managed))


def test_25_is_copied_unsaid__ours(client):
    for e in exports(client):
        assert e.flags is None or bool(e.flags & abi.IS_COPIED) == e.way.endswith("a copy"), e


def test_25_is_copied_unsaid__theirs(client, observer):
    taken(client, observer, lambda: abi.Producer(flags=abi.IS_COPIED), PAYLOAD[:16], (4,), "int32")
    unknown = 0xFFFFFFFF_FFFFFFF8  # of a later DLPack
    taken(client, observer, lambda: abi.Producer(flags=unknown, minor=99), PAYLOAD[:16], (4,), "int32")


def test_26_another_device_than_said__ours(client):
    for e in exports(client):
        assert e.source.__dlpack_device__() == (e.managed.tensor.device_type, e.managed.tensor.device_id) == (1, 0), e


def test_26_another_device_than_said__theirs(client, observer):
    for device in ((2, 0), (10, 0), (13, 0), (0, 0), (-1, 0), (99, 0)):
        for make in both(device=device, says_device=(1, 0)):
            refused(client, observer, make, "device|CUDA|GPU")
        # If the device is none of ours, nothing is asked for and nothing is consumed.
        for make in both(device=(1, 0), says_device=device):
            refused(client, observer, make, "device|CUDA|GPU", deleted=device[0] in (2, 13))

    class Silent(abi.Producer):
        __dlpack_device__ = property()

    refused(client, observer, lambda: Silent(device=(2, 0)), "device|CUDA|GPU")
    taken(client, observer, Silent, PAYLOAD[:16], (4,), "int32")


def test_27_number_of_the_device__ours(client):
    for e in exports(client):
        assert e.managed.tensor.device_id == 0, e


def test_27_number_of_the_device__theirs(client, observer):
    for number in (0, 1, 7, -1):
        for make in both(device=(2, number)):
            refused(client, observer, make, "device|CUDA|GPU")
        for make in both(device=(1, number)):  # there is one CPU
            taken(client, observer, make, PAYLOAD[:16], (4,), "int32")


@pytest.mark.parametrize("stream", [0, 1, 2, -1, 140000000000000, "0", ()])
def test_28_streams__ours(client, stream):
    client.put("mistakes/stream", PAYLOAD)
    for source in (client.get("mistakes/stream"), client.get("mistakes/stream", mode="c")):
        for asked in ({}, VERSIONED, NUMPY):
            with pytest.raises(BufferError, match="stream"):
                source.__dlpack__(**{**asked, "stream": stream})
    assert abi.name_of(source.__dlpack__(stream=None)) == "dltensor"


class Odd:
    """An argument that surprises wherever it can."""

    def __bool__(self):
        raise TypeError("no truth")

    __index__ = __len__ = __iter__ = __eq__ = __bool__


def test_29_type_error_inside__ours(client):
    client.put("mistakes/odd", PAYLOAD)
    draft = client.create("mistakes/draft", 3, "int8")
    for source in (client.get("mistakes/odd"), client.get("mistakes/odd", mode="c"), draft):
        for argument in ("max_version", "dl_device", "copy", "stream"):
            for value in (Odd(), (Odd(), Odd()), (1 << 80, 0), "text", (), (1,)):
                asked = {"max_version": (1, 0), argument: value}
                try:
                    source.__dlpack__(**asked)  # some of them have a truth
                except BufferError:
                    pass
                else:
                    assert argument == "copy"


def test_29_type_error_inside__theirs(client, observer):
    class Clumsy(abi.Producer):
        def __dlpack__(self, **asked):
            self.calls.append(asked)
            raise TypeError("inside")

    for call in (client.put, client.publish):
        producer = Clumsy()
        with nothing_stays(client, observer), pytest.raises(TypeError, match="inside"):
            call("mistakes/refused", producer)
        assert producer.calls == [{"max_version": (1, 3)}, {}]  # asked again, as a producer that knows no versions


def test_30_big_endian_and_long_double__ours(client):
    for dtype in (">i4", ">f8", "longdouble", "float80", "float128", "complex256"):
        with pytest.raises((ValueError, TypeError, BufferError)):
            client.create("mistakes/odd", 3, dtype)
    for e in exports(client):
        assert e.managed.tensor.dtype.bits <= 64, e


def test_30_big_endian_and_long_double__theirs(client, observer):
    for buffer in (
        (ctypes.c_int32.__ctype_be__ * 3)(),
        (ctypes.c_longdouble * 3)(),
        (ctypes.c_double.__ctype_be__ * 3)(),
    ):
        for call in (client.put, client.publish):
            with nothing_stays(client, observer), pytest.raises(BufferError, match="no DLPack type"):
                call("mistakes/refused", buffer)
    for dtype in ((2, 80, 1), (2, 96, 1), (2, 128, 1), (5, 160, 1)):
        for make in both(dtype=dtype):
            refused(client, observer, make, r"dtype is \S+ {code")


@alone
def test_31_forks_and_deaths__ours(client, observer):
    """Between import and release come a fork, the producer's death, and the ends of the name and the daemon."""
    child = os.fork()
    if child == 0:
        tensorlease.connect(autostart=False).put("mistakes/dead", PAYLOAD)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    before = left(observer).leases
    held = [abi.consume(client.get("mistakes/dead").__dlpack__(**asked)) for asked in (NUMPY, VERSIONED)]
    client.delete("mistakes/dead")
    child = os.fork()
    if child == 0:
        good = all(abi.bytes_of(m.tensor, 64) == PAYLOAD for m in held)
        for m in held:
            m.deleter(ctypes.byref(m))
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(abi.bytes_of(m.tensor, 64) == PAYLOAD for m in held) and left(observer).leases == before + 2
    for m in held:
        m.deleter(ctypes.byref(m))
    assert left(observer).leases == before

    with tempfile.TemporaryDirectory(prefix="tl-") as folder:  # a daemon of its own
        package = Path(tensorlease.__file__).parent
        start = [package / "bin" / "tensorleased", "--foreground", "--keeper", "no", "--socket", f"{folder}/socket"]
        for how in (signal.SIGKILL, signal.SIGTERM):  # the second cleans up after the first
            process = subprocess.Popen(start, stderr=subprocess.DEVNULL)
            own = connect_when_there(f"{folder}/socket", process)
            own.put("mistakes/daemon", PAYLOAD)
            m = abi.consume(own.get("mistakes/daemon").__dlpack__(**NUMPY))
            process.send_signal(how)
            process.wait(limit(60))
            assert abi.bytes_of(m.tensor, 64) == PAYLOAD
            own.close()
            m.deleter(ctypes.byref(m))


def connect_when_there(address, process):
    while process.poll() is None:
        with contextlib.suppress(tensorlease.DisconnectedError, tensorlease.NotFoundError, FileNotFoundError):
            return tensorlease.connect(address, autostart=False)
    raise AssertionError("the daemon did not start")


@alone
def test_31_forks_and_deaths__theirs(client, observer):
    """A producer's file may be gone, and a child may put what its parent has made."""
    with tempfile.TemporaryFile() as file:
        file.write(PAYLOAD)
        file.flush()
        memory = mmap.mmap(file.fileno(), 64)
    client.put("mistakes/file", memory)
    assert plain(client.get("mistakes/file")) == PAYLOAD
    producer = abi.Producer()
    child = os.fork()
    if child == 0:
        client.put("mistakes/child", producer)
        os._exit(0 if producer.deleted == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0 and producer.deleted == 0
    assert plain(client.get("mistakes/child")) == PAYLOAD[:16]
    memory.close()


def test_what_is_asked_of_a_producer(client):
    """It is asked for nothing that it could get wrong; see NOTHING_TO_HAND_OVER."""
    for call in (client.put, client.publish):
        producer = abi.Producer()
        call("mistakes/asked", producer)
        assert producer.calls == [{"max_version": (1, 3)}]


def test_all_of_them_are_here():
    def numbers(side):
        found = (re.fullmatch(rf"test_(\d\d)_\w+__{side}", name) for name in globals())
        return {int(match[1]) for match in found if match}

    assert numbers("ours") == set(range(1, COUNT + 1))
    assert numbers("theirs") | set(NOTHING_TO_HAND_OVER) == set(range(1, COUNT + 1))
    assert not numbers("theirs") & set(NOTHING_TO_HAND_OVER)


if __name__ == "__main__":
    with tensorlease.connect(autostart=False) as client_, tensorlease.connect(autostart=False) as observer_:
        BODIES[sys.argv[1]](client_, observer_)
