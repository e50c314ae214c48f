# SPDX-License-Identifier: Apache-2.0
"""Getting from a GPU: leases, and the ways to hand over a Tensor: DLPack, its exchange interface, CUDA's interface."""

import ctypes
import gc
import os
import threading
import weakref

import dlpack_abi as abi
import gpu_help
import pytest
from conftest import eventually, leases_of
from cuda_driver import LEGACY, PER_THREAD, Array, Child, Driver, Interface, Taken, run
from gpu_help import N, connect, publish_and_stay
from limits import limit

import tensorlease

try:
    import numpy
except ImportError:
    numpy = None

daemon, gpus = gpu_help.daemon, gpu_help.gpus


def each_export_has_a_lease():
    client, driver = connect(), Driver()
    other = connect()
    me = os.getpid()
    tensor = client.get("t", timeout=limit(10))
    eventually(lambda: leases_of(other, me) == 1)
    a, b = Taken(driver, tensor), Taken(driver, tensor, PER_THREAD)
    eventually(lambda: leases_of(other, me) == 3)
    unused = tensor.__dlpack__(stream=1, max_version=(1, 0))
    eventually(lambda: leases_of(other, me) == 4)
    del unused
    tensor.release()
    eventually(lambda: leases_of(other, me) == 2)
    with pytest.raises(BufferError, match="released"):
        tensor.__dlpack__(stream=1, max_version=(1, 0))
    assert a.read() == b.read() == bytes([5]) * N
    thread = threading.Thread(target=a.give_back)
    thread.start()
    thread.join()
    eventually(lambda: leases_of(other, me) == 1)
    cycle = [b]
    cycle.append(cycle)
    del b, cycle
    gc.collect()
    eventually(lambda: leases_of(other, me) == 0)
    client.close()


def its_properties_are_shown():
    client = connect()
    text = client.get("t", timeout=limit(10))._repr_html_()
    assert "cuda:0" in text and "3.0 MiB" in text and "<svg" not in text and "<img" not in text
    client.close()


def test_a_notebook_shows_its_properties_only(gpus):
    producer = Child(publish_and_stay, 5)
    producer.hear()
    run(its_properties_are_shown)
    producer.end()


def test_each_export_is_a_lease_of_its_own(gpus):
    producer = Child(publish_and_stay, 5)
    producer.hear()
    run(each_export_has_a_lease)
    producer.end()


class OwnedStream:
    """A stream object as other libraries have them: the stream goes with it."""

    def __init__(self, driver):
        self.handle = driver.stream()

    def __cuda_stream__(self):
        return 0, self.handle


def stream_stays():
    client, driver = connect(), Driver()
    stream = OwnedStream(driver)
    gone = weakref.ref(stream)
    tensor = client.get("t", stream=stream, timeout=limit(10))
    view = Taken(driver, tensor)
    del stream
    gc.collect()
    assert gone()
    tensor.release()
    del view
    gc.collect()
    assert not gone()
    client.close()


def test_the_stream_object_stays_as_long_as_the_tensor(gpus):
    producer = Child(publish_and_stay, 5)
    producer.hear()
    run(stream_stays)
    producer.end()


def many():
    client, driver = connect(), Driver()
    client.put("m/cpu", b"1234")
    with client.create("m/gpu", (64,), "uint8", device=0) as draft:
        Taken(driver, draft, LEGACY).fill(7)
    both = client.get_many(prefix="m/")
    assert {k: t.device for k, t in both.items()} == {"cpu": "cpu", "gpu": "cuda:0"}
    assert Taken(driver, both["gpu"]).read() == bytes([7]) * 64
    named = client.get_many(["m/gpu", "m/cpu"])
    assert Taken(driver, named["m/gpu"]).read() == bytes([7]) * 64
    path = os.path.join(os.environ["FAKECUDA_DIR"], "x.safetensors")
    client.save("m", path)
    client.load("saved", path)
    os.unlink(path)
    assert client.get("saved/gpu").bytes() == bytes([7]) * 64
    assert client.get("saved/cpu").bytes() == b"1234"
    for name in client.keys("saved/"):
        client.delete(name)
    client.delete("m/cpu")
    client.delete("m/gpu")


def test_many_at_once(gpus):
    run(many)


def put_many():
    client, driver, other = connect(), Driver(), Driver(1)
    a, b = Array(driver, (64,)).fill(3), Array(other, (100,)).fill(4)
    client.put_many({"a": a, "b": b, "c": b"1234"}, prefix="p/", metadata={"b": b"m"})
    driver.free(a.memory)  # the copies are made when the call returns
    other.free(b.memory)
    got = client.get_many(prefix="p/")
    assert {k: t.device for k, t in got.items()} == {"a": "cuda:0", "b": "cuda:1", "c": "cpu"}
    assert Taken(Driver(), got["a"]).read() == bytes([3]) * 64
    assert Taken(Driver(1), got["b"]).read() == bytes([4]) * 100
    assert got["b"].metadata == b"m"
    del got
    gc.collect()
    stream = Driver().stream()
    c = Array(Driver(), (64,)).fill(5)
    client.put_many({"p/a": c}, stream=stream)
    assert c.streams == [stream]
    assert Taken(Driver(), client.get("p/a")).read() == bytes([5]) * 64
    with pytest.raises(tensorlease.Error, match="evictable"):
        client.put_many({"p/a": c}, evictable=True)
    for name in "abc":
        client.delete("p/" + name)
    c.driver.free(c.memory)


def test_many_are_put_at_once(gpus):
    run(put_many)


def interfaces():
    client, driver = connect(), Driver()
    array = Array(driver, (8, 16), dtype=(2, 32, 1)).fill(0)
    view = Interface(array, "<f4", stream=array.work)
    gone = weakref.ref(view)
    assert client.publish("t", view) == (1, False)
    assert array.streams == []
    del view
    gc.collect()
    assert gone() is not None  # kept until nobody holds what was published
    tensor = client.get("t")
    assert (tensor.shape, tensor.dtype) == ((8, 16), "float32")
    interface = tensor.__cuda_array_interface__
    assert interface == {
        "version": 3,
        "shape": (8, 16),
        "typestr": "<f4",
        "data": (array.address, True),
        "strides": None,
        "stream": LEGACY,
    }
    assert client.get("t", stream=-1).__cuda_array_interface__["stream"] is None
    assert client.get("t", stream=array.work).__cuda_array_interface__["stream"] == array.work
    eventually(lambda: leases_of(client, os.getpid()) == 2)  # one for the legacy stream
    tensor.release()
    del tensor
    client.delete("t")
    eventually(lambda: gone() is None)
    with pytest.raises(BufferError, match="strides"):
        client.publish("t", Interface(array, "<f4", strides=(3, 2)))
    with pytest.raises(BufferError, match="typestr"):
        client.publish("t", Interface(array, "|O8"))
    with pytest.raises(BufferError, match="masked"):
        client.publish("t", Interface(array, "<f4", mask=array))
    with pytest.raises(BufferError, match="is not on a GPU"):
        client.publish("t", Interface(array, "<f4", data=(4096, False)))
    driver.free(array.memory)
    draft = client.create("t", 4, "int8", device=0)
    assert draft.__cuda_array_interface__ == {
        "version": 3,
        "shape": (4,),
        "typestr": "|i1",
        "data": (draft._address, False),
        "strides": None,
        "stream": None,
    }
    draft.abort()
    client.create("t", 4, "bfloat16", device=0).commit()
    assert not hasattr(client.get("t"), "__cuda_array_interface__")
    client.put("c", b"1234")
    assert not hasattr(client.get("c"), "__cuda_array_interface__")
    assert not hasattr(client.create("c", 4, "int8"), "__cuda_array_interface__")
    client.delete("t")
    client.delete("c")


def test_the_cuda_array_interface(gpus):
    run(interfaces)


def asked_for():
    client, driver = connect(), Driver()
    with client.create("t", (4, 4), "float32", device=0) as draft:
        assert abi.name_of(draft.__dlpack__()) == "dltensor"  # it is writable, so there is no flag to be lost
        with pytest.raises(BufferError, match="clone"):
            draft.__dlpack__(copy=True)
    tensor = client.get("t")
    for wrong in (0, -2, "1", 1.0, 1 << 80):
        with pytest.raises(BufferError, match="stream"):
            tensor.__dlpack__(stream=wrong, max_version=(1, 0))
        with pytest.raises(BufferError, match="stream"):
            draft_of(client).__dlpack__(stream=wrong)
    for good in (None, 1, 2, -1, driver.stream()):
        capsule = tensor.__dlpack__(stream=good, max_version=(1, 0))
        assert abi.versioned_of(capsule).flags == abi.READ_ONLY
    with pytest.raises(BufferError, match="unflagged"):
        tensor.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="unflagged"):
        tensor.__dlpack__()
    with pytest.raises(BufferError, match="clone"):
        tensor.__dlpack__(stream=1, max_version=(1, 0), copy=True)
    with pytest.raises(BufferError, match=r"\.cpu\(\)"):
        tensor.__dlpack__(stream=1, max_version=(1, 0), dl_device=(1, 0))
    with pytest.raises(BufferError, match="dl_device"):
        tensor.__dlpack__(stream=1, max_version=(1, 0), dl_device=(2, 1))
    tensor.__dlpack__(stream=1, max_version=(1, 0), dl_device=(2, 0), copy=False)
    free = tensor.unflagged()
    assert free.read_only and free.version == tensor.version
    assert abi.versioned_of(free.__dlpack__(stream=1, max_version=(1, 0))).flags == 0
    capsule = free.__dlpack__(stream=2)
    assert abi.name_of(capsule) == "dltensor"
    taken = Taken(driver, free, 1, copy=None)
    assert taken.shape == (4, 4)
    eventually(lambda: leases_of(client, os.getpid()) == 3)
    with pytest.raises(tensorlease.UnsupportedError, match="copy-on-write"):
        client.get("t", mode="c")
    with pytest.raises(tensorlease.UnsupportedError, match="copy-on-write"):
        tensor.copy_on_write()
    client.put("c", b"1")
    with pytest.raises(TypeError, match="on GPUs"):
        client.get("c").unflagged()
    assert client.get("c", stream=1).nbytes == 1  # ignored on the CPU
    with pytest.raises(TypeError, match="torch"):
        tensor.numpy()
    with pytest.raises(BufferError, match="GPU"):
        memoryview(tensor)
    with pytest.raises(BufferError, match="GPU"):
        bytes(tensor)
    draft = draft_of(client)
    with pytest.raises(TypeError, match="torch"):
        draft[0] = 1
    with pytest.raises(TypeError, match="torch"):
        draft.numpy()
    with pytest.raises(BufferError, match="GPU"):
        memoryview(draft)
    if numpy:
        with pytest.raises(TypeError, match="torch"):
            numpy.asarray(tensor)
        with pytest.raises((BufferError, RuntimeError)):
            numpy.from_dlpack(tensor)
    assert repr(tensor).endswith("read-only, cuda:0>")
    client.delete("t")
    client.delete("c")


def draft_of(client):
    return client.create("d", (4,), "float32", device=0)


def test_what_dlpack_is_asked_for(gpus):
    run(asked_for)


def exchanged():
    client, driver = connect(), Driver()
    with client.create("t", (64,), "uint8", device=0) as draft:
        Taken(driver, draft, LEGACY).fill(9)
    tensor = client.get("t")
    exchange = abi.exchange_of(tensor)
    stream = ctypes.c_void_p(77)
    assert exchange.stream(2, 0, ctypes.byref(stream)) == 0 and stream.value is None
    before = leases_of(client, os.getpid())
    for array, flags in ((tensor, abi.READ_ONLY), (tensor.unflagged(), 0)):
        out = ctypes.POINTER(abi.Versioned)()
        assert exchange.from_py(array, ctypes.byref(out)) == 0
        assert out.contents.flags == flags
        assert driver.read(out.contents.tensor.data, 64, LEGACY) == bytes([9]) * 64
        out.contents.deleter(out)
    del array
    eventually(lambda: leases_of(client, os.getpid()) == before)
    out, theirs = ctypes.POINTER(abi.Versioned)(), ctypes.py_object()
    assert exchange.from_py(tensor, ctypes.byref(out)) == 0
    assert exchange.to_py(out, ctypes.byref(theirs)) == 0
    foreign = theirs.value
    ctypes.pythonapi.Py_DecRef(theirs)  # ctypes does not know this one
    tensor.release()
    del tensor
    assert (foreign.device, foreign.name) == ("cuda:0", None)
    assert Taken(driver, foreign).read() == bytes([9]) * 64
    assert foreign.__cuda_array_interface__["stream"] == LEGACY
    client.delete("t")
    assert client.put("t", foreign) == 2
    assert client.publish("u", foreign) == (1, False)
    foreign.release()
    del foreign
    gc.collect()
    assert Taken(driver, client.get("u")).read() == bytes([9]) * 64
    client.delete("u")
    eventually(lambda: leases_of(client, os.getpid()) == 0)
    client.delete("t")


def test_the_exchange_interface(gpus):
    run(exchanged)
