# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed, fork or end while they use a GPU, and lost tensors."""

import asyncio
import os
import time

import gpu_help
import pytest
from conftest import eventually, leases_of
from cuda_driver import LEGACY, Array, Child, Driver, Interface, Taken
from gpu_help import N, connect, publish_and_stay
from limits import limit

import tensorlease

daemon, gpus = gpu_help.daemon, gpu_help.gpus


def hold_and_wait(link):
    client, driver = connect(), Driver()
    taken = [Taken(driver, client.get("t", timeout=limit(10))) for _ in range(5)]
    link.send(len(taken))
    link.recv()


def test_a_killed_consumer_holds_nothing(gpus, observer):
    producer = Child(publish_and_stay, 5)
    producer.hear()
    consumer = Child(hold_and_wait)
    consumer.hear()
    eventually(lambda: leases_of(observer, consumer.pid) == 5)
    consumer.kill()
    eventually(lambda: leases_of(observer, consumer.pid) == 0)
    producer.end()


def sees_it_go(link):
    client, driver = connect(), Driver()
    tensor = client.get("t", timeout=limit(10))
    taken = Taken(driver, tensor)
    taken.read()
    link.send("got")
    link.recv()  # the producer is dead
    eventually(lambda: tensor.lost)
    with pytest.raises(tensorlease.TensorLostError, match="ended"):
        client.get("t")
    with pytest.raises(tensorlease.TensorLostError, match="ended"):
        client.get("t", timeout=0.05)
    with pytest.raises(tensorlease.TensorLostError, match="'t'"):
        client.get_many(["t"])
    with pytest.raises(tensorlease.TensorLostError, match="'t'"):
        client.get_many(["t"], timeout=0.05)
    with pytest.raises(tensorlease.TensorLostError):
        tensor.__dlpack__(stream=1, max_version=(1, 0))
    with pytest.raises(tensorlease.TimeoutError):
        asyncio.run(client.aget("t", timeout=0.05))
    info = client.stat("t")
    assert info.lost and info.version == 1 and "t" in client
    link.send("waiting")
    again = client.get("t", timeout=limit(60))  # waits until it is published again
    assert again.version == 2
    assert Taken(driver, again).read() == bytes([2]) * N
    link.send("back")
    link.recv()


def test_a_dead_producers_tensor_is_lost(gpus, observer):
    producer = Child(publish_and_stay, 1)
    producer.hear()
    consumer = Child(sees_it_go)
    consumer.hear()
    producer.kill()
    consumer.tell()
    assert consumer.hear() == "waiting"
    assert observer.stat("t").lost
    again = Child(publish_and_stay, 2)
    published, _ = again.hear()
    assert published.version == 2
    assert consumer.hear() == "back"
    consumer.end()
    again.end()


def publish_set(link, byte):
    """Two tensors, of which one dies with this process."""
    client, driver = connect(), Driver()
    with client.create("m/stays", (N,), "uint8", device=0) as draft:
        Taken(driver, draft, LEGACY).fill(byte)
    array = Array(driver, (N,)).fill(byte)
    client.publish("m/goes", array)
    link.send("published")
    link.recv()
    client.delete(prefix="m")
    eventually(lambda: array.deleted)
    driver.free(array.memory)


def bytes_of(driver, found):
    return {name: Taken(driver, tensor).read()[0] for name, tensor in found.items()}


def follow_set(link):
    client, driver = connect(), Driver()
    watch = client.watch(prefix="m", timeout=limit(60))
    while len(found := next(watch)) < 2:
        pass
    link.send(bytes_of(driver, found))
    del found
    link.recv()
    eventually(lambda: client.stat("m/goes").lost)
    for one in (watch, client.watch(prefix="m")):  # what is left is no set
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert one.poll() is None
    link.send("waiting")
    while 2 not in (seen := bytes_of(driver, next(watch))).values():
        pass
    link.send(seen)


def test_of_a_set_without_one_tensor_nothing_is_given(gpus, observer):
    producer = Child(publish_set, 1)
    producer.hear()
    follower = Child(follow_set)
    assert follower.hear() == {"stays": 1, "goes": 1}
    producer.kill()
    follower.tell()
    assert follower.hear() == "waiting"
    again = Child(publish_set, 2)
    again.hear()
    assert follower.hear().keys() == {"stays", "goes"}
    follower.end()
    again.end()


async def _wait_for_anew(client):
    return await client.aget("t", timeout=limit(60))


def waits_for_anew(link):
    client, driver = connect(), Driver()
    eventually(lambda: client.stat("t").lost)
    link.send("waiting")
    tensor = asyncio.run(_wait_for_anew(client))
    link.send(tensor.version)
    link.recv()


def test_aget_waits_for_a_lost_tensor_to_come_back(gpus, observer):
    producer = Child(publish_and_stay, 1)
    producer.hear()
    producer.kill()
    eventually(lambda: observer.stat("t").lost)
    consumer = Child(waits_for_anew)
    consumer.hear()
    again = Child(publish_and_stay, 2)
    published, _ = again.hear()
    assert published.version == 2
    assert consumer.hear() == 2
    consumer.end()
    again.end()


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
    """Like a server that never uses a GPU itself and forks workers that do."""
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
    producer = Child(publish_and_stay, 6)
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
    child.end()  # the daemon may hear of it later than we do
    eventually(lambda: observer.stat("t").lost and observer.stat("u").lost)
    observer.delete("t")
    observer.delete("u")
