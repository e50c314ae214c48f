# SPDX-License-Identifier: Apache-2.0
"""The Tensor: dtypes, buffers, __array__, modes, release."""

import gc
import hashlib
import io
import itertools
import json
import operator
import os
import pickle
import struct
import zlib

import dlpack_abi as abi
import numpy as np
import pytest
from conftest import from_dlpack, leases_of, run_python

import tensorlease

NUMPY_DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


@pytest.fixture
def tensor(client):
    client.put("tensor/t", np.arange(12, dtype="int32").reshape(3, 4))
    return client.get("tensor/t")


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 4), (1,) * 32])
def test_all_dtypes_of_numpy_and_shapes(client, dtype, shape):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    client.put("tensor/dtype", values)
    for mode in "rc":
        tensor = client.get("tensor/dtype", mode=mode)
        assert tensor.dtype == dtype and tensor.shape == shape and tensor.nbytes == values.nbytes
        for array in (tensor.numpy(), np.asarray(tensor), np.asarray(memoryview(tensor)), from_dlpack(tensor)):
            assert array.dtype == values.dtype and array.shape == shape and (array == values).all()
            if array.size:
                assert array.flags.writeable == (mode == "c")


def test_64_dimensions(client):
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("NumPy 1 has 32 dimensions")
    client.put("tensor/deep", np.zeros((1,) * 64, "int8"))
    assert client.get("tensor/deep").numpy().shape == (1,) * 64


def test_the_memory_is_shared_and_aligned(client):
    client.put("tensor/shared", np.arange(10000))
    one, two = client.get("tensor/shared"), client.get("tensor/shared")
    address = one.numpy().__array_interface__["data"][0]
    assert address == two.numpy().__array_interface__["data"][0] == from_dlpack(one).__array_interface__["data"][0]
    assert address % 256 == 0


def test_a_read_only_tensor_stays_so(tensor):
    array = tensor.numpy()
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(ValueError):
        array.flags.writeable = True
    with pytest.raises(TypeError):
        memoryview(tensor)[0, 0] = 1
    with pytest.raises((TypeError, BufferError)):
        io.BytesIO(b"123456").readinto(tensor)


def test_copy_on_write_is_seen_by_nobody_else(client):
    client.put("tensor/cow", np.zeros(5000, "int32"))
    mine, other = client.get("tensor/cow", mode="c"), client.get("tensor/cow", mode="c")
    mine.numpy()[:] = 7
    assert mine.numpy()[4999] == 7 and np.asarray(mine)[0] == 7
    assert not other.numpy().any() and not client.get("tensor/cow").numpy().any()
    assert not mine.read_only_view().numpy().any()
    assert not mine.copy_on_write().numpy().any()
    code = (
        "import tensorlease; c = tensorlease.connect(autostart=False)\n"
        "assert not c.get('tensor/cow').numpy().any()\n"
        "c.get('tensor/cow', mode='c').numpy()[:] = 9\n"
    )
    run_python(code)
    assert mine.numpy()[0] == 7 and not other.numpy().any()


def test_remapping_keeps_the_version(client):
    client.put("tensor/remap", np.zeros(5))
    tensor = client.get("tensor/remap")
    client.put("tensor/remap", np.ones(5))
    cow = tensor.copy_on_write()
    tensor.release()
    assert cow.version == 1 and not cow.numpy().any() and not cow.read_only
    assert cow.read_only_view().version == 1 and client.get("tensor/remap").version == 2
    client.delete("tensor/remap")
    assert not cow.copy_on_write().numpy().any()


def test_buffers_describe_the_tensor(tensor):
    view = memoryview(tensor)
    assert (view.format, view.shape, view.strides, view.itemsize, view.nbytes) == ("i", (3, 4), (16, 4), 4, 48)
    assert view.readonly and view.c_contiguous
    assert view.tolist() == tensor.numpy().tolist()
    assert bytes(tensor) == tensor.numpy().tobytes()
    assert hashlib.sha256(tensor).digest() == hashlib.sha256(bytes(tensor)).digest()
    with io.BytesIO() as file:
        file.write(tensor)
        assert file.getvalue() == bytes(tensor)


def test_array_method_follows_numpy_2(tensor):
    assert tensor.__array__().dtype == "int32" and not tensor.__array__().flags.writeable
    assert tensor.__array__("float64").dtype == "float64"
    copy = tensor.__array__(copy=True)
    copy[0] = 9
    assert tensor.numpy()[0, 0] == 0
    with pytest.raises(ValueError):
        tensor.__array__("float64", copy=False)
    assert np.add(tensor, 1)[0, 1] == 2 and np.stack([tensor, tensor]).shape == (2, 3, 4)
    assert np.result_type(tensor, "int8") == "int32" and tensor.numpy(copy=True).flags.writeable


def test_types_that_numpy_has_not(client):
    draft = client.create("tensor/bf16", (2, 3), "bfloat16")
    draft.commit()
    tensor = client.get("tensor/bf16")
    assert tensor.dtype == "bfloat16" and tensor.itemsize == 2 and tensor.strides == (6, 2)
    with pytest.raises(BufferError, match="format"):
        memoryview(tensor)
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(TypeError, match="ml_dtypes"):
            tensor.numpy()
        with pytest.raises(TypeError, match="ml_dtypes"):
            np.asarray(tensor)
        return
    assert tensor.numpy().dtype == ml_dtypes.bfloat16 and not tensor.numpy().flags.writeable
    assert np.asarray(tensor).shape == (2, 3)


def test_pickle_of_a_numpy_view_is_a_copy(tensor):
    assert (pickle.loads(pickle.dumps(tensor.numpy())) == tensor.numpy()).all()


def test_packed_types(client):
    client.create("tensor/int4", (3, 3), "int4").commit()
    tensor = client.get("tensor/int4")
    assert (tensor.dtype, tensor.nbytes, tensor.itemsize, tensor.strides) == ("int4", 5, 0.5, None)
    with pytest.raises(BufferError, match="packed"):
        memoryview(tensor)
    with pytest.raises(TypeError):
        tensor.numpy()
    client.create("tensor/int4", (3, 3), "int4", padded=True).commit()
    assert client.get("tensor/int4").nbytes == 9
    client.create("tensor/f4x2", (3,), "float4_e2m1fnx2").commit()
    assert client.get("tensor/f4x2").nbytes == 3


def test_repr_says_something(client):
    client.put("tensor/repr", np.zeros((720, 1280, 3), "uint8"))
    tensor = client.get("tensor/repr")
    assert repr(tensor) == "<tensorlease.Tensor 'tensor/repr' version 1: uint8 (720, 1280, 3), 2.6 MiB, read-only>"
    assert "copy-on-write" in repr(tensor.copy_on_write())
    tensor.release()
    assert repr(tensor) == "<tensorlease.Tensor, released>"


def test_release_ends_the_lease_and_the_object(client, observer):
    client.put("tensor/end", np.arange(3))
    before = leases_of(observer, os.getpid())
    tensor = client.get("tensor/end")
    assert leases_of(observer, os.getpid()) == before + 1
    tensor.release()
    tensor.release()
    assert leases_of(observer, os.getpid()) == before and tensor.released
    for use in (
        lambda: tensor.shape,
        lambda: tensor.name,
        lambda: tensor.version,
        lambda: tensor.dtype,
        lambda: tensor.metadata,
        lambda: tensor.copy_on_write(),
        lambda: tensor.__dlpack_device__(),
        lambda: tensor.__enter__(),
    ):
        with pytest.raises(ValueError, match="released"):
            use()
    for use in (lambda: memoryview(tensor), lambda: tensor.__dlpack__()):
        with pytest.raises(BufferError, match="released"):
            use()
    with client.get("tensor/end") as other:
        assert other.shape == (3,)
    assert other.released


@pytest.mark.parametrize("mode", "rc")
def test_the_lease_lives_as_long_as_any_view(client, observer, mode):
    before = leases_of(observer, os.getpid())
    client.put("tensor/views", np.arange(2000))
    for make in (
        memoryview,
        lambda t: t.numpy(),
        np.asarray,
        from_dlpack,
        lambda t: t.numpy()[5:].reshape(-1, 5)[3],
        lambda t: t.__dlpack__(max_version=(1, 0)),
        lambda t: t.__array__(),
    ):
        tensor = client.get("tensor/views", mode=mode)
        view = make(tensor)
        tensor.release()
        del tensor
        assert leases_of(observer, os.getpid()) == before + 1
        if isinstance(view, np.ndarray):
            assert view.sum() > 0
        del view
        gc.collect()
        assert leases_of(observer, os.getpid()) == before


def test_a_bf16_view_holds_its_lease(client, observer):
    pytest.importorskip("ml_dtypes")
    client.create("tensor/bfview", (1000,), "bfloat16").commit()
    before = leases_of(observer, os.getpid())
    array = client.get("tensor/bfview").numpy()
    assert leases_of(observer, os.getpid()) == before + 1
    del array
    assert leases_of(observer, os.getpid()) == before


@pytest.mark.parametrize("mode", "rc")
def test_no_lease_is_left_by_who_asks_for_plain_bytes(client, observer, mode, tmp_path):
    before = leases_of(observer, os.getpid())
    client.put("tensor/plain", np.arange(5000))
    for use in (lambda t: hashlib.sha256(t), lambda t: (tmp_path / "x").write_bytes(t), lambda t: zlib.crc32(t)):
        with client.get("tensor/plain", mode=mode) as tensor:
            use(tensor)
        assert leases_of(observer, os.getpid()) == before and tensor.released
    tensor = client.get("tensor/plain", mode=mode)
    file = io.BytesIO()
    file.write(tensor)
    tensor.release()
    assert leases_of(observer, os.getpid()) == before and file.getvalue() == np.arange(5000).tobytes()


@pytest.mark.parametrize("mode", "rc")
def test_the_lease_of_torch_frombuffer_ends_with_its_tensor(client, observer, mode):
    torch = pytest.importorskip("torch")
    before = leases_of(observer, os.getpid())
    client.put("tensor/plain", np.arange(5000))
    with client.get("tensor/plain", mode=mode) as tensor:
        for make in (torch.frombuffer, torch.asarray):  # both take it for plain bytes
            array = make(tensor, dtype=torch.int64)
            part = array[4999:]
            part[0] = 5000
    assert leases_of(observer, os.getpid()) == before + 1
    del array
    assert leases_of(observer, os.getpid()) == before + 1 and part.item() == 5000
    del part
    assert leases_of(observer, os.getpid()) == before and client.get("tensor/plain").numpy()[4999] == 4999


def test_who_asks_for_plain_bytes_may_give_the_buffer_back_and_go_on(client, observer):
    """Keeps the address and the view's object, as torch.frombuffer() does."""
    import ctypes

    class Buffer(ctypes.Structure):
        _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("rest", ctypes.c_byte * 256)]

    before = leases_of(observer, os.getpid())
    client.put("tensor/plain", np.arange(5000))
    tensor = client.get("tensor/plain")
    view = Buffer()
    assert ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(tensor), ctypes.byref(view), 0) == 0
    address, keeper = view.buf, view.obj
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    tensor.release()
    ctypes.memset(address, 0xFF, 40000)  # a write affects nobody
    assert client.get("tensor/plain").numpy()[4999] == 4999
    assert leases_of(observer, os.getpid()) == before + 1
    del keeper
    assert leases_of(observer, os.getpid()) == before


def test_tensors_and_drafts_come_from_clients_only():
    for kind in (tensorlease.Tensor, tensorlease.Draft):
        with pytest.raises(TypeError, match="come from Client"):
            kind()


def test_names_of_dtypes():
    from tensorlease._dtypes import parse_dtype

    for dtype in NUMPY_DTYPES:
        expected = parse_dtype(dtype)
        kind = np.dtype(dtype)
        assert (
            parse_dtype(kind) == parse_dtype(kind.str) == parse_dtype(kind.type) == parse_dtype(kind.char) == expected
        )
        assert expected[1] == kind.itemsize * 8 or dtype == "bool"
    for kind in map(np.dtype, set(np.sctypeDict.values())):
        if kind.type.__module__ == "numpy" and kind.kind in "biufc" and kind.itemsize <= 8:
            expected = ({"b": 6, "i": 0, "u": 1, "f": 2, "c": 5}[kind.kind], kind.itemsize * 8, 1)
            assert parse_dtype(kind.type) == parse_dtype(kind) == expected
    assert parse_dtype(float) == (2, 64, 1) and parse_dtype(bool) == (6, 8, 1) and parse_dtype((4, 16, 1)) == (4, 16, 1)
    assert parse_dtype("float32x4") == (2, 32, 4) and parse_dtype("torch.bfloat16") == (4, 16, 1)
    for wrong in (">f4", "flot32", "M8[ns]", np.dtype(">i4"), np.dtype("M8[ns]"), np.dtype("S3"), "float999"):
        with pytest.raises(ValueError):
            parse_dtype(wrong)
    with pytest.raises(TypeError):
        parse_dtype(7)


# ---- Numbers ----


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_element_is_a_number(client, dtype, shape):
    for value in (0, 1, 53):
        source = np.full(shape, value, dtype)
        client.put("numbers/x", source)
        with client.create("numbers/draft", shape, dtype) as draft:
            draft[...] = source
            for tensor in (client.get("numbers/x"), client.get("numbers/x", mode="c"), draft):
                assert int(tensor) == int(source[(0,) * source.ndim]) and type(int(tensor)) is int
                assert float(tensor) == float(source[(0,) * source.ndim]) and complex(tensor) == complex(float(tensor))
                assert bool(tensor) is bool(value)
                assert tensor.item() == source.item() and type(tensor.item()) is type(source.item())
                assert tensor.tolist() == source.tolist()


def test_an_integer_is_an_index_as_one_of_numpy_is(client):
    for dtype in ("uint8", "int64"):
        client.put("numbers/index", np.array(3, dtype))
        tensor = client.get("numbers/index")
        assert operator.index(tensor) == 3 and [0, 1, 2, "x"][tensor] == "x" and len(range(tensor)) == 3
        assert np.arange(5)[tensor] == 3 and np.asarray(tensor).shape == () and (np.arange(4) == tensor).sum() == 1
    for array in (np.array([3]), np.array(3.0), np.array(True), np.arange(3)):
        client.put("numbers/index", array)
        with pytest.raises(TypeError, match="is an index"):
            operator.index(client.get("numbers/index"))


def test_several_elements_are_no_number(client):
    for shape in ((2,), (0,), (1, 3)):
        client.put("numbers/x", np.ones(shape, "uint8") * 53)
        tensor = client.get("numbers/x")
        for kind in (int, float, complex):
            with pytest.raises(TypeError, match="does not become one"):
                kind(tensor)
        for call in (bool, lambda t: t.item()):
            with pytest.raises(ValueError, match="not one number"):
                call(tensor)
    with pytest.raises(TypeError):
        range(tensor)
    assert bytes(tensor) == b"555" and bytearray(tensor) == b"555"


def test_elements_are_those_of_an_array(client):
    source = np.arange(6, dtype="complex64").reshape(2, 3)
    client.put("numbers/x", source)
    tensor = client.get("numbers/x")
    assert len(tensor) == 2 and tensor[1, 2] == 5 and tensor.tolist() == source.tolist()
    assert [row.tolist() for row in tensor] == source.tolist()
    assert not tensor[0].flags.writeable and client.get("numbers/x", mode="c")[0].flags.writeable
    client.put("numbers/none", 5.0 * np.ones(()))
    with pytest.raises(TypeError, match="length"):
        len(client.get("numbers/none"))
    with pytest.raises(TypeError):
        iter(client.get("numbers/none"))


def test_equality_is_of_the_elements(client):
    client.put("numbers/x", np.arange(3))
    client.put("numbers/y", np.arange(3))
    x, y = client.get("numbers/x"), client.get("numbers/y")
    for other in (y, y.numpy(), [0, 1, 2], (0, 1, 2)):
        assert (x == other).tolist() == [True] * 3 and (x != other).tolist() == [False] * 3
    assert (x == 1).tolist() == [False, True, False] and (np.arange(3) == x).all()
    assert (x == None) is False and (x != "x") is True  # noqa: E711
    assert len({x, y, x}) == 2 and {x: 1}[x] == 1
    x.release()
    with pytest.raises(ValueError, match="released"):
        x == y


def test_numbers_without_numpy(address):
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import array, tensorlease; c = tensorlease.connect()\n"
        "c.put('numbers/bare', array.array('h', [7]))\n"
        "t = c.get('numbers/bare')\n"
        "print(int(t), float(t), t.tolist(), t.item())\n"
    )
    assert run_python(code).stdout == "7 7.0 [7] 7\n"


# ---- Other elements over the same bytes ----


@pytest.mark.parametrize("mode", "rc")
def test_a_view_has_the_same_bytes(client, observer, mode):
    before = leases_of(observer, os.getpid())
    client.put("view/x", np.arange(24, dtype="int32").reshape(2, 12), metadata=b"m")
    tensor = client.get("view/x", mode=mode)
    view = tensor.view("int16")
    assert (view.shape, view.dtype, view.read_only, view.name, view.metadata) == ((2, 24), "int16", mode == "r", "view/x", b"m")
    assert (view.numpy() == tensor.numpy().view("int16")).all() and view._address == tensor._address
    tensor.release()
    assert leases_of(observer, os.getpid()) == before + 1
    longer = view.view(np.float64).view("uint8").view("int32")
    assert longer.tolist() == np.arange(24).reshape(2, 12).tolist()
    other = view.copy_on_write()
    other.numpy()[:] = 7
    assert other.name == "view/x" and (other.read_only_view().numpy() == view.numpy()).all()
    assert view.numpy()[0, 2] == 1 and (other.numpy() == 7).all() and other.shape == (2, 24)
    assert abi.bytes_of(abi.versioned_of(view.__dlpack__(max_version=(1, 0))).tensor, 4) == bytes(4)
    client.put("view/copy", view)
    assert client.publish("view/again", view).version and client.get("view/copy").dtype == "int16"
    for wrong in ("float32x5", "complex256", (1, 56, 1)):
        with pytest.raises(ValueError):
            view.view(wrong)
    del view, longer, other
    gc.collect()
    assert leases_of(observer, os.getpid()) == before


@pytest.mark.parametrize("word", ["int4", "float4_e2m1fn", "float6_e2m3fn", "uint1", "bfloat16", "float8_e5m2", "float32"])
def test_bytes_of_any_type(client, word):
    with client.create("view/x", (3, 8), word) as draft:
        draft.bytes()[:] = bytes(range(draft.nbytes))
    tensor = client.get("view/x")
    assert tensor.bytes() == bytes(range(tensor.nbytes)) and tensor.bytes().readonly
    assert tensor.view("uint8").numpy().tobytes() == bytes(range(tensor.nbytes))
    client.put("view/x", np.float32(5))
    assert len(client.get("view/x").bytes()) == 4
    with pytest.raises(ValueError, match="whole number"):
        client.get("view/x").view("uint8")
    client.create("view/odd", (3, 5), "int4").commit()
    with pytest.raises(ValueError, match="whole number"):
        client.get("view/odd").view("uint8")
    assert len(client.get("view/odd").bytes()) == 8


def must_name_bytes(array, use):
    """Check that use() is refused in words that name bytes(), which drafts have too and which works for odd sizes."""
    with pytest.raises((BufferError, TypeError), match=r"bytes\(\)") as caught:
        use(array)
    assert "view(" not in str(caught.value)
    return array.bytes()


def packed_numpy(array):
    pytest.importorskip("ml_dtypes")  # else NumPy has no such elements at all
    return array.numpy()


@pytest.mark.parametrize(("word", "use"), [("int4", memoryview), ("int4", packed_numpy), ("float8_e5m2", memoryview)])
def test_what_has_no_buffer_has_bytes(client, word, use):
    with client.create("view/x", (3, 5), word) as draft:
        must_name_bytes(draft, use)[:] = bytes(range(draft.nbytes))
    tensor = client.get("view/x")
    assert must_name_bytes(tensor, use) == bytes(range(tensor.nbytes))


def test_the_same_elements_have_the_same_padding(client):
    with client.create("view/x", (2, 3), "int4", padded=True) as draft:
        draft.bytes()[:] = bytes(range(6))
    tensor = client.get("view/x")
    for same in (tensor.view("int4"), tensor.view("int4").read_only_view()):
        assert (same.shape, same.itemsize, bytes(same.bytes())) == ((2, 3), 1, bytes(range(6)))
    packed = tensor.view("uint8").view("int4")
    for other in (packed, packed.read_only_view()):
        assert (other.shape, other.itemsize) == ((2, 6), 0.5)


def test_small_floats_of_a_safetensors_file(client, tmp_path):
    header = {
        "f4": {"dtype": "F4", "shape": [2, 8], "data_offsets": [0, 8]},
        "f6": {"dtype": "F6_E2M3", "shape": [2, 8], "data_offsets": [8, 20]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(20)))
    client.load("small", tmp_path / "m.safetensors")
    assert client.get("small/f4").view("uint8").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert client.get("small/f6").bytes() == bytes(range(8, 20))
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this PyTorch has no float4")
    array = client.get("small/f4").torch()
    assert array.dtype == torch.float4_e2m1fn_x2 and array.view(torch.uint8).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    client.put("small/again", array)
    again = client.get("small/again").torch()
    assert again.dtype == array.dtype and (again.view(torch.uint8) == array.view(torch.uint8)).all()


@pytest.mark.parametrize("mode", "rc")
def test_what_only_arrays_can_do_is_named(client, mode):
    client.put("tensor/hints", np.arange(6).reshape(2, 3))
    tensor = client.get("tensor/hints", mode=mode)
    draft = client.create("tensor/draft", (3,), "int64")
    for either, method in itertools.product((tensor, draft), ("mean", "sum", "T", "reshape", "astype", "cuda", "clone")):
        where = "torch" if method in ("cuda", "clone") else "numpy"
        with pytest.raises(AttributeError, match=rf"no attribute '{method}': use its {where}\(\)\.{method}$"):
            getattr(either, method)
        assert not hasattr(either, method) and not hasattr(type(either), method) and method not in dir(either)
    computing = [operator.add, operator.sub, operator.mul, operator.matmul, operator.lt, operator.ge, operator.iadd]
    for compute in computing:
        for either, other in ((tensor, 1), (draft, 2.5), (tensor, tensor), (1, tensor), (draft, tensor)):
            with pytest.raises(TypeError, match=r"has no operators but == and !=: use its numpy\(\) or torch\(\)"):
                compute(either, other)
    for compute in (operator.neg, abs, operator.invert):
        with pytest.raises(TypeError, match=r"use its numpy\(\)"):
            compute(tensor)
    with pytest.raises(AttributeError, match="no attribute 'nothing'$"):
        tensor.nothing  # noqa: B018


def test_arrays_compute_with_a_tensor(client):
    client.put("tensor/hints", np.arange(3))
    tensor, array = client.get("tensor/hints"), np.ones(3)
    assert (tensor + array).tolist() == (array + tensor).tolist() == [1, 2, 3] and np.float64(2).__mul__(tensor)[1] == 2
    assert (tensor < array).tolist() == [True, False, False]
    assert np.add(tensor, 1).tolist() == [1, 2, 3] and (tensor + object.__new__(Right)) == "right"


class Right:
    def __radd__(self, other):
        return "right"


def test_a_tensor_is_not_written_to(client):
    client.put("tensor/hints", np.arange(3))
    for mode in "rc":
        with pytest.raises(TypeError, match="cannot be written to.*mode='c'"):
            client.get("tensor/hints", mode=mode)[0] = 1
    array = client.get("tensor/hints", mode="c").numpy()
    array[0] = 1
    assert client.get("tensor/hints").tolist() == [0, 1, 2]


def test_what_is_in_a_tensor(client):
    client.put("tensor/hints", np.arange(6).reshape(2, 3))
    tensor = client.get("tensor/hints")
    assert 5 in tensor and 6 not in tensor and tensor[1, 2] in tensor
    with client.create("tensor/draft", (3,), "int64") as draft:
        draft[...] = 4
        assert 4 in draft and 5 not in draft
