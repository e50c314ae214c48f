# SPDX-License-Identifier: Apache-2.0
"""Drafts on a GPU, which are filled in place on any stream and outlive their producer."""

import ctypes
import gc
import mmap
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import gpu_help
import pytest
from conftest import daemon_at, eventually, once_asleep
from cuda_driver import LEGACY, PER_THREAD, Array, Child, Driver, Interface, Taken, run
from gpu_help import (
    N,
    connect,
    is_unfinished,
    start_and_hold,
    start_held,
    take,
    take_back,
    take_now,
    tell_what_is_seen,
)
from limits import limit

import tensorlease

daemon, gpus = gpu_help.daemon, gpu_help.gpus


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
    tensor = client.get("t", timeout=limit(10))
    assert tensor.device == "cuda:1"
    assert tensor.__dlpack_device__() == (2, 1)
    return Taken(Driver(1), tensor).read() == bytes([byte]) * N


def test_drafts_on_a_gpu(gpus):
    producer = Child(drafts)
    producer.hear()
    assert run(get_zeros, 0)
    producer.end()


def publish_draft_and_stay(link):
    client, driver = connect(), Driver()
    with client.create("t", (N,), "uint8", device=0) as draft:
        written = Taken(driver, draft).fill(3)
        driver.synchronize(written.stream)
        written.give_back()
    with client.create("t", (N,), "uint8", device=0) as draft:
        written = Taken(driver, draft).fill(5)
        driver.synchronize(written.stream)
        draft.stream = -1  # it is written, so that nobody has to wait
    written.give_back()
    link.send(draft.version)
    link.recv()


def test_what_a_draft_published_outlives_its_producer(gpus, observer):
    producer = Child(publish_draft_and_stay)
    assert producer.hear() == 2
    pid = producer.pid
    producer.kill()
    eventually(lambda: pid not in [c.pid for c in observer.clients()])
    assert not observer.stat("t").lost
    run(take, 5)
    observer.delete("t")


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


def test_consumers_wait_for_the_stream_that_filled_a_draft(gpus):
    producer = start_held(gpus, publish_held_draft)
    consumer = Child(tell_what_is_seen)
    _, pending = consumer.hear()
    assert pending
    gpus.hold(0)
    assert consumer.hear() == bytes([8]) * 64
    consumer.end()
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
    producer = start_and_hold(gpus, seals_a_draft)
    assert not producer.link.poll(0.2)  # it must not return before we let it
    gpus.hold(0)
    assert producer.hear() == (1, False)
    gpus.hold(producer.pid)
    assert run(take_now, 5)
    gpus.hold(0)
    producer.end()


def drafts_and_streams():
    client, driver = connect(), Driver()

    def made(name="t"):
        return client.create(name, (64,), "uint8", device=0)

    draft, a, b = made(), driver.stream(), driver.stream()
    draft.__dlpack__(stream=a)
    draft.__dlpack__(stream=-1)
    assert draft.stream == a
    draft.__dlpack__(stream=b)
    draft.__dlpack__(stream=a)  # the first one again does not make it one
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


class Rewrapped:
    """A tensor of another library over the memory of a draft."""

    def __init__(self, driver, taken, stream):
        self.array = Array(driver, taken.shape, memory=taken.address)
        self.taken = taken

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **asked):
        self.array.driver.wait(asked["stream"], self.taken.stream)
        return self.array.__dlpack__(**asked)


def test_on_which_stream_a_draft_is_written(gpus):
    run(drafts_and_streams)


class Stream:
    """A stream object that ends its stream, as CuPy's does."""

    def __init__(self, driver):
        self.driver, self.ptr = driver, driver.stream()

    def __del__(self):
        self.driver.use("cuStreamDestroy_v2", ctypes.c_void_p(self.ptr))


def end_streams_before_views(how):
    client, driver = connect(), Driver()
    stream = Stream(driver)
    draft = client.create("t", (64,), "uint8", device=0)
    if how == "attribute":
        draft.stream = stream
    written = Taken(driver, draft, stream.ptr).fill(5)
    if how == "publish":
        client.publish("t", draft, stream=stream)
    elif how == "publish_many":
        client.publish_many({"t": draft}, stream=stream)
    else:
        draft.commit(stream=stream if how == "commit" else None)
    alive = weakref.ref(stream)
    del stream, draft
    gc.collect()
    client.delete("t")
    assert alive()
    written.give_back()  # marks on that stream where its user stopped
    eventually(lambda: alive() is None)
    if how == "attribute":
        draft, first, second = client.create("t", (64,), "uint8", device=0), Stream(driver), Stream(driver)
        for one in (first, second, first):
            draft.stream = one
        one = None
        alive = weakref.ref(second)
        del second
        assert alive() is None
        alive = weakref.ref(first)
        del first
        assert alive()
        draft.abort()
        assert alive() is None


@pytest.mark.parametrize("how", ["attribute", "commit", "publish", "publish_many"])
def test_a_draft_keeps_the_stream_that_writes_it(gpus, how):
    run(end_streams_before_views, how)


# ---- a daemon that has ended ----


def commit_to_another_daemon(link, folder):
    address, driver = f"{folder}/socket", Driver()
    with daemon_at(address) as first:
        client = tensorlease.connect(address, autostart=False)
        client.create("former", 4, "int8", device=0).commit()
        draft = client.create("t", (64,), "uint8", device=0, metadata=b"m", owner_bound=True)
        written = Taken(driver, draft)
        first.kill()
        first.wait()
    with daemon_at(address):
        eventually(lambda: _is_empty(client))
        link.send("ready")
        link.recv()  # its work is held
        written.fill(5)
        draft.commit()
        written.give_back()
        link.send("committed")
        link.recv()
        other = client.get("t")
        unordered = Taken(driver, other)
        assert driver.library.cuStreamQuery(ctypes.c_void_p(unordered.stream)) == 600  # it waits for the draft's
        link.send("seen")
        assert unordered.read() == bytes([5]) * 64
        assert (other.metadata, client.stat("t").owner_bound) == (b"m", True)
        del other, unordered, draft
        client.delete("t")
        client.close()


def _is_empty(client):
    try:
        return "former" not in client
    except ConnectionError:
        return False


def test_a_draft_is_committed_to_another_daemon(gpus, tmp_path):
    child = Child(commit_to_another_daemon, str(tmp_path))
    child.hear()
    gpus.hold(child.pid)
    child.tell()
    child.hear()
    child.tell()
    assert child.hear() == "seen"
    gpus.hold(0)
    child.end()


# ---- space ----


def wait_for_a_full_gpu():
    client, _ = connect(), Driver()
    drafts = [client.create(f"full/{n}", (16 << 20,), "uint8", device=0) for n in range(4)]
    began = time.monotonic()
    with pytest.raises(MemoryError, match="allocating 16777216 bytes on GPU 0"):
        client.create("full/none", (16 << 20,), "uint8", device=0, timeout=0.5)
    assert time.monotonic() - began >= 0.5
    thread = once_asleep(drafts.pop().abort)
    drafts.append(client.create("full/t", (16 << 20,), "uint8", device=0, timeout=limit(60)))
    thread.join()
    for draft in drafts:
        draft.abort()


def test_a_full_gpu_is_waited_for(gpus, monkeypatch):
    monkeypatch.setenv("FAKECUDA_MEMORY", str(64 << 20))
    run(wait_for_a_full_gpu)


# ---- several at once ----


def refuse_several_streams():
    client, driver = connect(), Driver()
    draft = client.create("t", (64,), "uint8", device=0)
    taken = [Taken(driver, draft, driver.stream()) for _ in range(2)]
    for publish in (
        lambda **more: client.put("u", draft, **more),
        lambda **more: client.put_many({"u": draft}, **more),
        lambda **more: client.publish_many({"u": draft}, **more),
    ):
        with pytest.raises(ValueError, match="several streams"):
            publish()
        assert draft.state == "open"
        publish(stream=taken[1].stream)
        assert client.get("u").nbytes == 64
        client.delete("u")
    assert draft.state == "committed"
    for one in taken:
        driver.synchronize(one.stream)
        one.give_back()


def test_a_draft_on_several_streams_is_refused_everywhere(gpus):
    run(refuse_several_streams)


def fail_to_publish():
    client, driver = connect(), Driver()
    draft, stream = client.create("t", (64,), "uint8", device=0), driver.stream()
    rewrapped = Rewrapped(driver, Taken(driver, draft, stream), LEGACY)
    assert draft.stream == stream
    for array in (draft, rewrapped):
        with pytest.raises(tensorlease.NoSpaceError, match="never fit"):
            client.publish_many({"t": array, "big": mmap.mmap(-1, 2 << 30)})
        with pytest.raises(ValueError, match="not a name"):
            client.publish("/t", array)
        assert draft.stream == stream
    other = Taken(driver, draft, driver.stream())
    with pytest.raises(ValueError, match="several streams"):
        draft.commit()
    with pytest.raises(ValueError, match="not a name"):
        client.publish("/t", draft, stream=other.stream)
    assert draft.stream == other.stream
    draft.abort()
    draft = client.create("t", (64,), "uint8", device=0)
    with pytest.raises(tensorlease.NoSpaceError):
        client.publish_many({"t": draft, "big": mmap.mmap(-1, 2 << 30)})
    assert draft.stream is None
    draft.abort()


def test_a_publish_that_fails_names_no_stream(gpus):
    run(fail_to_publish)


def hand_drafts_over():
    client, driver = connect(), Driver()
    drafts = [client.create(name, (64,), "uint8", device=0) for name in ("a", "b")]
    empty, here = client.create("e", (0, 3), "uint8", device=0), client.create("c", (64,), "uint8")
    written = [Taken(driver, draft, LEGACY).fill(5) for draft in drafts]
    rewrapped = Rewrapped(driver, written[1], LEGACY)
    with connect() as other, pytest.raises(ValueError, match="'a': the draft is another client's"):
        other.publish_many({"a": drafts[0]})
    assert client.publish_many({"a": drafts[0], "z": rewrapped, "e": empty, "c": here}) == 2  # "e" has no bytes
    assert [(draft.name, draft.state) for draft in (*drafts, empty)] == [
        ("a", "committed"),
        ("z", "committed"),
        ("e", "committed"),
    ]
    assert here.state == "open"  # it was copied
    for draft in drafts:
        with pytest.raises(ValueError, match="committed"):
            draft.commit()
        with pytest.raises(BufferError, match="committed"):
            draft.__dlpack__(stream=LEGACY)
    for name in ("a", "z"):
        assert Taken(driver, client.get(name)).read() == bytes([5]) * 64
    for one in written:
        one.give_back()
    here.abort()
    client.delete(prefix="", everything=True)
    eventually(lambda: rewrapped.array.deleted)


def test_publish_many_ends_drafts(gpus):
    run(hand_drafts_over)


# ---- threads ----


def publish_many(client, driver, draft, written):
    client.publish_many({"u": draft})


def put(client, driver, draft, written):
    client.put("u", draft)
    draft.abort()


def put_many(client, driver, draft, written):
    client.put_many({"u": draft})
    draft.abort()


def fail_and_commit(client, driver, draft, written):
    with pytest.raises(ValueError, match="not a name"):
        client.publish("/u", Interface(Array(driver, (64,), memory=written.address)))
    draft.commit()


def publish_what_another_thread_writes(link, publish):
    client, driver = connect(), Driver()
    draft = client.create("u", (64,), "uint8", device=0)
    link.send("ready")
    link.recv()
    with ThreadPoolExecutor(1) as other:
        written = other.submit(lambda: Taken(driver, draft, PER_THREAD).fill(5)).result()  # stands still
        link.send("filled")
        link.recv()
        publish(client, driver, draft, written)
        link.send("published")
        link.recv()
        other.submit(driver.synchronize, PER_THREAD).result()
        written.give_back()
    client.delete("u")


def tell_of_draft(link):
    client, driver = connect(), Driver()
    link.send(is_unfinished(client, "u"))
    link.recv()
    return Taken(driver, client.get("u", timeout=limit(60), stream=1)).read()


@pytest.mark.parametrize("publish", [publish_many, put, put_many, fail_and_commit])
def test_a_draft_that_another_thread_writes_on_its_own_stream(gpus, publish):
    producer = Child(publish_what_another_thread_writes, publish)
    producer.hear()
    gpus.hold(producer.pid)
    producer.tell()
    producer.hear()
    producer.tell()
    if publish in (put, put_many):
        assert not producer.link.poll(0.2)  # it must not return before the copy is made
        gpus.hold(0)
        producer.hear()
        consumer = Child(tell_of_draft)
        consumer.hear()
    else:
        producer.hear()
        consumer = Child(tell_of_draft)
        assert consumer.hear()
        gpus.hold(0)
    assert consumer.end() == bytes([5]) * 64
    producer.end()


def name_the_stream_of_each_thread():
    client, driver = connect(), Driver()
    array = Array(driver, (16,)).fill(1)
    client.publish("t", array)
    with ThreadPoolExecutor(1) as other:
        tensor = other.submit(client.get, "t", stream=PER_THREAD).result()
        assert tensor.__cuda_array_interface__["stream"] == LEGACY
        assert other.submit(lambda: tensor.__cuda_array_interface__["stream"]).result() == PER_THREAD
        del tensor  # its lease for the interface too
        draft = client.create("u", (16,), "uint8", device=0)
        written = other.submit(Taken, driver, draft, PER_THREAD).result()
        assert (draft.stream, other.submit(lambda: draft.stream).result()) == (LEGACY, PER_THREAD)
        here = Taken(driver, draft, PER_THREAD)
        with pytest.raises(ValueError, match="several streams"):
            draft.commit()
        draft.abort()
        written.give_back()
        here.give_back()
    take_back(client, array)


def test_the_own_stream_of_another_thread(gpus):
    run(name_the_stream_of_each_thread)
