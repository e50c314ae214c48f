# SPDX-License-Identifier: Apache-2.0
"""Tensors as DLPack producers. Numbers after tests are those of the mistakes in tests/interop/mistakes_test.py."""

import ctypes
import gc
import os
import subprocess
import sys
import threading

import dlpack_abi as abi
import numpy as np
import pytest
from conftest import daemon_at, from_dlpack, leases_of, run_python
from limits import limit

import tensorlease

NUMPY = {"dl_device": None, "copy": None, "max_version": (1, 0)}  # as NumPy 2 asks
TORCH = {"max_version": (1, 0)}


@pytest.fixture
def tensor(client):
    client.put("dlpack/t", np.arange(24, dtype="int16").reshape(2, 3, 4))
    return client.get("dlpack/t")


@pytest.fixture
def writable(tensor):
    return tensor.copy_on_write()


def test_strides_are_elements_and_always_there(tensor):  # 1, 2, 3
    managed = abi.versioned_of(capsule := tensor.__dlpack__(**NUMPY))
    t = managed.tensor
    assert [t.shape[i] for i in range(3)] == [2, 3, 4] and [t.strides[i] for i in range(3)] == [12, 4, 1]
    assert t.byte_offset == 0 and t.data % 256 == 0 and (t.device_type, t.device_id) == (1, 0)
    assert (t.dtype.code, t.dtype.bits, t.dtype.lanes, t.ndim) == (0, 16, 1, 3)
    assert managed.major == 1 and abi.bytes_of(t, 48) == bytes(tensor)
    del capsule


def test_no_elements_and_no_dimensions(client):  # 4, 5, 6
    client.put("dlpack/empty", np.zeros((3, 0), "float32"))
    t = abi.versioned_of(capsule := client.get("dlpack/empty").__dlpack__(**NUMPY)).tensor
    assert t.data is None and t.ndim == 2 and t.shape[1] == 0
    client.put("dlpack/scalar", np.float32(7))
    t = abi.versioned_of(capsule := client.get("dlpack/scalar").__dlpack__(**NUMPY)).tensor
    assert t.ndim == 0 and ctypes.c_float.from_address(t.data).value == 7
    del capsule


def test_bool_is_bool(client):  # 12
    client.put("dlpack/bool", np.ones(3, bool))
    t = abi.versioned_of(capsule := client.get("dlpack/bool").__dlpack__(**NUMPY)).tensor
    assert (t.dtype.code, t.dtype.bits, t.dtype.lanes) == (6, 8, 1)
    del capsule


def test_lanes_and_padding_are_said(client):  # 13
    client.create("dlpack/f4", (3,), "float4_e2m1fnx2").commit()
    m = abi.versioned_of(capsule := client.get("dlpack/f4").__dlpack__(**TORCH))
    assert (m.tensor.dtype.code, m.tensor.dtype.bits, m.tensor.dtype.lanes, m.flags) == (17, 4, 2, 0)
    client.create("dlpack/i4", (3,), "int4", padded=True).commit()
    m = abi.versioned_of(capsule := client.get("dlpack/i4").__dlpack__(**TORCH))
    assert m.flags == abi.PADDED
    m = abi.versioned_of(capsule := client.get("dlpack/i4").__dlpack__(**NUMPY))
    assert m.flags == abi.PADDED | abi.READ_ONLY
    with pytest.raises(BufferError, match="a byte of its own"):  # a legacy capsule has no flag for that
        client.get("dlpack/i4", mode="c").__dlpack__()
    del capsule


def test_names_follow_the_version_asked_for(writable):  # 14, 15, 16
    assert abi.name_of(writable.__dlpack__()) == "dltensor"
    for version in (None, (0, 8)):
        assert abi.name_of(writable.__dlpack__(max_version=version)) == "dltensor"
    for version in ((1, 0), (1, 3), (2, 0), (1, 0, 7), (np.int32(1), np.uint8(0))):
        assert abi.name_of(writable.__dlpack__(max_version=version)) == "dltensor_versioned"
    legacy = abi.legacy_of(capsule := writable.__dlpack__()).tensor
    assert [legacy.strides[i] for i in range(3)] == [12, 4, 1]
    del capsule


def test_read_only_is_said_to_who_honours_it(tensor, writable):  # 23
    capsule = tensor.__dlpack__(**NUMPY)
    managed = abi.versioned_of(capsule)
    assert managed.flags == abi.READ_ONLY and managed.tensor.data == tensor._address
    capsule = writable.__dlpack__(**NUMPY)
    managed = abi.versioned_of(capsule)
    assert managed.flags == 0 and managed.tensor.data == writable._address


@pytest.mark.parametrize(
    "asked",
    [
        TORCH,
        {"max_version": (1, 1)},  # nanobind
        {"max_version": (1, 0), "copy": False},  # mpi4py, and torch.from_dlpack(copy=False)
        {"max_version": (1, 0), "copy": False, "dl_device": (1, 0)},  # torch.from_dlpack(device="cpu", copy=False)
        {"stream": None, "max_version": (1, 0), "copy": None},  # CuPy
    ],
)
def test_who_may_write_is_given_memory_of_his_own(client, asked):  # 23
    client.put("dlpack/private", np.arange(5000, dtype="int32"))
    tensor = client.get("dlpack/private")
    capsules = [tensor.__dlpack__(**asked) for _ in range(2)]
    one, two = (abi.versioned_of(capsule) for capsule in capsules)
    assert one.flags == two.flags == 0 and len({one.tensor.data, two.tensor.data, tensor._address}) == 3
    assert abi.bytes_of(one.tensor, 20000) == bytes(tensor)
    ctypes.memset(one.tensor.data, 0xFF, 20000)
    assert abi.bytes_of(two.tensor, 20000) == bytes(tensor) == np.arange(5000, dtype="int32").tobytes()


def test_a_legacy_request_of_a_read_only_tensor_names_the_way_out(tensor):
    for asked in ({}, {"stream": None}, {"max_version": None}, {"max_version": (0, 5)}, {"copy": False}):
        with pytest.raises(BufferError, match='mode="c"'):
            tensor.__dlpack__(**asked)


@pytest.mark.parametrize("asked", [{"copy": True}, {"copy": True, **TORCH}, {**NUMPY, "copy": True}])
def test_a_copy_is_a_copy_and_says_so(tensor, writable, asked):  # 24, 25
    for source in (tensor, writable):
        capsule = source.__dlpack__(**asked)
        managed = abi.consume(capsule)
        if "max_version" in asked:
            assert managed.flags == abi.IS_COPIED
        assert managed.tensor.data % 256 == 0 and managed.tensor.data != source._address
        ctypes.memset(managed.tensor.data, 0xFF, 48)
        assert bytes(source)[:2] == b"\0\0"
        source.release()
        assert abi.bytes_of(managed.tensor, 48) == b"\xff" * 48
        managed.deleter(ctypes.byref(managed))


def test_the_device_is_the_tensors(tensor):  # 26
    assert tensor.__dlpack_device__() == (1, 0)
    assert abi.versioned_of(capsule := tensor.__dlpack__(dl_device=(1, 0), **TORCH)).tensor.device_type == 1
    del capsule
    for device in ((2, 0), (1, 1), (13, 0)):
        with pytest.raises(BufferError, match="dl_device"):
            tensor.__dlpack__(dl_device=device, **TORCH)


def test_streams_are_for_gpus(tensor):  # 28
    for stream in (-1, 0, 1, 2, 12345):
        with pytest.raises(BufferError, match="stream"):
            tensor.__dlpack__(stream=stream, **TORCH)


class Odd:
    def __bool__(self):
        raise TypeError("no truth")

    def __index__(self):
        raise TypeError("no index")


@pytest.mark.parametrize(
    "asked",
    [
        {"max_version": 1},
        {"max_version": "10"},
        {"max_version": (1,)},
        {"max_version": ("a", "b")},
        {"max_version": (1.0, 0)},
        {"max_version": (Odd(), 0)},
        {"max_version": (1 << 80, 0)},
        {"dl_device": "cpu"},
        {"dl_device": (1,)},
        {"dl_device": (Odd(), 0)},
        {"copy": Odd()},
        {"copy": np.ones(3)},
        {"stream": Odd()},
    ],
)
def test_wrong_arguments_are_buffer_errors_never_type_errors(tensor, writable, asked):  # 29
    for source in (tensor, writable):
        with pytest.raises(BufferError):
            source.__dlpack__(**asked)
    with pytest.raises(TypeError):  # by the call itself, which has no such signature
        tensor.__dlpack__(future=1)


def test_an_unused_capsule_gives_its_lease_back(tensor, observer):  # 17
    before = leases_of(observer, os.getpid())
    for asked in (NUMPY, TORCH):
        capsules = [tensor.__dlpack__(**asked) for _ in range(10)]
        del capsules
    assert leases_of(observer, os.getpid()) == before
    cow = tensor.copy_on_write()
    capsules = [cow.__dlpack__(), cow.__dlpack__(**TORCH)]
    cow.release()
    assert leases_of(observer, os.getpid()) == before + 1
    del capsules
    assert leases_of(observer, os.getpid()) == before


@pytest.mark.parametrize("legacy", [False, True])
def test_a_used_capsule_leaves_the_deleter_to_its_user(writable, observer, legacy):  # 18
    before = leases_of(observer, os.getpid())
    capsule = writable.__dlpack__() if legacy else writable.__dlpack__(**TORCH)
    managed = abi.consume(capsule)
    writable.release()
    del capsule
    gc.collect()
    assert leases_of(observer, os.getpid()) == before
    assert abi.bytes_of(managed.tensor, 48) == np.arange(24, dtype="int16").tobytes()
    managed.deleter(ctypes.byref(managed))
    assert leases_of(observer, os.getpid()) == before - 1


def test_a_capsule_that_goes_leaves_the_exception_alone(tensor, writable):  # 19
    def fails():
        capsules = [tensor.__dlpack__(**NUMPY), tensor.__dlpack__(**TORCH), writable.__dlpack__()]
        raise KeyError(len(capsules))

    with pytest.raises(KeyError, match="3"):
        fails()

    def produces():
        capsules = [writable.__dlpack__()]
        yield capsules
        raise LookupError

    generator = produces()
    next(generator)
    with pytest.raises(LookupError):
        next(generator)


def test_deleters_run_on_any_thread(client, observer):  # 20
    client.put("dlpack/thread", np.arange(5000))
    before = leases_of(observer, os.getpid())
    managed = [abi.consume(client.get("dlpack/thread").__dlpack__(**NUMPY)) for _ in range(50)]
    managed += [abi.consume(client.get("dlpack/thread").__dlpack__(**TORCH)) for _ in range(50)]

    def delete(part):
        for m in part:
            m.deleter(ctypes.byref(m))  # ctypes releases the GIL

    threads = [threading.Thread(target=delete, args=(managed[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert leases_of(observer, os.getpid()) == before


def test_a_deleter_after_the_interpreters_end(address):  # 20
    """A thread that is not Python's holds a tensor, and gives it back after Python has ended."""
    code = (
        "import ctypes, sys; sys.path.insert(0, sys.argv[1] if len(sys.argv) > 1 else '.')\n"
        "import dlpack_abi as abi, numpy as np, tensorlease\n"
        "c = tensorlease.connect()\n"
        "c.put('dlpack/late', np.arange(5000))\n"
        "for kwargs in ({'max_version': (1, 0)}, {'max_version': (1, 0), 'copy': True}):\n"
        "    m = abi.consume(c.get('dlpack/late').__dlpack__(**kwargs))\n"
        "    libc = ctypes.CDLL(None)\n"
        "    deleter = ctypes.cast(m.deleter, ctypes.c_void_p)\n"
        "    # __cxa_atexit(function, argument, handle) calls the deleter after Py_FinalizeEx()\n"
        "    libc.__cxa_atexit.argtypes = [ctypes.c_void_p] * 3\n"
        "    assert libc.__cxa_atexit(deleter, ctypes.addressof(m), None) == 0\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, os.path.dirname(__file__)], capture_output=True, text=True, timeout=limit(60)
    )
    assert result.returncode == 0, result.stderr


def test_shape_and_strides_belong_to_each_capsule(writable):  # 21
    capsules = [writable.__dlpack__(**TORCH) for _ in range(3)]
    managed = [abi.versioned_of(capsule) for capsule in capsules]
    assert len({ctypes.addressof(m.tensor.shape.contents) for m in managed}) == 3
    managed[0].tensor.shape[0] = 99
    assert managed[1].tensor.shape[0] == 2 and writable.shape == (2, 3, 4)


def test_the_memory_lives_as_long_as_the_object_too(writable):  # 22: mpi4py 3 deletes at once and continues to read
    managed = abi.consume(writable.__dlpack__())
    address = managed.tensor.data
    managed.deleter(ctypes.byref(managed))
    assert ctypes.string_at(address, 48) == np.arange(24, dtype="int16").tobytes()


def test_numpy_is_given_the_shared_memory(tensor):
    array = from_dlpack(tensor)
    assert array.__array_interface__["data"] == (tensor._address, True) and array.shape == (2, 3, 4)
    cow = tensor.copy_on_write()
    assert from_dlpack(cow).__array_interface__["data"] == (cow._address, False)


# ---- The C exchange interface ----


@pytest.fixture
def exchange(tensor):
    capsule = type(tensor).__dlpack_c_exchange_api__
    assert abi.name_of(capsule) == "dlpack_exchange_api" and tensor.__dlpack_c_exchange_api__ is capsule
    return abi.exchange_of(tensor)


def test_exchange_hands_out_what_may_be_written_to(exchange, tensor, writable):
    assert (exchange.major, exchange.minor) == (1, 3) and not exchange.borrow
    out = ctypes.POINTER(abi.Versioned)()
    assert exchange.from_py(tensor, ctypes.byref(out)) == 0
    assert out.contents.flags == 0 and out.contents.tensor.data != tensor._address
    ctypes.memset(out.contents.tensor.data, 0xFF, 48)
    assert tensor.numpy()[0, 0, 1] == 1
    out.contents.deleter(out)
    assert exchange.from_py(writable, ctypes.byref(out)) == 0
    assert out.contents.tensor.data == writable._address
    out.contents.deleter(out)
    with pytest.raises(TypeError):
        exchange.from_py("no tensor", ctypes.byref(out))
    writable.release()
    with pytest.raises(BufferError):
        exchange.from_py(writable, ctypes.byref(out))


def test_exchange_takes_tensors_of_others(exchange):
    producer = abi.Producer(shape=(2, 2), dtype=(0, 32, 1), strides=(1, 2))
    out = ctypes.py_object()
    assert exchange.to_py(ctypes.byref(producer.managed), ctypes.byref(out)) == 0
    tensor = out.value
    assert (tensor.name, tensor.version, tensor.metadata) == (None, None, None)
    assert tensor.numpy().T.tobytes() == producer.payload.raw[:16] and "writable" in repr(tensor)
    view = memoryview(tensor)
    tensor.release()
    assert producer.deleted == 0
    view.release()
    del view, tensor, out
    gc.collect()
    assert producer.deleted == 1


def test_exchange_keeps_strides_of_types_that_buffers_do_not_have(exchange):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    producer = abi.Producer(shape=(2, 2), dtype=(4, 16, 1), strides=(1, 2))
    out = ctypes.py_object()
    assert exchange.to_py(ctypes.byref(producer.managed), ctypes.byref(out)) == 0
    array = out.value.numpy()
    assert array.dtype == ml_dtypes.bfloat16 and array.strides == (2, 4)
    assert array.T.tobytes() == producer.payload.raw[:8]


def test_exchange_refuses_other_versions(exchange):
    producer = abi.Producer(major=2)
    with pytest.raises(BufferError, match="DLPack 2"):
        exchange.to_py(ctypes.byref(producer.managed), ctypes.byref(ctypes.py_object()))
    assert producer.deleted == 0


def test_exchange_allocates(exchange):
    error_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    errors = []
    report = error_type(lambda _, kind, text: errors.append((kind.decode(), text.decode())))
    allocate = ctypes.CFUNCTYPE(
        ctypes.c_int,
        ctypes.POINTER(abi.Tensor),
        ctypes.POINTER(ctypes.POINTER(abi.Versioned)),
        ctypes.c_void_p,
        error_type,
    )(exchange.allocate)
    out = ctypes.POINTER(abi.Versioned)()
    prototype = abi.Producer(shape=(3, 5), dtype=(2, 64, 1)).managed.tensor
    assert allocate(ctypes.byref(prototype), ctypes.byref(out), None, report) == 0 and not errors
    t = out.contents.tensor
    assert t.data % 256 == 0 and t.shape[1] == 5 and t.strides[0] == 5 and out.contents.flags == 0
    ctypes.memset(t.data, 1, 120)
    out.contents.deleter(out)
    prototype.device_type = 2
    assert allocate(ctypes.byref(prototype), ctypes.byref(out), None, report) == -1
    prototype.device_type = 1
    prototype.shape[0] = 1 << 62
    assert allocate(ctypes.byref(prototype), ctypes.byref(out), None, report) == -1
    assert [kind for kind, _ in errors] == ["BufferError", "ValueError"]


def test_exchange_works_on_default_streams(exchange):
    for device in (1, 2):
        out = ctypes.c_void_p(1)
        assert exchange.stream(device, 0, ctypes.byref(out)) == 0 and out.value is None
    with pytest.raises(BufferError):
        exchange.stream(10, 0, ctypes.byref(out))


def test_exchange_keeps_padding(client):
    with client.create("dlpack/padded", (3,), "int4", padded=True) as draft:
        draft.bytes()[:] = b"\1\2\3"
    tensor = client.get("dlpack/padded", mode="c")
    exchange, out, back = abi.exchange_of(tensor), ctypes.POINTER(abi.Versioned)(), ctypes.py_object()
    assert exchange.from_py(tensor, ctypes.byref(out)) == 0 and exchange.to_py(out, ctypes.byref(back)) == 0
    for again in (back.value.copy_on_write(), back.value.read_only_view()):
        assert (again.itemsize, bytes(again.bytes())) == (1, b"\1\2\3")
    view = tensor.view("uint8").read_only_view()  # a view has no padding
    assert (view.dtype, view.itemsize) == ("uint8", 1)


def test_without_a_daemon_a_copy_is_told(tmp_path):
    path = tmp_path / "socket"
    with daemon_at(path) as daemon, tensorlease.connect(path, autostart=False) as client:
        client.put("a", np.arange(5000))
        tensor = client.get("a")
        daemon.kill()
        daemon.wait()
        for ours in (tensor, tensor.view("uint8")):
            assert abi.versioned_of(capsule := ours.__dlpack__(**TORCH)).flags == abi.IS_COPIED
            with pytest.raises(BufferError, match="copy=False.* only a copy"):
                ours.__dlpack__(**TORCH, copy=False)
            assert abi.versioned_of(shared := ours.__dlpack__(**{**NUMPY, "copy": False})).flags == abi.READ_ONLY
        got = [client.get("a", mode="c", **more) for more in ({}, {"device": "cpu"})]
        for again in (tensor.copy_on_write(), *got, *client.get_many(["a"], mode="c").values()):
            assert not again.copied and again.tolist() == tensor.tolist()  # by get(..., device=), that is
            assert again.read_only_view().read_only and not again.copy_on_write().read_only
        again = tensor.view("uint8").copy_on_write()
        assert not again.copied and again.read_only_view().read_only
        del capsule, shared


def test_what_is_held_can_be_handed_out_without_a_daemon(tmp_path):
    code = (
        "import os, signal, numpy as np, tensorlease\n"
        "c = tensorlease.connect(autostart=True)\n"
        "c.put('a', np.arange(5000)); t = c.get('a')\n"
        "pid = c.status().daemon_pid\n"
        "os.kill(pid, signal.SIGKILL)\n"
        "while os.path.exists(f'/proc/{pid}/fd/0'): pass\n"
        "print(t.numpy().sum(), np.asarray(t)[7])\n"
        "print(t.__dlpack__(max_version=(1, 0)) is not None)\n"
        "other = t.copy_on_write()\n"
        "other.numpy()[7] = 1\n"
        "print(other.numpy().sum(), t.numpy().sum(), other.version, bytes(t)[56])\n"
        "os.kill(tensorlease.connect(autostart=True).status().daemon_pid, signal.SIGTERM)\n"  # a new one cleans up
    )
    result = run_python(code, TENSORLEASE_SOCKET=str(tmp_path / "socket"))
    assert result.stdout == "12497500 7\nTrue\n12497494 12497500 1 7\n", result.stderr
