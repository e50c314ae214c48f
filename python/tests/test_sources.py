# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries, right and wrong, that put() and publish() take or refuse."""

import array
import ctypes
import decimal
import gc
import itertools
import os

import dlpack_abi as abi
import numpy as np
import pytest
from conftest import from_dlpack, leases_of

import tensorlease


def value(client, name="sources/x"):
    return client.get(name).numpy()


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a[:, ::2],
        lambda a: a[1:, ::-2, 1:2],
        lambda a: np.broadcast_to(a[0, 0, 0], (3, 4)),
        lambda a: np.broadcast_to(a, (2, *a.shape)),
        lambda a: a[2, 3, 4],
        lambda a: a[:0],
        lambda a: np.asfortranarray(a),
        lambda a: a.transpose(2, 0, 1)[::-1, :, ::3],
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "complex128"])
def test_any_strides(client, view, dtype):
    source = view(np.arange(4 * 6 * 8).reshape(4, 6, 8).astype(dtype))
    client.put("sources/x", source)
    assert (value(client) == source).all() and value(client).shape == source.shape
    client.put("sources/x", memoryview(np.asarray(source)))
    assert (value(client) == source).all()


def test_things_with_buffers(client):
    for source, dtype, shape in (
        (b"abc", "uint8", (3,)),
        (bytearray(b"abcd"), "uint8", (4,)),
        (memoryview(b"abcd").cast("H"), "uint16", (2,)),
        (array.array("d", [1, 2]), "float64", (2,)),
        (array.array("L", [1, 2]), "uint64", (2,)),
        (array.array("q", [1, -2]), "int64", (2,)),
        ((ctypes.c_float * 3)(1, 2, 3), "float32", (3,)),
        ((ctypes.c_int16 * 3 * 2)(), "int16", (2, 3)),
        (memoryview(bytes(12)).cast("i", (1, 3)), "int32", (1, 3)),
        (memoryview(b"\1\0").cast("?"), "bool", (2,)),
        (memoryview(b"abc").cast("c"), "uint8", (3,)),
    ):
        client.put("sources/x", source)
        got = client.get("sources/x")
        assert (got.dtype, got.shape) == (dtype, shape) and bytes(got) == bytes(source)


def test_read_only_and_immutable_arrays(client):
    frozen = np.arange(5)
    frozen.flags.writeable = False
    client.put("sources/x", frozen)
    assert (value(client) == frozen).all()
    client.put("sources/x", np.float64(3))
    assert value(client).shape == () and value(client) == 3


@pytest.mark.parametrize(
    "source",
    [
        np.arange(3, dtype=">i4"),
        np.arange(3).astype("M8[s]"),
        np.datetime64(0, "s"),
        np.timedelta64(1, "D"),
        np.zeros(3, "longdouble"),
        np.array(["a", "bc"]),
        np.zeros(2, [("a", "i4"), ("b", "f4")]),
        np.array([object()]),
    ],
)
def test_elements_without_a_dlpack_type_are_buffer_errors(client, source):  # 30
    with pytest.raises((BufferError, ValueError), match="(?i)type|big|little|format"):
        client.put("sources/none", source)
    assert "sources/none" not in client


def test_a_type_without_a_dlpack_width_is_called_by_its_name(client):
    if np.longdouble(0).nbytes == 8:
        pytest.skip("a long double is a double here")
    for dtype, words in (
        ("longdouble", "float128.*astype\\('float64'\\)"),
        ("clongdouble", "complex256.*astype\\('complex128'\\)"),
        ("V4", "void32.*astype"),
    ):
        with pytest.raises(BufferError, match=words):
            client.put("sources/none", np.zeros(3, dtype))


def test_the_fields_of_a_structured_array_are_copied(client):
    array = np.array([(1, 0.5), (2, 1.5), (3, -1)], [("a", "u1"), ("b", "f4")])
    client.put("sources/field", array["b"])
    client.put_many({"sources/fields/" + name: array[name] for name in "ab"})
    for name in ("sources/field", "sources/fields/b"):
        assert client.get(name).dtype == "float32" and client.get(name).tolist() == [0.5, 1.5, -1]
    assert client.get("sources/fields/a").tolist() == [1, 2, 3]
    assert client.publish("sources/field", array["b"][::-1]).copied
    assert client.get("sources/field").tolist() == [-1, 1.5, 0.5]
    with pytest.raises(tensorlease.UnsupportedError):
        client.publish("sources/field", array["b"], no_copy=True)


class Interface:
    def __init__(self, array, **changes):
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, **changes}


def test_things_with_array_interface(client):
    source = np.arange(12, dtype="int16").reshape(3, 4)
    for array_ in (source, source.T, source[::-1, ::2], np.zeros((0, 3)), np.array(3.5)):
        client.put("sources/x", Interface(array_))
        assert (value(client) == array_).all() and value(client).shape == array_.shape
    client.put("sources/x", Interface(source, data=source.tobytes(), strides=None))
    assert (value(client) == source).all()


class Bytes:
    def __init__(self, **interface):
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (2,), "data": b"\0\0\7\10", **interface}


def test_bytes_of_an_array_interface_begin_at_its_offset(client):
    client.put("sources/x", Bytes(offset=2))
    assert value(client).tolist() == [7, 8]
    client.put("sources/x", Bytes(offset=3, strides=(-1,)))
    assert value(client).tolist() == [8, 7]
    client.put("sources/x", Bytes(offset=4, shape=(0,)))
    for wrong in (3, -1):
        with pytest.raises(BufferError, match=rf"4 bytes .*shape \(2,\) at offset {wrong}$"):
            client.put("sources/x", Bytes(offset=wrong))


def test_big_endian_elements_are_told_how_to_turn(client):
    source = np.arange(3, dtype=">i4")
    with pytest.raises(BufferError, match=r"big-endian.*array\.astype\('<i4'\)$"):
        client.put("sources/turned", source)
    client.put("sources/turned", source.astype("<i4"))
    assert (client.get("sources/turned").numpy() == source).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"typestr": "<M8[s]"},
        {"typestr": ">i2"},
        {"typestr": "|V2"},
        {"typestr": 7},
        {"typestr": "<i3"},
        {"shape": (-1, 4)},
        {"shape": 7},
        {"shape": (1,) * 65, "strides": None},
        {"strides": (3, 2)},
        {"strides": (8,)},
        {"data": None},
        {"data": ("0", True)},
        {"data": (0, False)},
        {"mask": object()},
        {"shape": (1 << 62, 4)},
        {"shape": (1 << 63, 4)},
        {"typestr": "<f1"},
    ],
)
def test_a_wrong_array_interface_is_refused(client, changes):
    with pytest.raises((BufferError, ValueError, OverflowError)):
        client.put("sources/x", Interface(np.arange(12, dtype="int16").reshape(3, 4), **changes))


# ---- DLPack producers ----


@pytest.mark.parametrize("legacy", [False, True])
def test_dlpack_producers_are_read_and_given_back_once(client, legacy):
    for arguments, expected in (
        ({}, np.arange(16, dtype="uint8").view("int32")),
        ({"byte_offset": 4}, np.arange(4, 20, dtype="uint8").view("int32")),
        ({"shape": (2, 3), "strides": (1, 2)}, np.arange(24, dtype="uint8").view("int32").reshape(3, 2).T),
        ({"shape": (2, 3), "strides": None}, np.arange(24, dtype="uint8").view("int32").reshape(2, 3)),
        ({"shape": (3,), "strides": (0,)}, np.full(3, 0x03020100, "int32")),
        ({"shape": (3,), "strides": (-1,), "byte_offset": 8}, np.arange(12, dtype="uint8").view("int32")[::-1]),
        ({"shape": ()}, np.array(0x03020100, "int32")),
        ({"shape": None, "ndim": 0, "strides": None}, np.array(0x03020100, "int32")),
        ({"shape": (0, 3), "data": None}, np.zeros((0, 3), "int32")),
        ({"shape": (5,), "dtype": (0, 8, 1), "byte_offset": 3}, np.arange(3, 8, dtype="int8")),
        ({"dtype": (1, 16, 1), "byte_offset": 1}, np.arange(1, 9, dtype="uint8").view("uint16")),  # misaligned
    ):
        producer = abi.Producer(legacy=legacy, **arguments)
        client.put("sources/x", producer)
        assert (value(client) == expected).all() and value(client).shape == expected.shape
        assert producer.deleted == 1
        assert abi.name_of(producer.capsule) == ("used_dltensor" if legacy else "used_dltensor_versioned")
        producer = abi.Producer(legacy=legacy, **arguments)
        assert client.publish("sources/x", producer) == (client.stat("sources/x").version, True)
        assert (value(client) == expected).all() and producer.deleted == 1


def test_producers_are_asked_for_the_version_first(client):
    producer = abi.Producer()
    client.put("sources/x", producer)
    assert producer.calls == [{"max_version": (1, 3)}]
    producer = abi.Producer(legacy=True)
    client.put("sources/x", producer)
    assert producer.calls == [{"max_version": (1, 3)}, {}]


def test_a_deleter_may_be_missing(client):
    client.put("sources/x", abi.Producer(deleter=False))
    client.put("sources/x", abi.Producer(deleter=False, legacy=True))
    assert value(client).shape == (4,)


def test_read_only_producers_are_read(client):
    producer = abi.Producer(flags=abi.READ_ONLY | abi.IS_COPIED)
    client.put("sources/x", producer)
    assert value(client).shape == (4,) and producer.deleted == 1


def test_types_without_numpy_come_through(client):
    for dtype, flags, expected in (
        ((4, 16, 1), 0, ("bfloat16", 8)),
        ((10, 8, 1), 0, ("float8_e4m3fn", 4)),
        ((17, 4, 2), 0, ("float4_e2m1fnx2", 4)),
        ((17, 4, 1), 0, ("float4_e2m1fn", 2)),
        ((0, 4, 1), abi.PADDED, ("int4", 4)),
        ((2, 32, 4), 0, ("float32x4", 64)),
        ((15, 6, 1), 0, ("float6_e2m3fn", 3)),
    ):
        producer = abi.Producer(dtype=dtype, flags=flags)
        client.put("sources/x", producer)
        got = client.get("sources/x")
        assert (str(got._dtype_word), got.nbytes) == expected and producer.deleted == 1


HOSTILE = {
    "another major version": {"major": 2},
    "no version": {"major": 0},
    "negative dimensions": {"ndim": -1},
    "too many dimensions": {"ndim": 65, "shape": (1,) * 65},
    "absurdly many dimensions": {"ndim": 0x7FFFFFFF},
    "no shape": {"shape": None, "ndim": 2, "strides": None},
    "a negative size": {"shape": (-1,), "strides": (1,)},
    "an overflowing shape": {"shape": (1 << 40, 1 << 40), "strides": (1 << 40, 1)},
    "an overflowing stride": {"shape": (3, 3), "strides": (1 << 62, 1)},
    "an overflowing byte_offset": {"byte_offset": (1 << 64) - 4},
    "NULL data": {"data": None},
    "no bits": {"dtype": (0, 0, 1)},
    "no lanes": {"dtype": (0, 32, 0)},
    "bool of one bit": {"dtype": (6, 1, 1)},
    "an unknown code": {"dtype": (200, 8, 1)},
    "an odd width": {"dtype": (2, 24, 1)},
    "an opaque pointer type of 3 bits": {"dtype": (3, 3, 1)},
}


@pytest.mark.parametrize(
    ("wrong", "legacy"),
    [(wrong, legacy) for wrong in HOSTILE for legacy in (False, True) if not (legacy and "major" in HOSTILE[wrong])],
)
def test_hostile_producers_are_refused_and_given_back_once(client, wrong, legacy):  # 2, 4, 10 to 13
    for call in (client.put, client.publish):
        producer = abi.Producer(legacy=legacy, **HOSTILE[wrong])
        with pytest.raises((BufferError, tensorlease.Error)):
            call("sources/hostile", producer)
        # A struct without a version may be a legacy one, whose deleter lies elsewhere. It is not touched.
        assert producer.deleted == (wrong != "no version") and "sources/hostile" not in client


@pytest.mark.parametrize("legacy", [False, True])
def test_other_devices_are_refused(client, legacy):  # 26, 27
    for device in ((10, 0), (12, 0)):
        producer = abi.Producer(device=device, legacy=legacy)
        with pytest.raises(tensorlease.UnsupportedError, match="device"):
            client.put("sources/hostile", producer)
        assert producer.calls == [] and producer.deleted == 0
    managed = abi.Producer(device=(13, 0), legacy=legacy)  # bytes of the CPU
    with pytest.raises(BufferError, match="managed memory"):
        client.put("sources/hostile", managed)
    assert managed.deleted == 1
    for device in ((2, 0), (2, 7), (10, 0), (12, 0)):
        liar = abi.Producer(device=device, says_device=(1, 0), legacy=legacy)
        with pytest.raises((tensorlease.Error, BufferError)):
            client.put("sources/hostile", liar)
        assert liar.deleted == 1
    liar = abi.Producer(says_device=(2, 0))
    with pytest.raises(BufferError, match="different devices"):
        client.put("sources/hostile", liar)
    assert liar.deleted == 1
    assert "sources/hostile" not in client
    for wrong in (None, 7, ("cpu", 0), (), (1, 2, 3)):
        producer = abi.Producer(legacy=legacy)
        producer.says_device = wrong
        with pytest.raises(BufferError, match="__dlpack_device__"):
            client.put("sources/hostile", producer)


def test_what_is_no_capsule_is_refused(client):  # 14
    for wrong in (None, 7, "dltensor", np.ones(3)):
        with pytest.raises(BufferError, match="capsule"):
            client.put("sources/hostile", abi.Producer(returns=wrong) if wrong is not None else Returns(None))
    for name in ("used_dltensor", "used_dltensor_versioned", "other", ""):
        producer = abi.Producer(name=name or "x")
        with pytest.raises(BufferError, match="capsule"):
            client.put("sources/hostile", producer)
        assert producer.deleted == 0


class Returns:
    def __init__(self, value):
        self.value = value

    def __dlpack__(self, **_):
        return self.value


def test_a_capsule_that_was_used_is_refused(client):
    producer = abi.Producer()
    capsule = producer.__dlpack__()
    client.put("sources/x", Returns(capsule))
    with pytest.raises(BufferError, match="unused"):
        client.put("sources/x", Returns(capsule))
    assert producer.deleted == 1


def test_what_a_producer_raises_is_passed_on(client):
    for error in (RuntimeError("grad"), BufferError("no"), ValueError("v"), KeyboardInterrupt(), TypeError("t")):
        with pytest.raises(type(error)):
            client.put("sources/hostile", abi.Producer(raises=error))


def test_another_protocol_serves_where_dlpack_refuses(client):
    class Both(np.ndarray):
        def __dlpack__(self, **_):
            raise BufferError("not by DLPack")

    client.put("sources/x", np.arange(3).view(Both))
    assert (value(client) == np.arange(3)).all()


def test_a_refused_put_gives_everything_back(client):
    for call in (client.put, client.publish):
        for name in ("", "a//b"):
            producer = abi.Producer()
            with pytest.raises(ValueError):
                call(name, producer)
            assert producer.deleted == 1


def test_sources_are_not_kept(client):
    class Watched(np.ndarray):
        gone = 0

        def __del__(self):
            Watched.gone += 1

    for call in (client.put, client.publish):
        source = np.arange(5).view(Watched)
        call("sources/x", source)
        del source
        gc.collect()
    assert Watched.gone >= 2


def test_tensors_are_put_as_they_are(client):
    client.put("sources/a", np.arange(5, dtype="int32"))
    client.put("sources/x", client.get("sources/a"))
    cow = client.get("sources/a", mode="c")
    cow.numpy()[0] = 77
    client.put("sources/y", cow)
    assert value(client)[0] == 0 and value(client, "sources/y")[0] == 77
    assert client.publish("sources/z", cow).copied
    assert value(client, "sources/z")[0] == 77
    cow.release()
    with pytest.raises(ValueError, match="released"):
        client.put("sources/x", cow)


def test_a_second_name_costs_no_copy(client):
    client.put("sources/a", np.arange(5000))
    tensor = client.get("sources/a")
    for n, source in enumerate((tensor, tensor.numpy(), memoryview(tensor), from_dlpack(tensor))):
        assert client.publish(f"sources/link{n}", source, metadata=b"m").copied is False
        link = client.get(f"sources/link{n}")
        assert link._address == tensor._address and link.metadata == b"m"
    assert tensor.numpy()[7] == 7 and client.publish("sources/part", tensor.numpy()[5:]).copied
    assert client.publish("sources/other", np.arange(3)) == tensorlease.Published(1, True)


class Small:
    """An array of elements of less than a byte, each in a byte of its own, as ml_dtypes has them."""

    def __init__(self, bytes_, word, **more):
        self.bytes, self.dtype = bytes_, type("dtype", (), {"name": word, "names": None})
        self.__array_interface__ = {**bytes_.__array_interface__, "typestr": "<V1", **more}


@pytest.mark.parametrize("word", ["int1", "uint2", "int4", "float4_e2m1fn", "float6_e2m3fn"])
@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[::2], lambda a: a[::-1], lambda a: a[:0]])
def test_elements_of_less_than_a_byte_keep_a_byte_each(client, word, view):
    source = view(np.arange(40, dtype="uint8") % 2)
    for call in (client.put, client.publish, one_of(client.put_many), one_of(client.publish_many)):
        call("sources/small", Small(source, word))
        tensor = client.get("sources/small")
        assert tensor._dtype_word == word and tensor.shape == source.shape and tensor.itemsize == 1
        assert np.asarray(memoryview(bytes_of(tensor))).tolist() == source.tolist()


def one_of(call):
    return lambda name, source: call({name: source})


def bytes_of(tensor):
    return ctypes.string_at(tensor._address or 0, tensor.nbytes) if tensor.nbytes else b""


def test_arrays_of_ml_dtypes_come_back_as_they_were(client):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for word in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"):
        if not hasattr(ml_dtypes, word):
            continue
        source = (np.arange(24) % 2).astype(getattr(ml_dtypes, word)).reshape(4, 6)
        for view in (source, source[::2, ::-1], source.T):
            client.put("sources/small", view)
            assert client.get("sources/small").numpy().dtype == source.dtype
            assert (client.get("sources/small").numpy() == view).all()


@pytest.mark.parametrize("typestr", ["<f0", "|u0", "<i0", "<c0"])
def test_types_without_bits_are_refused(client, typestr):
    with pytest.raises(BufferError, match="not known"):
        client.put("sources/small", Small(np.zeros(4, "uint8"), "", typestr=typestr))


def test_bfloat16_of_ml_dtypes(client):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        source = np.arange(6).reshape(2, 3).astype(kind)
        client.put("sources/x", source)
        assert value(client).dtype == source.dtype and (value(client) == source).all()
        client.put("sources/x", source.T)
        assert (value(client) == source.T).all()


def test_pil_images(client):
    image = pytest.importorskip("PIL.Image").new("RGB", (4, 2), (1, 2, 3))
    client.put("sources/x", image)
    assert value(client).shape == (2, 4, 3) and value(client)[1, 3].tolist() == [1, 2, 3]


def test_leases_are_counted_for_nothing_put(client, observer):
    before = leases_of(observer, os.getpid())
    client.put("sources/x", np.arange(3))
    assert leases_of(observer, os.getpid()) == before


class Picture:
    """As PIL's pictures are: the property makes a copy."""

    reads = 0
    raises = None

    @property
    def __array_interface__(self):
        Picture.reads += 1
        if self.raises:
            raise self.raises
        return {"version": 3, "typestr": "|u1", "shape": (3,), "data": b"abc"}


def test_a_property_is_read_once_and_ctrl_c_in_it_is_kept(client):
    picture = Picture()
    client.put("sources/picture", picture)
    assert Picture.reads == 1 and bytes(client.get("sources/picture")) == b"abc"
    picture.raises = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        client.put("sources/picture", picture)
    picture.raises = AttributeError
    with pytest.raises(TypeError, match="neither"):
        client.put("sources/picture", picture)


ASKED = "__array_interface__ __dlpack__ __dlpack_device__ _sharedmask is_neg".split()


@pytest.mark.parametrize(
    ("whose", "asked"), [*itertools.product(["array", "type"], ASKED), ("array", "__cuda_array_interface__")]
)
def test_ctrl_c_in_an_attribute_that_is_not_there_is_kept(client, whose, asked):
    def interrupt(_, name):
        raise KeyboardInterrupt if name == asked else AttributeError

    class Type(type):
        if whose == "type":
            __getattr__ = interrupt

    class Proxy(metaclass=Type):
        if whose == "array":
            __getattr__ = interrupt

    with pytest.raises(KeyboardInterrupt):
        client.put("sources/proxy", Proxy())


class Interrupting:
    def is_neg(self):
        raise KeyboardInterrupt

    __index__ = __bool__ = is_neg


class Negated(np.ndarray):
    is_neg = Interrupting.is_neg


class Placed:
    def __dlpack__(self):
        raise AssertionError("it is asked first where it lies")

    def __dlpack_device__(self):
        return 1, Interrupting()


@pytest.mark.parametrize("array", [np.zeros(3).view(Negated), Placed()])
def test_ctrl_c_in_what_an_array_says_of_itself_is_kept(client, array):
    with pytest.raises(KeyboardInterrupt):
        client.put("sources/said", array)


@pytest.mark.parametrize("asked", [{"max_version": (Interrupting(), 0)}, {"copy": Interrupting()}])
def test_ctrl_c_in_what_a_consumer_asks_for_is_kept(client, asked):
    client.put("sources/asked", b"1")
    with pytest.raises(KeyboardInterrupt):
        client.get("sources/asked").__dlpack__(**asked)


class Framed:
    """As pandas' and polars' frames."""

    def to_numpy(self):
        return np.zeros(3)


class Eager:
    """As an array of a library without DLPack."""

    def numpy(self):
        return np.zeros(3)


class Module:
    def state_dict(self):
        return {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None is not an array: has the function"),
        ("text", r"a str is not an array: its encode\(\)"),
        ({"a": np.zeros(3)}, r"'dict' is not an array: put_many\(\) publishes each"),
        (Framed(), r"'test_sources.Framed' is not an array: give what its to_numpy\(\)"),
        (Eager(), r"'test_sources.Eager' is not an array: give what its numpy\(\)"),
        (Module(), r"'test_sources.Module' is not an array: put_many\(\) publishes the arrays of its state_dict\(\)"),
        (decimal.Decimal(1), "'decimal.Decimal' is not an array: it has neither __dlpack__"),
        (object(), "'object' is not an array: it has neither __dlpack__.*numpy.asarray"),
    ],
)
def test_what_is_no_array_is_told_from_others(client, value, text):
    for publish in (client.put, client.publish, lambda name, value: client.put_many({name: value})):
        with pytest.raises(TypeError, match=f"'sources/no': {text}"):
            publish("sources/no", value)
