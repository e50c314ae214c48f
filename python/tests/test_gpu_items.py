# SPDX-License-Identifier: Apache-2.0
"""Items of streams whose arrays are on a GPU."""

import ctypes
import functools
import gc
import weakref

import gpu_help
import numpy as np
import pytest
from cuda_driver import LEGACY, Array, Child, Driver, Taken, run
from gpu_help import N, connect, start_and_hold
from limits import limit

import tensorlease

daemon, gpus = gpu_help.daemon, gpu_help.gpus


def put_items(link, mode, count):
    client, driver = connect(), Driver()
    stream = client.stream("s", mode, depth=2)
    array = Array(driver, (N,))
    link.send("open")
    link.recv()
    for i in range(count):
        stream.put({"weights": array.fill(i), "step": np.array([i])}, metadata=b"%d" % i)
    stream.end()
    link.send(len(array.streams))
    link.recv()
    stream.close()
    driver.free(array.memory)


def take_items(link, mode):
    client, driver = connect(), Driver()
    held = []
    with client.stream("s", mode, depth=2).subscribe() as subscription:
        link.send("subscribed")
        for i, item in enumerate(subscription):
            assert item.metadata == b"%d" % i and item["step"].numpy()[0] == i
            tensor = item["weights"]
            assert (tensor.device, tensor.shape, tensor.read_only) == ("cuda:0", (N,), True)
            assert Taken(driver, tensor).read() == bytes([i]) * N
            if i % 2:
                held.append((i, item))
    for i, item in held:
        assert Taken(driver, item["weights"], driver.stream()).read() == bytes([i]) * N
    link.send(len(held))
    link.recv()


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_items_on_a_gpu(gpus, mode):
    consumer = Child(take_items, mode)
    assert consumer.hear() == "subscribed"
    producer = Child(put_items, mode, 12)
    assert producer.hear() == "open"
    producer.tell()
    assert consumer.hear() == 6
    assert producer.hear() == 12  # of each array its stream was asked for
    consumer.end()
    producer.end()
    with connect() as client:
        client.delete("s")


def put_while_held(link, named=False):
    client, driver = connect(), Driver()
    array = Array(driver, (64,)).fill(1)
    driver.synchronize(array.work)
    stream = client.stream("s", "queue")
    mine = driver.stream()
    link.send("ready")
    link.recv()
    stream.put(array, stream=mine if named else None)
    link.send("put")
    link.recv()
    driver.synchronize(mine)
    driver.free(array.memory)
    stream.close()
    client.delete("s")


def put_named_while_held(link):
    put_while_held(link, True)


def test_put_without_a_stream_returns_when_the_copy_is_made(gpus):
    producer = start_and_hold(gpus, put_while_held)
    assert not producer.link.poll(0.2)  # it must not return before we let it
    gpus.hold(0)
    assert producer.hear() == "put"
    producer.end()


def test_put_on_a_stream_does_not_wait(gpus):
    producer = start_and_hold(gpus, put_named_while_held)
    assert producer.hear() == "put"
    gpus.hold(0)
    producer.end()


def queue_tensors(link):
    client, driver = connect(), Driver()
    array = Array(driver, (N,)).fill(7)
    client.publish("t", array, sealed=True)
    q = tensorlease.Queue(name="q", client=client)
    for i in range(3):
        q.put({"tensor": client.get("t"), "i": i})
    link.send("put")
    link.recv()
    q.close()
    client.delete("t")
    gpu_help.eventually(lambda: array.deleted)
    driver.free(array.memory)


def get_from_queue():
    client, driver = connect(), Driver()
    q = tensorlease.Queue(name="q", client=client)
    got = [q.get(timeout=60) for _ in range(3)]
    for i, thing in enumerate(got):
        assert thing["i"] == i and thing["tensor"].device == "cuda:0"
        assert Taken(driver, thing["tensor"]).read() == bytes([7]) * N
    q.close()


def test_tensors_on_a_gpu_go_through_a_queue(gpus):
    producer = Child(queue_tensors)
    assert producer.hear() == "put"
    run(get_from_queue)
    producer.end()
    with connect() as client:
        client.delete("q")


def refused():
    client, driver = connect(), Driver()
    stream = client.stream("s", "queue")
    array = Array(driver, (64,)).fill(1)
    other = Array(Driver(1), (64,)).fill(2)
    stream.put(other, stream=-1)
    with pytest.raises(tensorlease.UnsupportedError, match="GPU 0, and another part on GPU 1|GPU 1, and another"):
        stream.put([array, other], stream=-1)
    with pytest.raises(TypeError, match="stream must be"):
        stream.put(array, stream="main")
    client.delete("s")


def test_what_is_refused(gpus):
    run(refused)


# ---- drafts ----


def draft_items(link, mode, count):
    client, driver = connect(), Driver()
    stream = client.stream("s", mode, depth=2)
    link.send("open")
    link.recv()
    for i in range(count):
        with stream.draft({"weights": (N, "uint8", "cuda:0"), "step": (1, "int64")}, metadata_size=4) as draft:
            assert [(t.device, t.shape, t.read_only) for t in draft.tensors] == [
                ("cuda:0", (N,), False),
                ("cpu", (1,), False),
            ]
            written = Taken(driver, draft["weights"]).fill(i)
            assert written.managed.flags == 0
            draft["step"].numpy()[0] = i
            draft.commit(metadata=b"%d" % i)
        assert draft["weights"].released
        written.give_back()
    stream.end()
    link.send("put")
    link.recv()
    stream.close()


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_drafts_on_a_gpu(gpus, mode):
    consumer = Child(take_items, mode)
    assert consumer.hear() == "subscribed"
    producer = Child(draft_items, mode, 12)
    assert producer.hear() == "open"
    producer.tell()
    assert consumer.hear() == 6
    assert producer.hear() == "put"
    consumer.end()
    producer.end()
    with connect() as client:
        client.delete("s")


def commit_while_held(link, how):
    client, driver = connect(), Driver()
    stream, mine = client.stream("s", "queue"), driver.stream()
    subscription = stream.subscribe()
    draft = stream.draft(64, "uint8", device=0)
    written = Taken(driver, draft.tensor, LEGACY if how == "named" else mine)
    written.stream = mine
    link.send("ready")
    link.recv()
    written.fill(5)
    draft.commit(stream=mine if how == "named" else None)
    seen = Taken(driver, subscription.get().tensor)
    link.send(driver.library.cuStreamQuery(ctypes.c_void_p(seen.stream)))
    link.recv()
    assert seen.read() == bytes([5]) * 64
    written.give_back()
    client.delete("s")


@pytest.mark.parametrize("how", ["taken", "named"])
def test_consumers_wait_for_the_stream_that_writes_an_item(gpus, how):
    producer = Child(commit_while_held, how)
    assert producer.hear() == "ready"
    gpus.hold(producer.pid)
    producer.tell()
    assert producer.hear() == 600  # it waits for the work of the stream, as the commit did not
    gpus.hold(0)
    producer.end()


def name_streams():
    client, driver = connect(), Driver()
    stream, a, b = client.stream("s", "queue", depth=8), driver.stream(), driver.stream()
    draft = stream.draft({"x": (4, "uint8"), "y": (4, "uint8"), "z": (4, "uint8", "cpu")}, device=(2, 0))
    assert [t.device for t in draft.tensors] == ["cuda:0", "cuda:0", "cpu"]
    taken = [Taken(driver, draft["x"], a), Taken(driver, draft["x"], a)]
    taken[0].fill(1)
    draft["y"].__dlpack__(stream=-1)
    draft["z"].numpy()[:] = 3
    taken.append(Taken(driver, draft["y"], b).fill(2))
    with pytest.raises(ValueError, match="several streams"):
        draft.commit()
    with pytest.raises(TypeError, match="stream must be"):
        draft.commit(stream="main")
    driver.wait(b, a)
    draft.commit(stream=b)
    draft = stream.draft(4, "uint8", device="cuda")
    taken += [Taken(driver, draft.tensor, s) for s in (a, b, a)]  # the first one again does not make it one
    with pytest.raises(ValueError, match="several streams"):
        draft.commit()
    with pytest.raises(ValueError, match="several streams"):
        client.put("t", draft.tensor)
    draft.abort()
    with pytest.raises(ValueError, match="committed or aborted"):
        draft.commit(stream=a)
    draft = stream.draft(4, "uint8", device="cuda")
    taken.append(Taken(driver, draft.tensor, a).fill(4))
    client.put("t", draft.tensor)  # copies on that stream
    interface = draft.tensor.__cuda_array_interface__
    assert (interface["stream"], interface["data"]) == (None, (draft.tensor._address, False))
    assert draft.tensor.unflagged().device == "cuda:0"
    for wrong in (lambda: draft.tensor.numpy(), lambda: memoryview(draft.tensor)):
        with pytest.raises((TypeError, BufferError)):
            wrong()
    draft.commit()
    with stream.subscribe() as subscription:
        item = subscription.get()
        for name, byte in (("x", 1), ("y", 2)):
            assert Taken(driver, item[name]).read() == bytes([byte]) * 4
        assert item["z"].tolist() == [3] * 4
        assert Taken(driver, subscription.get().tensor).read() == bytes([4]) * 4
    assert Taken(driver, client.get("t")).read() == bytes([4]) * 4
    with pytest.raises(AttributeError, match="on the CPU"):
        _ = stream.draft(4, "uint8").tensor.__cuda_array_interface__
    with pytest.raises(ValueError, match="device"):
        stream.draft(4, "uint8", device="gpu")
    with pytest.raises(tensorlease.NoDeviceError, match="no GPU 9"):
        stream.draft(4, "uint8", device=9)
    with pytest.raises(tensorlease.UnsupportedError, match="are on one"):
        stream.draft({"x": (4, "uint8", 0), "y": (4, "uint8", 1)})
    for one in taken:
        driver.synchronize(one.stream)
        one.give_back()
    client.delete("s")
    client.delete("t")


def test_on_which_stream_an_item_is_written(gpus):
    run(name_streams)


def wait_for_room():
    client, driver = connect(), Driver()
    stream = client.stream("s", "queue", depth=1)
    draft = stream.draft(64, "uint8", device=0)
    written = Taken(driver, draft.tensor).fill(1)
    stream.put(b"first")
    with pytest.raises(tensorlease.NotNewerError):
        draft.commit(timeout=None)
    with pytest.raises(tensorlease.TimeoutError, match="full"):
        draft.commit(timeout=0.01)
    assert client.list("s") == []
    written.fill(2)
    with stream.subscribe() as subscription:
        subscription.get().release()
        draft.commit()
        assert Taken(driver, subscription.get().tensor).read() == bytes([2]) * 64
    written.give_back()
    client.delete("s")


def test_a_draft_waits_for_room(gpus):
    run(wait_for_room)


def abort_while_held(link, how):
    client, driver = connect(), Driver()
    stream, mine = client.stream("s", "queue"), driver.stream()
    draft = stream.draft(64, "uint8", device=0)
    written = Taken(driver, draft.tensor, mine)
    link.send("ready")
    link.recv()
    written.fill(5)
    written.give_back()
    if how == "collected":
        del draft
    elif how == "raised":
        with pytest.raises(RuntimeError, match="on purpose"), draft:
            raise RuntimeError("on purpose")
    else:
        draft.abort()
    gc.collect()
    link.send(driver.library.cuStreamQuery(ctypes.c_void_p(mine)))
    link.recv()
    client.delete("s")


@pytest.mark.parametrize("how", ["aborted", "raised", "collected"])
def test_an_abort_waits_for_what_was_queued(gpus, how):
    producer = start_and_hold(gpus, functools.partial(abort_while_held, how=how))
    assert not producer.link.poll(0.2)  # it must not return before we let it
    gpus.hold(0)
    assert producer.hear() == 0
    producer.end()


class Stream:
    """A stream object that ends its stream, as CuPy's does."""

    def __init__(self, driver):
        self.driver, self.ptr = driver, driver.stream()

    def __del__(self):
        self.driver.use("cuStreamDestroy_v2", ctypes.c_void_p(self.ptr))


def keep_views():
    client, driver = connect(), Driver()
    stream, queue = Stream(driver), client.stream("s", "queue", depth=8)
    draft = queue.draft(N, "uint8", device=0)
    written = Taken(driver, draft.tensor, stream.ptr).fill(5)
    draft.commit(stream=stream)
    alive = weakref.ref(stream)
    del stream, draft
    gc.collect()
    for i in range(4):  # none is in the memory that is still seen
        with queue.draft(N, "uint8", device=0) as draft:
            Taken(driver, draft.tensor).fill(i).give_back()
    queue.close()
    client.delete("s")
    client.close()
    gc.collect()
    assert alive() and written.peek() == bytes([5]) * N
    written.give_back()  # marks on that stream where its user stopped
    gpu_help.eventually(lambda: alive() is None)


def test_views_of_a_draft_keep_its_memory_and_its_stream(gpus):
    run(keep_views)


def draft_and_stay(link):
    client, driver = connect(), Driver()
    stream = client.stream("s", "queue")
    drafts = [stream.draft(N, "uint8", device=0) for _ in range(2)]
    taken = [Taken(driver, draft.tensor).fill(i) for i, draft in enumerate(drafts)]
    for one in taken:
        driver.synchronize(one.stream)
    drafts[0].commit(stream=-1)  # it is written
    link.send("put")
    link.recv()


def take_first():
    client, driver = connect(), Driver()
    with client.stream("s", existing=True).subscribe() as subscription:
        assert Taken(driver, subscription.get(limit(60)).tensor).read() == bytes(N)
        with pytest.raises(tensorlease.NotNewerError):
            subscription.get(None)


def test_a_killed_producer_leaves_what_it_put(gpus, observer):
    producer = Child(draft_and_stay)
    producer.hear()
    assert len(observer.list("s")) == 1
    producer.kill()
    run(take_first)
    observer.delete("s")
    gpu_help.eventually(lambda: sum(usage.bytes_used for usage in observer.devices()) == 0)
