# SPDX-License-Identifier: Apache-2.0
"""CuPy needs a GPU, so a double (cupy_double.py) makes its exact calls. A tensor in CPU memory must be refused with
nothing taken. A tensor on a GPU of the fake driver is taken as CuPy would take it. Tests of the double itself use
producers made by hand.
"""

import gc
import os

import dlpack_abi as abi
import pytest
from conftest import eventually, leases_of
from cuda_driver import Array, Child, Driver, FakeMachine
from cupy_double import CUDA, MANAGED, Device, Viewed, from_dlpack, with_ml_dtypes

import tensorlease

FAKE = os.environ.get("TL_TEST_FAKECUDA_LIB", "")


class Watched:
    """A Tensor or Draft that notes what is asked of it."""

    def __init__(self, array):
        self.array, self.calls = array, []

    def __dlpack_device__(self):
        self.calls.append("device")
        return self.array.__dlpack_device__()

    def __dlpack__(self, **asked):
        self.calls.append(asked)
        return self.array.__dlpack__(**asked)


@pytest.fixture(params=["r", "c", "draft"])
def ours(client, request):
    client.put("cupy/t", bytes(range(100)))
    if request.param == "draft":
        return client.create("cupy/draft", (10, 10), "uint8")
    return client.get("cupy/t", mode=request.param)


@pytest.mark.parametrize("asked", [{}, {"copy": False}, {"copy": True}])
def test_tensors_of_the_cpu_are_refused_by_their_device(ours, observer, asked):
    before = leases_of(observer, os.getpid())
    watched = Watched(ours)
    with pytest.raises(TypeError, match="arrays of the CPU"):
        from_dlpack(watched, **asked)
    assert watched.calls == ["device"]  # no capsule was asked for
    assert leases_of(observer, os.getpid()) == before


def test_its_request_is_answered_with_a_buffer_error(ours):
    """CuPy would take a TypeError for a producer that knows no versions, and ask again."""
    for copy in (None, False, True):
        with pytest.raises(BufferError, match="stream"):
            ours.__dlpack__(stream=Device.stream, max_version=(1, 0), copy=copy)
    with pytest.raises(BufferError, match="stream"):
        ours.__dlpack__(stream=Device.stream)


@pytest.mark.parametrize("way", [{"max_version": (1, 0)}, {"max_version": (1, 0), "copy": True}, {}])
def test_capsules_of_the_cpu_are_given_back(client, observer, way):
    """Without __dlpack_device__ CuPy sees the device only when it has consumed the capsule."""
    client.put("cupy/t", bytes(range(100)))
    before = leases_of(observer, os.getpid())
    tensor = client.get("cupy/t", mode="c")
    capsule = tensor.__dlpack__(**way)
    tensor.release()
    with pytest.raises(RuntimeError, match="device type 1"):
        from_dlpack(capsule)
    gc.collect()
    assert abi.name_of(capsule).startswith("used_")
    assert leases_of(observer, os.getpid()) == before
    with pytest.raises(ValueError, match="used"):
        from_dlpack(capsule)


def test_its_managed_arrays_are_given_back_where_there_is_no_gpu(client):
    producer = abi.Producer(device=(MANAGED, 0))
    with pytest.raises(BufferError, match="the array's device is managed memory, but its data is not on a GPU"):
        client.put("cupy/array", producer)
    assert producer.calls == [{"stream": 1, "max_version": (1, 3)}]
    assert producer.deleted == 1
    assert "cupy/array" not in client


def test_its_arrays_are_given_back_where_there_is_no_such_gpu(client):
    for call in (client.put, client.publish):
        producer = abi.Producer(device=(CUDA, 99))
        with pytest.raises(tensorlease.NoDeviceError):
            call("cupy/array", producer)
        assert producer.calls == [{"stream": 1, "max_version": (1, 3)}]
        assert producer.deleted == 1
    assert "cupy/array" not in client


# ---- Tensors on a GPU ----


@pytest.fixture
def gpu(address, monkeypatch):
    if not os.path.exists(FAKE):
        pytest.skip("TL_TEST_FAKECUDA_LIB does not name the fake driver")
    before = os.environ.get("LD_LIBRARY_PATH")
    monkeypatch.setenv("LD_LIBRARY_PATH", os.path.dirname(FAKE) + (f":{before}" if before else ""))
    machine = FakeMachine()
    monkeypatch.setenv("FAKECUDA_DIR", str(machine.path))
    yield machine
    assert machine.close() is None


def produce(link):
    """Fills the array on the current stream and tells nobody which, as CuPy does."""
    client, driver = tensorlease.connect(autostart=False), Driver()
    array = Array(driver, (4, 8), dtype=(2, 32, 1)).fill(7)
    client.publish("cupy/gpu", array)
    with client.create("cupy/bfloat16", 16, "bfloat16", device=0):
        pass
    link.send(array.streams)
    link.recv()
    client.delete("cupy/gpu")
    client.delete("cupy/bfloat16")
    eventually(lambda: array.deleted)
    driver.free(array.memory)


def consume(link):
    client, driver = tensorlease.connect(autostart=False), Driver()
    me = os.getpid()
    tensor = client.get("cupy/gpu")
    for stream in (1, 2, driver.stream()):
        Device.stream = stream
        watched = Watched(tensor)
        array = from_dlpack(watched)
        assert watched.calls == ["device", {"stream": stream, "max_version": (1, 0), "copy": None}]
        assert (array.device, array.dtype, array.shape) == ((CUDA, 0), "float32", (4, 8))
        assert array.strides == (32, 4)
        assert leases_of(client, me) == 2
        assert driver.read(array.address, 128, stream) == bytes([7]) * 128
        del array, watched
        eventually(lambda: leases_of(client, me) == 1)
    with pytest.raises(BufferError, match="copy"):
        from_dlpack(tensor, copy=True)
    assert from_dlpack(tensor, copy=False).shape == (4, 8)
    other = client.get("cupy/bfloat16")
    with pytest.raises(NotImplementedError):
        from_dlpack(other)
    assert with_ml_dtypes(other).dtype == "bfloat16"
    del other
    eventually(lambda: leases_of(client, me) == 1)
    waited = []
    viewed = Viewed(tensor, waited.append)
    assert waited == [1] and (viewed.shape, viewed.typestr, viewed.strides) == ((4, 8), "<f4", None)
    assert viewed.address == tensor._address
    del tensor
    eventually(lambda: leases_of(client, me) == 2)  # one for the stream that it waited for
    del viewed
    eventually(lambda: leases_of(client, me) == 0)
    draft = client.create("cupy/draft", (4, 8), "float32", device=0)
    written = from_dlpack(draft)
    assert draft.stream == Device.stream
    driver.fill(written.address, 1, 128, Device.stream)
    draft.commit()
    tensor = client.get("cupy/draft")
    Device.stream = driver.stream()
    array = from_dlpack(tensor)
    assert driver.read(array.address, 128, Device.stream) == bytes([1]) * 128
    client.delete("cupy/draft")
    link.recv()


def test_it_takes_tensors_on_a_gpu(gpu):
    producer = Child(produce)
    assert producer.hear() == [1]
    Child(consume).end()
    producer.end()


# ---- The double itself ----


def take(producer, **asked):
    return from_dlpack(producer, **asked)


def test_it_asks_on_the_tensors_device_for_a_version():
    class Producer(abi.Producer):
        def __dlpack__(self, **asked):
            self.on = Device.current
            return super().__dlpack__(**asked)

    producer = Producer(device=(CUDA, 3), shape=(2, 3), strides=(1, 2), byte_offset=8)
    array = take(producer)
    assert producer.calls == [{"stream": 1, "max_version": (1, 0), "copy": None}]
    assert (producer.on, Device.current) == (3, 0)
    assert (array.device, array.dtype, array.shape, array.strides) == ((CUDA, 3), "int32", (2, 3), (4, 8))
    assert array.address == producer.managed.tensor.data + 8
    assert producer.deleted == 0
    del array
    assert producer.deleted == 1


def test_it_asks_again_without_a_version_but_not_for_a_copy():
    producer = abi.Producer(device=(CUDA, 0))
    take(producer, copy=True)
    assert producer.calls == [{"stream": 1, "max_version": (1, 0), "copy": True}]

    class Old(abi.Producer):
        def __dlpack__(self, *, stream):
            self.calls.append(stream)
            return super().__dlpack__()

    old = Old(device=(CUDA, 0), legacy=True)
    array = take(old)
    assert old.calls[0] == 1 and abi.name_of(old.capsule) == "used_dltensor"
    del array
    assert old.deleted == 1
    with pytest.raises(TypeError):
        take(old, copy=True)
    assert Device.current == 0


def test_managed_memory_is_a_gpus():
    producer = abi.Producer(device=(MANAGED, 0))
    assert take(producer).device == (MANAGED, 0)
    gc.collect()
    assert producer.deleted == 1


@pytest.mark.parametrize("device", [3, 10, 11, 12, 99])
def test_other_devices_are_not_asked(device):
    producer = abi.Producer(device=(device, 0))
    with pytest.raises(TypeError, match=str(device)):
        take(producer)
    assert producer.calls == []
    liar = abi.Producer(device=(device, 0), says_device=(CUDA, 0))
    with pytest.raises(RuntimeError, match=str(device)):
        take(liar)
    gc.collect()
    assert liar.deleted == 1


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"dtype": (2, 32, 4)}, ValueError),
        ({"dtype": (4, 16, 1)}, NotImplementedError),
        ({"dtype": (5, 32, 1)}, TypeError),
        ({"dtype": (10, 8, 1)}, TypeError),
        ({"dtype": (17, 4, 1)}, TypeError),
        ({"dtype": (6, 1, 1)}, TypeError),
    ],
)
def test_what_it_cannot_take_is_given_back_once(wrong, error, legacy):
    class Producer(abi.Producer):  # if legacy, one of before DLPack 1.0
        def __dlpack__(self, *, stream, **versions):
            if self.legacy and versions:
                raise TypeError(versions)
            return super().__dlpack__()

    producer = Producer(device=(CUDA, 0), legacy=legacy, **wrong)
    with pytest.raises(error):
        take(producer)
    gc.collect()
    assert producer.deleted == 1


def test_another_major_version_is_given_back_once():
    producer = abi.Producer(device=(CUDA, 0), major=2)
    with pytest.raises(BufferError, match="version"):
        take(producer)
    gc.collect()
    assert producer.deleted == 1


def test_bfloat16_with_ml_dtypes():
    producer = abi.Producer(device=(CUDA, 0), dtype=(4, 16, 1))
    assert with_ml_dtypes(producer).dtype == "bfloat16"
    assert producer.deleted == 1
