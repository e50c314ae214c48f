# SPDX-License-Identifier: Apache-2.0
"""A wrong argument raises an exception that names the parameter, whatever its value."""

import asyncio
import collections.abc
import gc
import math
import sys
import types
import weakref

import numpy as np
import pytest

import tensorlease
from conftest import run_python

A = np.arange(6.0)


def aget(client, name, **asked):
    return asyncio.run(client.aget(name, **asked))


@pytest.mark.parametrize("wrong", [7, 1.5, ["x"], object()])
@pytest.mark.parametrize(
    ("parameter", "call"),
    [
        ("address", lambda c, x: tensorlease.connect(x)),
        ("timeout", lambda c, x: tensorlease.connect(timeout=[x])),
        ("autostart", lambda c, x: tensorlease.connect(autostart=x)),
        ("key", lambda c, x: tensorlease.cached("a/", client=c, key=lambda: x)(lambda: A)()),
        ("name", lambda c, x: c.put(x, A)),
        ("name", lambda c, x: c.create(x, 3, "f4")),
        ("name", lambda c, x: c.put_many({7: A})),
        ("prefix", lambda c, x: c.put_many({"a": A}, prefix=x)),
        ("metadata", lambda c, x: c.put("a", A, metadata=x)),
        ("threads", lambda c, x: c.put("a", A, threads=[x])),
        ("metadata", lambda c, x: c.put_many({"a": A}, metadata=x)),
        ("timeout", lambda c, x: c.create("a", 3, "f4", timeout=[x])),
        ("shape", lambda c, x: c.create("a", (3, [x]), "f4")),
        ("dtype", lambda c, x: c.create("a", 3, [x])),
        ("name", lambda c, x: c.get_many([x])),
        ("prefix", lambda c, x: c.get_many(["a"], prefix=x)),
        ("prefix", lambda c, x: c.get_many(prefix=x)),
        ("mode", lambda c, x: c.get_many(["a"], mode=x)),
        ("timeout", lambda c, x: aget(c, "there", timeout=[x])),
        ("newer_than", lambda c, x: aget(c, "there", newer_than=[x])),
        ("prefix", lambda c, x: c.load(x, "a.npy")),
        ("path", lambda c, x: c.load("a", x)),
        ("format", lambda c, x: c.load("a", "a.npy", format=x)),
        ("progress", lambda c, x: c.load("a", "a.npy", progress=[x])),
        ("prefix", lambda c, x: c.save(x, "a.npy")),
        ("path", lambda c, x: c.save("there", x)),
        ("format", lambda c, x: c.save("there", "a.npy", format=x)),
        ("prefix", lambda c, x: c.list(x)),
        ("name", lambda c, x: c.stat(x)),
        ("client_id", lambda c, x: c.holdings([x])),
    ],
)
def test_a_wrong_kind_is_told_by_the_parameters_name(client, parameter, call, wrong):
    client.put("there", A)
    with pytest.raises((TypeError, ValueError), match=rf"\b{parameter}\b"):
        call(client, wrong)


@pytest.mark.parametrize("names", [7, None, b"ab"])
def test_get_many_says_what_names_are(client, names):
    with pytest.raises(TypeError, match="names must be a str or an iterable of them"):
        client.get_many(names)


@pytest.mark.parametrize("shape", ["", "3", b"ab", bytearray(b"ab"), (2.0,), None])
def test_what_is_no_shape_makes_no_tensor(client, shape):
    with pytest.raises(TypeError, match="shape must be an int or a sequence of ints"):
        client.create("a", shape, "u1")


@pytest.mark.parametrize("shape", [(0, 1 << 62, 1 << 62), (1 << 62, 0, 9), 1 << 70, (3, -1)])
def test_sizes_beyond_all_limits_are_named(client, shape):
    with pytest.raises(tensorlease.InvalidError, match="shape: "):
        client.create("a", shape, "u1")


@pytest.mark.parametrize("dtype", [(2, 32, 70000), (300, 8, 1), (2, -32, 1), "float٣٢", "float32x٤", "", "i3"])
def test_a_type_that_is_none_is_not_taken_for_another(client, dtype):
    with pytest.raises(ValueError):
        client.create("a", 3, dtype)


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", 10**400])
@pytest.mark.parametrize("name", ["there", "nowhere"])
def test_aget_checks_its_timeout_as_get_does(client, name, timeout):
    client.put("there", A)
    with pytest.raises((ValueError, TypeError), match="^timeout must be seconds"):
        aget(client, name, timeout=timeout)


def test_numbers_that_do_not_fit_are_value_errors(client):
    for call in (
        lambda: client.put("a", A, stream=1 << 70),
        lambda: client.create("a", 3, "f4", device=1 << 70),
        lambda: client.create("a", 3, "f4", device=f"cuda:{1 << 70}"),
        lambda: client.holdings(1 << 70),
        lambda: client.holdings(-1),
    ):
        with pytest.raises(ValueError, match="stream|device|client_id"):
            call()


def test_mistakes_are_told_as_they_were_made(client):
    for call in (client.put, client.publish, client.__setitem__):
        with pytest.raises(TypeError, match="^'arguments/none': None is not an array"):
            call("arguments/none", None)
    with pytest.raises(ValueError, match="ttl must be above 0 and at most 1e9 seconds, not -1$"):
        client.put("a", A, ttl=-1)
    with pytest.raises(ValueError, match="ttl must be above 0 and at most 1e9 seconds, not an int that"):
        client.put("a", A, ttl=10**5000)
    for dtype in ("float33", "torch.float33"):
        with pytest.raises(ValueError, match=f"dtype '{dtype}': a float has 16") as caught:
            client.create("a", 3, dtype)
        assert "code" not in str(caught.value)


def test_a_producers_traceback_stays(client):
    class Fails:
        def __dlpack__(self, **asked):
            raise ValueError("on purpose")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(ValueError, match="'a': on purpose") as caught:
        client.put("a", Fails())
    assert caught.traceback[-1].name == "__dlpack__"


def test_an_empty_address_is_named_as_here(client):
    with pytest.raises(tensorlease.InvalidError, match="] address is empty"):
        tensorlease.connect("")


def test_metadata_must_be_contiguous(client):
    with pytest.raises(BufferError, match="metadata"):
        client.put("a", A, metadata=memoryview(b"1234")[::2])


class Described:
    def __init__(self, **interface):
        self.__array_interface__ = {"version": 3, "typestr": "<i4", "shape": (3,), **interface}


@pytest.mark.parametrize(
    "interface",
    [
        {"data": bytes(11)},
        {"data": bytes(12), "strides": (8,)},
        {"data": bytes(12), "strides": (-4,)},
        {"data": bytes(12), "shape": (1 << 62,)},
        {"data": bytes(12), "shape": "33"},
        {"data": (A.ctypes.data, False), "strides": 4},
        {"data": (A.ctypes.data, False), "strides": (1 << 70,)},
        {"data": ((1 << 64) + A.ctypes.data, False)},
        {"data": (-8, False)},
        {"data": bytes(12), "offset": 1},
        {"data": bytes(12), "offset": -4},
        {"data": bytes(12), "offset": 1 << 70},
        {"data": bytes(12), "offset": "1"},
        {"data": bytes(12), "offset": 7, "strides": (-4,)},
        {"data": bytes(12), "offset": 13, "shape": (0,)},
    ],
)
def test_an_array_interface_that_lies_is_refused(client, interface):
    with pytest.raises(BufferError, match="__array_interface__"):
        client.put("a", Described(**interface))


def test_bytes_of_an_array_interface_that_suffice_are_taken(client):
    for shape, strides in (((3,), None), ((0,), None), ((2,), (8,)), ((3, 5), (4, 0))):
        client.put("a", Described(data=np.arange(3, dtype="i4").tobytes(), shape=shape, strides=strides))
        assert client.get("a").shape == shape


def test_structured_elements_are_refused_in_words(client):
    with pytest.raises(BufferError, match=r"structured elements .*'x', 'y'"):
        client.put("a", np.zeros(2, [("x", "f4"), ("y", "f4")]))


def test_a_view_whose_sign_dlpack_forgets_is_refused(client):
    class Lazy:
        """Behaves like torch.ones(3, dtype=torch.complex64).conj().imag."""

        def __init__(self, negated):
            self.is_neg = lambda: negated

        def __dlpack__(self, **_):
            return A.__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    client.put("a", Lazy(False))
    for call in (client.put, client.publish):
        with pytest.raises(BufferError, match="resolve_neg"):
            call("a", Lazy(True))


@pytest.mark.parametrize("dtype", ["i8", "u8", "f8", "c16", "i4", "c8", "?"])
def test_jax_is_not_given_what_it_would_cut_to_half(client, monkeypatch, dtype):
    """Behaves like JAX: without jax_enable_x64 it copies, and silently changes large numbers."""
    config = types.SimpleNamespace(jax_enable_x64=False)
    fake = types.SimpleNamespace(config=config, dlpack=types.SimpleNamespace(from_dlpack=lambda t: ("array", t.dtype)))
    monkeypatch.setitem(sys.modules, "jax", fake)
    client.put("a", np.zeros(3, dtype))
    tensor = client.get("a")
    if dtype in ("i8", "u8", "f8", "c16"):
        with pytest.raises(TypeError, match="jax_enable_x64"):
            tensor.jax()
        config.jax_enable_x64 = True
    assert tensor.jax() == ("array", np.dtype(dtype))


def test_tensors_take_weak_references(client):
    client.put("a", A)
    tensor, gone = client.get("a"), []
    weakref.finalize(tensor, gone.append, 1)
    assert weakref.ref(tensor)() is tensor
    del tensor
    assert gone == [1]


def test_subinterpreters_are_refused_and_leave_this_one_alone(client):
    code = """
import sys, tensorlease
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
client = tensorlease.connect(autostart=False)
other = interpreters.create()
try:
    said = interpreters.run_string(other, "import tensorlease")
except Exception as error:
    said = error
print("ImportError" in repr(said))
interpreters.destroy(other)
try:
    client.get("nowhere")
except tensorlease.NotFoundError as error:
    print("still here")
"""
    assert run_python(code).stdout == "True\nstill here\n"


# ---- Arguments that run code: whoever is being read must not go away ----


class Acting:
    """Does something when a call reads it as an int or a truth."""

    def __init__(self, act, value):
        self.act, self.value = act, value

    def __index__(self):
        self.act()
        gc.collect()
        return self.value

    def __bool__(self):
        return bool(self.__index__())


@pytest.mark.parametrize(
    "asked",
    [
        lambda act: {"max_version": (Acting(act, 1), 0)},
        lambda act: {"dl_device": (1, Acting(act, 0))},
        lambda act: {"max_version": (1, 0), "copy": Acting(act, 1)},
        lambda act: {"max_version": (1, 0), "copy": Acting(act, 0)},
    ],
)
@pytest.mark.parametrize("mode", ["r", "c"])
def test_arguments_that_release_the_tensor(client, asked, mode):
    client.put("arguments/acting", np.arange(1 << 20))
    tensor = client.get("arguments/acting", mode=mode)
    with pytest.raises(BufferError, match="released"):
        tensor.__dlpack__(**asked(tensor.release))


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_arguments_that_end_the_draft(client, end):
    for asked in ({"max_version": (1, 0), "copy": None}, {"max_version": (1, 0), "dl_device": (1, 0)}):
        draft = client.create("arguments/acting", 1 << 20, "int8")
        asked["max_version"] = (Acting(getattr(draft, end), 1), 0)
        with pytest.raises(BufferError, match=end):
            draft.__dlpack__(**asked)


def test_names_and_arrays_of_a_group_stay_as_they_were(client):
    """An array may look at the frames that call it."""

    class Array:
        kept = np.arange(3)

        @property
        def __array_interface__(self):
            for value in sys._getframe(1).f_back.f_locals.values():
                if isinstance(value, list):
                    value.clear()
            gc.collect()
            return self.kept.__array_interface__

    arrays = {"".join(("many/", str(n))): Array() if n == 5 else np.arange(n) for n in range(10)}
    client.put_many(arrays, prefix="arguments/")
    assert sorted(client.get_many(prefix="arguments/many")) == [str(n) for n in range(10)]


def test_a_mapping_is_read_once(client):
    class Reading(collections.abc.Mapping):
        read = 0

        def __getitem__(self, name):
            self.read += 1
            return np.arange(3)

        def __iter__(self):
            return iter(["a", "b"])

        def __len__(self):
            return 2

    arrays = Reading()
    client.put_many(arrays, prefix="arguments/once/", metadata={"a": b"m"})
    assert arrays.read == 2 and client.stat("arguments/once/a").metadata == b"m"


def test_threads_copy_as_many_as_are_named(client):
    large = np.arange(3 << 19, dtype="u4").reshape(1 << 10, -1)[:, ::-1]
    for threads in (None, 1, 3, 64):
        assert client.put("large", large, threads=threads) > 0
        with client.get("large") as got:
            assert np.array_equal(got.numpy(), large)
        assert client.publish("large", large, threads=threads).copied
        with client.get("large") as got:
            assert np.array_equal(got.numpy(), large)
    for wrong in (0, -1, 65, 1 << 70):
        with pytest.raises(ValueError, match="threads must be an int from 1 to 64 or None"):
            client.put("large", large, threads=wrong)
