# SPDX-License-Identifier: Apache-2.0
"""Items of streams whose arrays are on a GPU."""

import gpu_help
import numpy as np
import pytest
from cuda_driver import Array, Child, Driver, Taken, run
from gpu_help import N, connect, start_and_hold

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
