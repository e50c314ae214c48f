# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs, on the fake driver of the project's own tests. Each child is a process that uses CUDA; the test
itself never does."""

import asyncio
import ctypes
import gc
import os
import signal
import threading
import weakref
from pathlib import Path

import dlpack_abi as abi
import pytest
from conftest import eventually, leases_of, run_daemon
from cuda_driver import LEGACY, PER_THREAD, Array, Child, Driver, FakeMachine, Interface, Taken, run

import tensorlease

try:
    import numpy
except ImportError:
    numpy = None

N = 3 << 20
FAKE = os.environ.get("TL_TEST_FAKECUDA_LIB", "")
pytestmark = pytest.mark.skipif(
    not os.path.exists(FAKE), reason="TL_TEST_FAKECUDA_LIB does not name the fake driver (`make test-python` does)"
)


@pytest.fixture
def daemon():
    """One for each test: versions start from 1."""
    with run_daemon() as address:
        yield address


@pytest.fixture
def gpus(address, monkeypatch):
    """Two GPUs that only this test has. Nothing may be left on them, and no rule of CUDA broken."""
    before = os.environ.get("LD_LIBRARY_PATH")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(FAKE).parent) + (f":{before}" if before else ""))
    machine = FakeMachine()
    monkeypatch.setenv("FAKECUDA_DIR", str(machine.path))
    yield machine
    assert machine.close() is None


def connect():
    return tensorlease.connect(autostart=False)


# ---- Publishing what is there ----


def publish_and_stay(link, byte, how, asked):
    client, driver = connect(), Driver()
    array = Array(driver, (N,), offset=1 << 20, **how)
    array.fill(byte)
    published = client.publish("t", array, **asked)
    link.send((published, array.streams))
    link.recv()
    assert array.deleted == 0
    client.delete("t")
    eventually(lambda: array.deleted)
    assert array.deleted == 1
    driver.free(array.memory)


def take(byte, stream=None):
    client, driver = connect(), Driver()
    tensor = client.get("t", timeout=10)
    assert (tensor.device, tensor.__dlpack_device__()) == ("cuda:0", (2, 0))
    assert (tensor.shape, tensor.dtype, tensor.nbytes, tensor.read_only) == ((N,), "uint8", N, True)
    assert tensor.withdrawn is False
    taken = Taken(driver, tensor, stream)
    assert taken.managed.flags == abi.READ_ONLY
    assert (taken.device, taken.shape) == ((2, 0), (N,))
    assert taken.address == tensor._address
    assert taken.read() == bytes([byte]) * N
    del tensor, taken
    gc.collect()
    return leases_of(client, os.getpid())


@pytest.mark.parametrize("legacy", [False, True])
def test_a_tensor_is_published_where_it_is(gpus, observer, legacy):
    producer = Child(publish_and_stay, 7, {"legacy": legacy}, {})
    published, streams = producer.hear()
    assert published == (1, False)
    assert streams == ([1, 1] if legacy else [1])  # ours, which it makes wait for its own
    assert run(take, 7) == 0
    info = observer.stat("t")
    assert (info.shape, info.nbytes, info.withdrawn) == ((N,), N, False)
    assert info.device == "cuda" and info.device_uuid.startswith("GPU-")
    assert observer.list() == [info]
    (usage,) = observer.devices()
    assert usage.uuid == info.device_uuid and usage.bytes_used >= N and usage.segments == 1
    producer.end()
    assert "t" not in observer


def test_the_users_stream_is_the_one_that_is_asked_for(gpus):
    for version, (asked, named) in enumerate(((-1, -1), (2, 2), (1, 1)), 1):
        producer = Child(publish_and_stay, 8, {}, {"stream": asked, "sealed": asked != -1})
        assert producer.hear() == ((version, False), [named])
        if asked != -1:
            assert run(take, 8) == 0
        producer.end()


def two_kinds_of_stream_objects(link):
    client, driver = connect(), Driver()
    mine = driver.stream()

    class Torch:
        cuda_stream = mine

    class TorchDefault:
        cuda_stream = 0

    class Cupy:
        ptr = mine

    class Core:
        def __cuda_stream__(self):
            return (0, mine)

    class Numba:
        handle = ctypes.c_void_p(mine)

    for stream, number in ((Torch(), mine), (TorchDefault(), 1), (Cupy(), mine), (Core(), mine), (Numba(), mine)):
        array = Array(driver, (16,)).fill(1)
        client.publish("t", array, stream=stream)
        assert array.streams == [number]
        client.delete("t")
        eventually(lambda array=array: array.deleted)
        driver.free(array.memory)
    array = Array(driver, (16,)).fill(1)
    for wrong in (0, -2, 1 << 70):
        with pytest.raises((ValueError, OverflowError)):
            client.publish("t", array, stream=wrong)
    with pytest.raises(ValueError, match="give the stream object"):
        client.put("t", array, stream=0)
    with pytest.raises(TypeError, match="no stream"):
        client.get("t", stream="main")
    assert array.streams == [] and array.deleted == 0
    driver.free(array.memory)
    link.recv()


def test_stream_objects_of_other_libraries(gpus):
    Child(two_kinds_of_stream_objects).end()


def test_consumers_wait_for_what_the_producer_queued(gpus):
    """The producer's GPU stands still: a consumer that waits does not come back before it runs again, and one that asks
    for no order sees what was there before."""
    producer = Child(publish_held)
    producer.hear()
    gpus.hold(producer.pid)
    producer.tell()
    assert producer.hear() == (1, False)
    waiting = Child(tell_what_is_seen)
    stale, pending = waiting.hear()
    assert stale == bytes([3]) * 64  # on a stream that was not told to wait
    assert pending  # on one that was, nothing has come yet
    gpus.hold(0)
    assert waiting.hear() == bytes([4]) * 64
    waiting.end()
    producer.end()


def publish_held(link):
    client, driver = connect(), Driver()
    array = Array(driver, (64,)).fill(3)
    driver.synchronize(array.work)
    link.send("written once")
    link.recv()
    array.fill(4)  # stands still
    link.send(client.publish("t", array))
    link.recv()
    client.delete("t")
    eventually(lambda: array.deleted)
    driver.free(array.memory)


def tell_what_is_seen(link):
    client, driver = connect(), Driver()
    tensor = client.get("t")
    unordered = Taken(driver, tensor, -1)
    unordered.stream = driver.stream()
    stale = unordered.read()
    ordered = Taken(driver, tensor)
    busy = driver.library.cuStreamQuery(ctypes.c_void_p(ordered.stream)) == 600
    link.send((stale, busy))
    link.send(ordered.read())
    link.recv()


def release_defers(link):
    client, driver = connect(), Driver()
    tensor = client.get("t")
    taken = Taken(driver, tensor)
    taken.read()
    tensor.release()
    link.send("taken")
    link.recv()  # our GPU stands still from now on
    to = driver.alloc(N)
    driver.call(
        "cuMemcpyDtoDAsync_v2",
        ctypes.c_uint64(to),
        ctypes.c_uint64(taken.address),
        ctypes.c_size_t(N),
        ctypes.c_void_p(taken.stream),
    )
    taken.give_back()  # does not wait
    link.send("given back")
    link.recv()
    driver.synchronize(taken.stream)
    driver.free(to)


def test_a_lease_lasts_as_long_as_the_consumers_queued_work(gpus, observer):
    producer = Child(publish_and_stay, 9, {}, {})
    producer.hear()
    consumer = Child(release_defers)
    consumer.hear()
    gpus.hold(consumer.pid)
    consumer.tell()
    consumer.hear()
    assert leases_of(observer, consumer.pid) == 1
    gpus.hold(0)
    eventually(lambda: leases_of(observer, consumer.pid) == 0)
    consumer.end()
    producer.end()


def each_export_has_a_lease(link):
    client, driver = connect(), Driver()
    other = connect()
    me = os.getpid()
    tensor = client.get("t", timeout=10)
    assert leases_of(other, me) == 1
    a, b = Taken(driver, tensor), Taken(driver, tensor, PER_THREAD)
    assert leases_of(other, me) == 3
    unused = tensor.__dlpack__(stream=1, max_version=(1, 0))
    assert leases_of(other, me) == 4
    del unused
    tensor.release()
    assert leases_of(other, me) == 2
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
    link.recv()


def test_each_export_is_a_lease_of_its_own(gpus):
    producer = Child(publish_and_stay, 5, {}, {})
    producer.hear()
    Child(each_export_has_a_lease).end()
    producer.end()


def hold_and_wait(link):
    client, driver = connect(), Driver()
    taken = [Taken(driver, client.get("t", timeout=10)) for _ in range(5)]
    link.send(len(taken))
    link.recv()


def test_a_killed_consumer_holds_nothing(gpus, observer):
    producer = Child(publish_and_stay, 5, {}, {})
    producer.hear()
    consumer = Child(hold_and_wait)
    consumer.hear()
    assert leases_of(observer, consumer.pid) == 5
    consumer.kill()
    eventually(lambda: leases_of(observer, consumer.pid) == 0)
    producer.end()


# ---- Withdrawn ----


def publish_again(link, byte):
    client, driver = connect(), Driver()
    array = Array(driver, (N,)).fill(byte)
    link.send(client.publish("t", array).version)
    link.recv()
    client.delete("t")
    eventually(lambda: array.deleted)
    driver.free(array.memory)


def sees_it_go(link):
    client, driver = connect(), Driver()
    tensor = client.get("t", timeout=10)
    taken = Taken(driver, tensor)
    taken.read()
    link.send("got")
    link.recv()  # the producer is dead
    eventually(lambda: tensor.withdrawn)
    with pytest.raises(tensorlease.WithdrawnError, match="gone"):
        client.get("t")
    with pytest.raises(tensorlease.WithdrawnError, match="gone"):
        client.get("t", timeout=0.05)
    with pytest.raises(tensorlease.WithdrawnError, match="'t'"):
        client.get_many(["t"])
    with pytest.raises(tensorlease.WithdrawnError, match="'t'"):
        client.get_many(["t"], timeout=0.05)
    with pytest.raises(tensorlease.WithdrawnError):
        tensor.__dlpack__(stream=1, max_version=(1, 0))
    with pytest.raises(tensorlease.TimeoutError):
        asyncio.run(client.aget("t", timeout=0.05))
    info = client.stat("t")
    assert info.withdrawn and info.version == 1 and "t" in client
    link.send("waiting")
    again = client.get("t", timeout=60)  # waits for it to be published anew
    assert again.version == 2
    assert Taken(driver, again).read() == bytes([2]) * N
    link.send("back")
    link.recv()


def test_a_dead_producers_tensor_is_withdrawn(gpus, observer):
    producer = Child(publish_again, 1)
    producer.hear()
    consumer = Child(sees_it_go)
    consumer.hear()
    producer.kill()
    consumer.tell()
    assert consumer.hear() == "waiting"
    assert observer.stat("t").withdrawn
    again = Child(publish_again, 2)
    assert again.hear() == 2
    assert consumer.hear() == "back"
    consumer.end()
    again.end()


async def _wait_for_anew(client):
    return await client.aget("t", timeout=60)


def waits_for_anew(link):
    client, driver = connect(), Driver()
    eventually(lambda: client.stat("t").withdrawn)
    link.send("waiting")
    tensor = asyncio.run(_wait_for_anew(client))
    link.send(tensor.version)
    link.recv()


def test_aget_waits_for_a_withdrawn_tensor_to_come_back(gpus, observer):
    producer = Child(publish_again, 1)
    producer.hear()
    producer.kill()
    eventually(lambda: observer.stat("t").withdrawn)
    consumer = Child(waits_for_anew)
    consumer.hear()
    again = Child(publish_again, 2)
    assert again.hear() == 2
    assert consumer.hear() == 2
    consumer.end()
    again.end()


# ---- Drafts ----


def drafts(link):
    client, driver = connect(), Driver(1)
    with client.empty("t", (N // 4,), "float32", device="cuda:1", metadata=b"m") as draft:
        assert (draft.device, draft.__dlpack_device__(), draft.state) == ("cuda:1", (2, 1), "open")
        assert draft.stream is None
        written = Taken(driver, draft, driver.stream())
        assert written.managed.flags == 0
        assert draft.stream == written.stream
        written.fill(0)
    assert (draft.version, draft.state) == (1, "committed")
    written.give_back()
    tensor = client.get("t")
    assert (tensor.metadata, tensor.dtype, tensor.device) == (b"m", "float32", "cuda:1")
    assert Taken(driver, tensor).read() == bytes(N)
    link.send(1)
    link.recv()
    for device in (0, "cuda", (2, 0)):
        draft = client.create("u", 4, "int8", device=device)
        assert draft.device == "cuda:0"
        draft.abort()
        with pytest.raises(BufferError, match="aborted"):
            draft.__dlpack__(stream=1)
    assert client.create("u", 4, "int8", device="cpu").device == "cpu"
    for wrong in ("gpu", "cuda:-1", -1, (10, 0), 1.5, "cuda:x"):
        with pytest.raises(ValueError, match="device"):
            client.create("u", 4, "int8", device=wrong)
    with pytest.raises(tensorlease.NoDeviceError, match="no GPU 2"):
        client.create("u", 4, "int8", device=2)
    with pytest.raises(RuntimeError, match="on purpose"), client.create("u", 4, "int8", device=0):
        raise RuntimeError("on purpose")
    assert "u" not in client
    empty = client.create("u", (0, 3), "int8", device=0)
    assert empty.commit() == 1
    assert client.get("u").shape == (0, 3)
    client.delete("t")
    client.delete("u")


def get_zeros(byte):
    client, driver = connect(), Driver()
    tensor = client.get("t", timeout=10)
    assert tensor.device == "cuda:1"
    assert tensor.__dlpack_device__() == (2, 1)
    return Taken(Driver(1), tensor).read() == bytes([byte]) * N


def test_drafts_on_a_gpu(gpus):
    producer = Child(drafts)
    producer.hear()
    assert run(get_zeros, 0)
    producer.end()


def drafts_and_streams(link):
    client, driver = connect(), Driver()

    def made(name="t"):
        return client.create(name, (64,), "uint8", device=0)

    draft, a, b = made(), driver.stream(), driver.stream()
    draft.__dlpack__(stream=a)
    draft.__dlpack__(stream=-1)
    assert draft.stream == a
    draft.__dlpack__(stream=b)
    with pytest.raises(ValueError, match="several streams"):
        draft.commit()
    assert draft.state == "open"
    draft.commit(stream=b)
    draft = made()
    draft.__dlpack__()
    assert draft.stream == LEGACY
    draft.stream = a
    draft.__dlpack__(stream=b)
    assert draft.stream == a
    with pytest.raises(ValueError, match="legacy"):
        draft.stream = 0
    with pytest.raises(TypeError):
        del draft.stream
    assert draft.commit() == 2
    draft = made()
    assert client.publish("t", draft, stream=b) == (3, False)
    draft = made()
    written = Taken(driver, draft).fill(6)
    assert client.publish("t", Rewrapped(driver, written, a)) == (4, False)
    assert draft.state == "committed"
    del written
    assert Taken(driver, client.get("t")).read() == bytes([6]) * 64
    with pytest.raises(ValueError, match="on the CPU"):
        client.create("c", 4, "int8").stream = 1
    client.delete("t")
    link.recv()


class Rewrapped:
    """Another library's tensor over memory of a draft."""

    def __init__(self, driver, taken, stream):
        self.array = Array(driver, taken.shape, memory=taken.address)
        self.taken = taken

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **asked):
        self.array.driver.wait(asked["stream"], self.taken.stream)
        return self.array.__dlpack__(**asked)


def test_on_which_stream_a_draft_is_written(gpus):
    Child(drafts_and_streams).end()


def publish_draft_and_stay(link):
    client, driver = connect(), Driver()
    with client.create("t", (N,), "uint8", device=0) as draft:
        written = Taken(driver, draft).fill(3)
        driver.synchronize(written.stream)
        written.give_back()
    with client.create("t", (N,), "uint8", device=0) as draft:
        written = Taken(driver, draft).fill(5)
        driver.synchronize(written.stream)
        draft.stream = -1  # is written: nobody has to wait, not even to see that it is
    written.give_back()
    link.send(draft.version)
    link.recv()


def test_what_a_draft_published_outlives_its_producer(gpus, observer):
    producer = Child(publish_draft_and_stay)
    assert producer.hear() == 2
    pid = producer.pid
    producer.kill()
    eventually(lambda: pid not in [c.pid for c in observer.clients()])
    assert not observer.stat("t").withdrawn
    assert run(take, 5) == 0
    observer.delete("t")


def test_consumers_wait_for_the_stream_that_filled_a_draft(gpus):
    producer = Child(publish_held_draft)
    producer.hear()
    gpus.hold(producer.pid)
    producer.tell()
    producer.hear()
    consumer = Child(tell_when_seen)
    assert consumer.hear() is True
    gpus.hold(0)
    assert consumer.hear() == bytes([8]) * 64
    consumer.end()
    producer.end()


def publish_held_draft(link):
    client, driver = connect(), Driver()
    draft = client.create("t", (64,), "uint8", device=0)
    written = Taken(driver, draft)
    link.send("ready")
    link.recv()
    written.fill(8)
    link.send(draft.commit())
    link.recv()
    written.give_back()
    client.delete("t")


def tell_when_seen(link):
    client, driver = connect(), Driver()
    ordered = Taken(driver, client.get("t"))
    link.send(driver.library.cuStreamQuery(ctypes.c_void_p(ordered.stream)) == 600)
    link.send(ordered.read())
    link.recv()


# ---- Putting ----


def puts(link):
    client, driver = connect(), Driver()
    array = Array(driver, (N,)).fill(1)
    assert client.put("t", array) == 1
    assert array.streams == [LEGACY]
    assert array.deleted == 1  # it is the caller's again
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
    with pytest.raises(tensorlease.UnsupportedError, match="publish"):
        client.put_many({"a": array})
    with pytest.raises(tensorlease.UnsupportedError, match="publish"):
        client.put_many({"a": client.get("t")})
    with pytest.raises(tensorlease.UnsupportedError, match="publish"):
        client.put_many({"a": Interface(array)})
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
    with pytest.raises(tensorlease.UnsupportedError, match="contiguous"):
        client.publish("x", strided)
    assert strided.deleted == 2
    driver.free(strided.memory)
    for name in "tuvw":
        client.delete(name)
    link.recv()


class Ancient(Array):
    """Knows no streams, and so means the legacy one."""

    def __dlpack__(self):
        return super().__dlpack__()


def test_put_copies_on_the_gpu(gpus):
    Child(puts).end()


def test_put_without_a_stream_returns_when_the_copy_is_made(gpus):
    producer = Child(put_while_held)
    producer.hear()
    gpus.hold(producer.pid)
    producer.tell()
    assert not producer.link.poll(0.2)  # a short time in which it must not return; it hangs on our word
    gpus.hold(0)
    assert producer.hear() == 1
    producer.end()


def put_while_held(link):
    client, driver = connect(), Driver()
    array = Array(driver, (64,)).fill(1)
    driver.synchronize(array.work)
    link.send("ready")
    link.recv()
    link.send(client.put("t", array))
    link.recv()
    driver.free(array.memory)
    client.delete("t")


# ---- __cuda_array_interface__ ----


def interfaces(link):
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
    assert leases_of(client, os.getpid()) == 2  # one for the legacy stream
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
    with pytest.raises(BufferError, match="no GPU"):
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
    link.recv()


def test_the_cuda_array_interface(gpus):
    Child(interfaces).end()


def on_the_second(link):
    client, driver = connect(), Driver(1)
    array = Array(driver, (N,)).fill(4)
    client.publish("t", Interface(array))
    assert client.stat("t").device == "cuda:1"
    client.delete("t")
    link.recv()
    driver.free(array.memory)


def test_the_interfaces_device_is_its_pointers(gpus):
    Child(on_the_second).end()


# ---- What __dlpack__ is asked for ----


def asked_for(link):
    client, driver = connect(), Driver()
    with client.create("t", (4, 4), "float32", device=0) as draft:
        assert abi.name_of(draft.__dlpack__()) == "dltensor"  # writable: no flag to be lost
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
    assert leases_of(client, os.getpid()) == 3
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
    link.recv()


def draft_of(client):
    return client.create("d", (4,), "float32", device=0)


def test_what_dlpack_is_asked_for(gpus):
    Child(asked_for).end()


def exchanged(link):
    client, driver = connect(), Driver()
    with client.create("t", (64,), "uint8", device=0) as draft:
        Taken(driver, draft, LEGACY).fill(9)
    tensor = client.get("t")
    get = abi.api.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = (ctypes.c_void_p * 7).from_address(get(type(tensor).__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
    from_py = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(table[3])
    to_py = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(table[4])
    stream_of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)(table[6])
    stream = ctypes.c_void_p(77)
    assert stream_of(2, 0, ctypes.byref(stream)) == 0 and stream.value is None
    before = leases_of(client, os.getpid())
    for array, flags in ((tensor, abi.READ_ONLY), (tensor.unflagged(), 0)):
        out = ctypes.POINTER(abi.Versioned)()
        assert from_py(array, ctypes.byref(out)) == 0
        assert out.contents.flags == flags
        assert driver.read(out.contents.tensor.data, 64, LEGACY) == bytes([9]) * 64
        out.contents.deleter(out)
    del array
    assert leases_of(client, os.getpid()) == before
    out, theirs = ctypes.POINTER(abi.Versioned)(), ctypes.c_void_p()
    assert from_py(tensor, ctypes.byref(out)) == 0
    assert to_py(out, ctypes.byref(theirs)) == 0
    foreign = ctypes.cast(theirs, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(foreign))
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
    link.recv()


def test_the_exchange_interface(gpus):
    Child(exchanged).end()


# ---- Staging, second names, errors of producers ----


def stagings(link):
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
    driver.free(managed.value)
    tensor = client.get("t")
    assert Taken(driver, tensor).read() == bytes([6]) * N
    with pytest.raises(tensorlease.UnsupportedError, match="staging=True"):
        client.publish("u", tensor)
    with pytest.raises(tensorlease.UnsupportedError, match="copied"):
        client.publish("c", b"1234", no_copy=True)
    with pytest.raises(TypeError, match="staging"):
        client.put("c", b"1234", staging=True)
    for device, says in (((10, 0), None), ((13, 0), None), ((2, 0), (1, 0)), ((1, 0), (2, 0))):
        producer = abi.Producer(device=device, says_device=says or device)
        error = BufferError if says else tensorlease.UnsupportedError
        with pytest.raises(error, match="device"):
            client.publish("c", producer)
        assert producer.deleted == (1 if says else 0)
    assert "c" not in client
    client.delete("t")
    link.recv()


def test_staging_and_refusals(gpus):
    Child(stagings).end()


def second_name(link, kind):
    client, driver = connect(), Driver()
    tensor = client.get("t", timeout=10)
    with pytest.raises(tensorlease.UnsupportedError, match="staging=True"):
        client.publish("u", tensor)
    link.send(client.publish("u", tensor, staging=True))
    tensor.release()
    assert Taken(driver, client.get("u")).read() == bytes([6]) * N
    link.recv()
    client.delete("u")


def fill_draft_and_stay(link, byte):
    client, driver = connect(), Driver()
    with client.create("t", (N,), "uint8", device=0) as draft:
        Taken(driver, draft, LEGACY).fill(byte)
    link.send(draft.version)
    link.recv()
    client.delete("t")


@pytest.mark.parametrize("kind", ["plain", "draft"])
def test_what_came_from_another_process_under_a_second_name(gpus, kind):
    producer = Child(fill_draft_and_stay, 6) if kind == "draft" else Child(publish_and_stay, 6, {}, {})
    producer.hear()
    consumer = Child(second_name, kind)
    assert consumer.hear() == (1, kind == "plain")  # what is exported by descriptors can be so again
    assert run(take_named, "u", 6)
    consumer.end()
    producer.end()


def take_named(name, byte):
    client, driver = connect(), Driver()
    return Taken(driver, client.get(name, timeout=10)).read() == bytes([byte]) * N


def test_sealed_tensors_need_no_waiting(gpus):
    producer = Child(publish_and_stay, 5, {}, {"sealed": True})
    producer.hear()
    gpus.hold(producer.pid)  # whatever it does now
    assert run(take_now, 5)
    gpus.hold(0)
    producer.end()


def seals_a_draft(link):
    client, driver = connect(), Driver()
    draft = client.create("t", (N,), "uint8", device=0)
    written = Taken(driver, draft)
    link.send("ready")
    link.recv()
    written.fill(5)
    link.send(client.publish("t", draft, sealed=True))
    link.recv()
    written.give_back()
    client.delete("t")


def test_a_draft_may_be_sealed(gpus):
    producer = Child(seals_a_draft)
    producer.hear()
    gpus.hold(producer.pid)
    producer.tell()
    assert not producer.link.poll(0.2)  # as above: it hangs on our word
    gpus.hold(0)
    assert producer.hear() == (1, False)
    gpus.hold(producer.pid)
    assert run(take_now, 5)
    gpus.hold(0)
    producer.end()


def take_now(byte):
    client, driver = connect(), Driver()
    return Taken(driver, client.get("t"), -1).peek() == bytes([byte]) * N


# ---- Devices ----


def devices_here():
    return [(d.number, d.uuid) for d in tensorlease.cuda_devices()]


def test_two_devices_under_other_numbers(gpus, observer, monkeypatch):
    assert [n for n, _ in run(devices_here)] == [0, 1]
    uuids = [uuid for _, uuid in run(devices_here)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert run(devices_here) == [(0, uuids[1]), (1, uuids[0])]
    producer = Child(drafts)  # on its 1, the first here
    producer.hear()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert observer.stat("t").device_uuid == uuids[0]
    assert run(number_of_t) == "cuda:0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuids[1])
    assert uuids[0] in run(why_not)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" in run(why_none)
    producer.end()


def number_of_t():
    client, driver = connect(), Driver()
    tensor = client.get("t", timeout=10)
    assert Taken(driver, tensor).read() == bytes(N)
    assert client.stat("t").device == tensor.device
    return tensor.device


def why_not():
    with pytest.raises(tensorlease.NoDeviceError) as caught:
        connect().get("t")
    return str(caught.value)


def why_none():
    with pytest.raises(tensorlease.NoDeviceError) as caught:
        tensorlease.cuda_devices()
    return str(caught.value)


def test_without_any_driver(gpus, monkeypatch):
    producer = Child(drafts)
    producer.hear()
    monkeypatch.setenv("FAKECUDA_INIT", "100")
    assert "CUDA" in run(nothing_works)
    monkeypatch.setenv("FAKECUDA_INIT", "0")
    producer.end()


def test_a_driver_that_cannot_be_loaded(gpus, tmp_path, monkeypatch):
    (tmp_path / "libcuda.so.1").write_bytes(b"not a library")
    producer = Child(drafts)
    producer.hear()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "libcuda.so.1 cannot be loaded" in run(nothing_works)
    producer.end()


def nothing_works():
    client = connect()
    info = client.stat("t")
    assert info.device == "cuda" and not info.withdrawn
    assert client.devices()[0].uuid == info.device_uuid
    for call in (
        lambda: client.get("t"),
        lambda: client.get("t", timeout=5),
        lambda: client.create("u", 4, "int8", device=0),
        lambda: client.put("u", abi.Producer(device=(2, 0))),
        lambda: client.publish("u", abi.Producer(device=(2, 0))),
        tensorlease.cuda_devices,
    ):
        with pytest.raises(tensorlease.NoDeviceError, match="CUDA cannot be used") as caught:
            call()
    client.put("c", b"1")
    client.delete("c")
    return str(caught.value)


# ---- fork, ends ----


def forks(link):
    client, driver = connect(), Driver()
    with client.create("t", (N,), "uint8", device=0) as draft:
        Taken(driver, draft, LEGACY).fill(1)
    tensor = client.get("t")
    draft = client.create("d", (N,), "uint8", device=0)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        said = []
        for call in (
            lambda: tensor.__dlpack__(stream=1, max_version=(1, 0)),
            lambda: tensor.__cuda_array_interface__,
            lambda: client.put("u", tensor),
            lambda: draft.__dlpack__(stream=1),
            lambda: client.get("t"),
            lambda: client.create("v", 1, "int8", device=0),
        ):
            try:
                call()
                said.append("nothing")
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
        tensor.release()
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0
    said = open(read).read().split("\n")
    draft.abort()
    assert Taken(driver, tensor).read() == bytes([1]) * N
    client.delete("t")
    link.send(said)
    link.recv()


def test_a_forked_child_is_told_that_cuda_does_not_work(gpus):
    child = Child(forks)
    said = child.hear()
    for what in said[:3]:
        assert what.startswith("BufferError") and "spawn" in what, said
    assert said[3].startswith("BufferError") and "fork" in said[3]
    for what in said[4:]:
        assert what.startswith("NoDeviceError") and "fork" in what, said
    child.end()


def forks_before(link):
    """A server that never uses a GPU itself, and workers that do."""
    client = connect()
    client.put("c", b"1")
    pid = os.fork()
    if not pid:
        right = False
        try:
            driver = Driver()
            right = Taken(driver, client.get("t")).read() == bytes([6]) * N
        finally:
            os._exit(0 if right else 1)
    link.send(os.waitpid(pid, 0)[1])
    client.delete("c")
    link.recv()


def test_a_forked_child_may_be_the_first_to_use_cuda(gpus):
    producer = Child(publish_and_stay, 6, {}, {})
    producer.hear()
    child = Child(forks_before)
    assert child.hear() == 0
    child.end()
    producer.end()


def ends_with_everything_open(link):
    client, driver = connect(), Driver()
    array = Array(driver, (N,)).fill(1)
    view = Interface(Array(driver, (N,)).fill(2))
    client.publish("t", array)
    client.publish("u", view)
    globals()["kept"] = [client, client.get("t"), client.get("u"), Taken(driver, client.get("t"), LEGACY), array]
    globals()["draft"] = client.create("v", 4, "int8", device=0)
    link.recv()


def test_an_interpreter_may_end_with_everything_open(gpus, observer):
    child = Child(ends_with_everything_open)
    child.end()
    assert observer.stat("t").withdrawn and observer.stat("u").withdrawn
    observer.delete("t")
    observer.delete("u")


def closes_first(link):
    client, driver = connect(), Driver()
    other = connect()
    array = Array(driver, (N,)).fill(1)
    client.publish("t", array)
    client.close()
    taken = Taken(driver, other.get("t"))
    assert taken.read() == bytes([1]) * N
    del taken
    other.delete("t")
    eventually(lambda: array.deleted)
    driver.free(array.memory)
    link.recv()


def test_what_was_published_stays_when_the_client_is_closed(gpus):
    Child(closes_first).end()


def many(link):
    client, driver = connect(), Driver()
    client.put("m/cpu", b"1234")
    with client.create("m/gpu", (64,), "uint8", device=0) as draft:
        Taken(driver, draft, LEGACY).fill(7)
    both = client.get_many(prefix="m/")
    assert {k: t.device for k, t in both.items()} == {"cpu": "cpu", "gpu": "cuda:0"}
    assert Taken(driver, both["gpu"]).read() == bytes([7]) * 64
    named = client.get_many(["m/gpu", "m/cpu"])
    assert Taken(driver, named["m/gpu"]).read() == bytes([7]) * 64
    with pytest.raises(tensorlease.UnsupportedError, match="m/gpu.*GPU"):
        client.save("m", os.path.join(os.environ["FAKECUDA_DIR"], "x.safetensors"))
    client.delete("m/cpu")
    client.delete("m/gpu")
    link.recv()


def test_many_at_once(gpus):
    Child(many).end()
