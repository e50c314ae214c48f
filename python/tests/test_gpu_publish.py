# SPDX-License-Identifier: Apache-2.0
"""Publishing and putting GPU memory: what is shared in place, what is copied, and what is refused."""

import ctypes

import dlpack_abi as abi
import gpu_help
import pytest
from conftest import eventually
from cuda_driver import LEGACY, Array, Child, Driver, Interface, Taken, run
from gpu_help import N, connect, fill_draft_and_stay, publish_and_stay, take, take_back
from limits import limit

import tensorlease

daemon, gpus = gpu_help.daemon, gpu_help.gpus


@pytest.mark.parametrize("legacy", [False, True])
def test_a_tensor_is_published_where_it_is(gpus, observer, legacy):
    producer = Child(publish_and_stay, 7, {}, {"legacy": legacy})
    published, streams = producer.hear()
    assert published == (1, False)
    assert streams == ([1, 1] if legacy else [1])  # our stream, which it makes wait for its own
    run(take, 7)
    info = observer.stat("t")
    assert (info.shape, info.nbytes, info.lost) == ((N,), N, False)
    assert info.device == "cuda" and info.device_uuid.startswith("GPU-")
    assert observer.list() == [info]
    (usage,) = observer.devices()
    assert usage.uuid == info.device_uuid and usage.bytes_used >= N and usage.segments == 1
    producer.end()
    assert "t" not in observer


def puts():
    client, driver = connect(), Driver()
    array = Array(driver, (N,)).fill(1)
    assert client.put("t", array) == 1
    assert array.streams == [LEGACY]
    assert array.deleted == 1  # it belongs to the caller again
    array.fill(2)
    mine = driver.stream()
    assert client.put("t", array, stream=mine) == 2
    assert array.streams[1:] == [mine]
    driver.fill(array.address, 3, N, mine)  # after the copy
    assert client.put("u", Interface(array), stream=mine) == 1
    assert Taken(driver, client.get("t")).read() == bytes([2]) * N
    assert Taken(driver, client.get("u")).read() == bytes([3]) * N
    assert client.put("v", client.get("t")) == 1
    assert Taken(driver, client.get("v")).read() == bytes([2]) * N
    client.put_many({"a": array, "b": client.get("t"), "c": Interface(array)}, prefix="many/", stream=mine)
    for name, value in (("a", 3), ("b", 2), ("c", 3)):
        assert Taken(driver, client.get("many/" + name)).read() == bytes([value]) * N
        client.delete("many/" + name)
    driver.free(array.memory)
    ancient = Ancient(driver, (64,), legacy=True).fill(4)
    assert client.put("w", ancient) == 1
    assert Taken(driver, client.get("w")).read() == bytes([4]) * 64
    with pytest.raises(TypeError, match="stream"):
        client.put("w", ancient, stream=mine)
    driver.free(ancient.memory)
    strided = Array(driver, (4, 4))
    strided.strides[0], strided.strides[1] = 1, 4
    with pytest.raises(tensorlease.UnsupportedError, match="contiguous"):
        client.put("x", strided)
    assert client.publish("x", strided).copied is False
    tensor = client.get("x")
    assert (tensor.shape, tensor.strides) == ((4, 4), (1, 4))
    tensor.release()
    client.delete("x")
    eventually(lambda: strided.deleted == 2)
    strided.strides[0] = 0
    with pytest.raises(tensorlease.UnsupportedError, match="stride"):
        client.publish("x", strided)
    driver.free(strided.memory)
    for name in "tuvw":
        client.delete(name)


class Ancient(Array):
    """Does not know streams, so that it means the legacy one."""

    def __dlpack__(self):
        return super().__dlpack__()


def test_put_copies_on_the_gpu(gpus):
    run(puts)


def stagings():
    client, driver = connect(), Driver()
    managed = ctypes.c_uint64()
    driver.call("cuMemAllocManaged", ctypes.byref(managed), ctypes.c_size_t(N), ctypes.c_uint(1))
    array = Array(driver, (N,), memory=managed.value).fill(6)
    with pytest.raises(tensorlease.UnsupportedError, match="staging=True") as caught:
        client.publish("t", array)
    assert "TL_" not in str(caught.value) and "tl_" not in str(caught.value)
    assert array.deleted == 1
    assert client.publish("t", array, staging=True) == (1, True)
    eventually(lambda: array.deleted == 2)
    array = Array(driver, (N,), memory=managed.value, type=13).fill(6)  # as CuPy names such memory
    with pytest.raises(tensorlease.UnsupportedError, match="staging=True"):
        client.publish("m", array)
    assert client.publish("m", array, staging=True) == (1, True)
    client.put("m", array)
    eventually(lambda: array.deleted == 3)
    assert client.stat("m").device == "cuda:0"
    assert Taken(driver, client.get("m")).read() == bytes([6]) * N
    client.delete("m")
    driver.free(managed.value)
    tensor = client.get("t")
    assert Taken(driver, tensor).read() == bytes([6]) * N
    assert client.publish("u", tensor) == (1, False)
    client.delete("u")
    with pytest.raises(tensorlease.UnsupportedError, match="copied"):
        client.publish("c", b"1234", no_copy=True)
    with pytest.raises(TypeError, match="staging"):
        client.put("c", b"1234", staging=True)
    for device, says in (((10, 0), None), ((13, 0), (13, 0)), ((2, 0), (1, 0)), ((1, 0), (2, 0))):
        producer = abi.Producer(device=device, says_device=says or device)
        error = BufferError if says else tensorlease.UnsupportedError
        with pytest.raises(error, match="device"):
            client.publish("c", producer)
        assert producer.deleted == (1 if says else 0)
    assert "c" not in client
    client.delete("t")


def test_staging_and_refusals(gpus):
    run(stagings)


def take_named(name, byte):
    client, driver = connect(), Driver()
    return Taken(driver, client.get(name, timeout=limit(10))).read() == bytes([byte]) * N


def second_name(link):
    client, driver = connect(), Driver()
    tensor = client.get("t", timeout=limit(10))
    link.send(client.publish("u", tensor))
    tensor.release()
    assert Taken(driver, client.get("u")).read() == bytes([6]) * N
    link.recv()
    client.delete("u")


@pytest.mark.parametrize("kind", ["plain", "draft"])
def test_what_came_from_another_process_under_a_second_name(gpus, kind):
    producer = Child(fill_draft_and_stay, 6) if kind == "draft" else Child(publish_and_stay, 6)
    producer.hear()
    consumer = Child(second_name)
    assert consumer.hear() == (1, False)
    assert run(take_named, "u", 6)
    consumer.end()
    producer.end()


def on_the_second():
    client, driver = connect(), Driver(1)
    array = Array(driver, (N,)).fill(4)
    client.publish("t", Interface(array))
    assert client.stat("t").device == "cuda:1"
    client.delete("t")
    driver.free(array.memory)


def test_the_interfaces_device_is_its_pointers(gpus):
    run(on_the_second)


class OnlyOnCurrent(Array):
    """As PyTorch's tensors, it can be exported only while its GPU is current."""

    def __dlpack__(self, **asked):
        current = ctypes.c_int(-1)
        self.driver.call("cuCtxGetDevice", ctypes.byref(current))
        if current.value != self.driver.device:
            raise BufferError("Can't export tensors on a different CUDA device index")
        return super().__dlpack__(**asked)


def current_gpu(driver):
    context = ctypes.c_void_p()
    driver.call("cuCtxGetCurrent", ctypes.byref(context))
    return context.value


def on_two():
    client, second, first = connect(), Driver(1), Driver()
    arrays = [OnlyOnCurrent(d, (N,)).fill(n) for n, d in enumerate([first, second])]
    for context in first.context, None:
        first.call("cuCtxSetCurrent", context)
        was = current_gpu(first)
        client.publish("t", arrays[1])
        client.put("u", arrays[1])
        client.publish_many({"a": arrays[0], "b": arrays[1]})
        assert current_gpu(first) == was
        assert [client.stat(name).device for name in "tuab"] == ["cuda:1", "cuda:1", "cuda:0", "cuda:1"]
    for name in "tuab":
        client.delete(name)
    for array in arrays:
        eventually(lambda array=array: array.deleted == (2 if array is arrays[0] else 6))
        array.driver.free(array.memory)


def test_arrays_on_a_gpu_that_is_not_current(gpus):
    run(on_two)


def closes_first():
    client, driver = connect(), Driver()
    other = connect()
    array = Array(driver, (N,)).fill(1)
    client.publish("t", array)
    client.close()
    taken = Taken(driver, other.get("t"))
    assert taken.read() == bytes([1]) * N
    del taken
    take_back(other, array)


def test_what_was_published_stays_when_the_client_is_closed(gpus):
    run(closes_first)


def publish_many():
    client, driver = connect(), Driver()
    one, two = Array(driver, (N,)).fill(1), Array(driver, (N,), legacy=True).fill(2)
    assert client.publish_many({"one": one, "two": two, "cpu": b"3"}, prefix="m/", metadata=b"all") == 1
    for name, array, value in (("one", one, 1), ("two", two, 2)):
        tensor = client.get("m/" + name)
        assert tensor.metadata == b"all" and Taken(driver, tensor).read() == bytes([value]) * N
        assert array.deleted == 0  # the library has it
    with pytest.raises(TypeError):
        client.publish_many({"one": one, "two": object()}, prefix="m/")
    assert client.stat("m/one").version == 1
    del tensor
    for name in ("one", "two", "cpu"):
        client.delete("m/" + name)
    eventually(lambda: one.deleted and two.deleted)
    for array in (one, two):
        driver.free(array.memory)


def test_many_are_published_where_they_are(gpus):
    run(publish_many)


def rename_and_read():
    client, driver = connect(), Driver()
    assert client.rename("t", "u") == 1
    assert client.keys() == ["u"]
    published = client.publish("v", client.get("u"), no_copy=True)
    assert not published.copied
    for name in ("u", "v"):
        assert Taken(driver, client.get(name)).read() == bytes([3]) * N
        client.delete(name)


def publish_and_wait(link):
    client, driver = connect(), Driver()
    array = Array(driver, (N,)).fill(3)
    client.publish("t", array)
    link.send("published")
    link.recv()
    eventually(lambda: array.deleted)
    driver.free(array.memory)


def test_a_tensor_on_a_gpu_is_renamed(daemon, gpus):
    child = Child(publish_and_wait)
    assert child.hear() == "published"
    run(rename_and_read)
    child.tell()
    child.end()
