# SPDX-License-Identifier: Apache-2.0
"""The order of work: which consumers wait for which stream."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import dlpack_abi as abi
import gpu_help
import pytest
from conftest import eventually, leases_of
from cuda_driver import LEGACY, Array, Child, Driver, Taken, run
from gpu_help import (
    N,
    connect,
    publish_and_stay,
    publish_held,
    start_and_hold,
    start_held,
    take,
    take_back,
    take_now,
    tell_what_is_seen,
)

daemon, gpus = gpu_help.daemon, gpu_help.gpus


def test_the_users_stream_is_the_one_that_is_asked_for(gpus):
    for version, (asked, named) in enumerate(((-1, -1), (2, 2), (1, 1)), 1):
        producer = Child(publish_and_stay, 8, {"stream": asked, "sealed": asked != -1})
        assert producer.hear() == ((version, False), [named])
        if asked != -1:
            run(take, 8)
        producer.end()


def stream_objects():
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
        take_back(client, array)
    array = Array(driver, (16,)).fill(1)
    for wrong in (0, -2, 1 << 70):
        with pytest.raises((ValueError, OverflowError)):
            client.publish("t", array, stream=wrong)
    with pytest.raises(ValueError, match="give the stream object"):
        client.put("t", array, stream=0)
    with pytest.raises(TypeError, match="^stream must be"):
        client.get("t", stream="main")
    assert array.streams == [] and array.deleted == 0
    driver.free(array.memory)


def test_stream_objects_of_other_libraries(gpus):
    run(stream_objects)


def test_consumers_wait_for_what_the_producer_queued(gpus):
    """The producer's GPU stands still. A consumer that waits sees nothing until it runs again; one that asks for no
    order sees the old bytes."""
    producer = start_and_hold(gpus, publish_held)
    assert producer.hear() == (1, False)
    waiting = Child(tell_what_is_seen)
    stale, pending = waiting.hear()
    assert stale == bytes([3]) * 64  # on a stream that was not told to wait
    assert pending  # on one that was, nothing has come yet
    gpus.hold(0)
    assert waiting.hear() == bytes([4]) * 64
    waiting.end()
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


def test_put_without_a_stream_returns_when_the_copy_is_made(gpus):
    producer = start_and_hold(gpus, put_while_held)
    assert not producer.link.poll(0.2)  # it must not return before we let it
    gpus.hold(0)
    assert producer.hear() == 1
    producer.end()


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
    producer = Child(publish_and_stay, 9)
    producer.hear()
    consumer = start_held(gpus, release_defers)
    eventually(lambda: leases_of(observer, consumer.pid) == 1)
    gpus.hold(0)
    eventually(lambda: leases_of(observer, consumer.pid) == 0)
    consumer.end()
    producer.end()


QUEUE = 1000  # of the fake driver's streams


def ends_on_a_full_queue(how):
    client, driver = connect(), Driver()
    stream, memory, ending = driver.stream(), driver.alloc(N), []
    publisher = Array(driver, (N,)).fill(1)
    client.publish("t", publisher)
    tensor, draft = client.get("t"), client.create("d", N, "uint8", device=0)
    draft.stream = stream
    capsule = tensor.__dlpack__(stream=stream, max_version=(1, 0))
    driver.synchronize(stream)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def needs_python(_):
        eventually(lambda: ending)

    driver.use("cuLaunchHostFunc", ctypes.c_void_p(stream), needs_python, None)
    for _ in range(QUEUE - 1):
        driver.fill(memory, 1, N, stream)
    if how == "deleter":  # as PyTorch calls it, with the GIL
        managed = abi.consume(capsule)
        delete = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(managed.deleter, ctypes.c_void_p).value)
        ending.append(True)
        delete(ctypes.addressof(managed))
    elif how == "capsule":
        ending.append(True)
        del capsule
    elif how == "put":  # the lease on the first one ends when the second one cannot be had

        class Refuses:
            def __dlpack_device__(self):
                ending.append(True)
                raise RuntimeError("on purpose")

            __dlpack__ = None

        with pytest.raises(RuntimeError, match="on purpose"):
            client.put_many({"a": tensor, "b": Refuses()}, stream=stream)
    else:
        ending.append(True)
        draft.abort()
    driver.synchronize(stream)
    capsule = draft = tensor = None
    take_back(client, publisher)
    driver.free(memory)


@pytest.mark.parametrize("how", ["capsule", "deleter", "draft", "put"])
def test_an_end_that_waits_for_space_lets_other_threads_run(gpus, how):
    run(ends_on_a_full_queue, how)


def delete_beside_a_subinterpreter():
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    interpreters.create()  # from then on PyGILState_Check() is always true
    client, driver = connect(), Driver()
    array = Array(driver, (N,)).fill(1)
    client.publish("t", array)
    with ThreadPoolExecutor(1) as other:
        for kind in (ctypes.CFUNCTYPE, ctypes.PYFUNCTYPE):  # without the GIL, and with it
            for call in (lambda function, *arguments: function(*arguments), other.submit):
                managed = abi.consume(client.get("t").__dlpack__(stream=LEGACY, max_version=(1, 0)))
                delete = kind(None, ctypes.c_void_p)(ctypes.cast(managed.deleter, ctypes.c_void_p).value)
                call(delete, ctypes.addressof(managed))
    take_back(client, array)


def test_a_deleter_needs_no_gil_beside_a_subinterpreter(gpus):
    run(delete_beside_a_subinterpreter)


def test_sealed_tensors_need_no_waiting(gpus):
    producer = Child(publish_and_stay, 5, {"sealed": True})
    producer.hear()
    gpus.hold(producer.pid)  # whatever it does now
    assert run(take_now, 5)
    gpus.hold(0)
    producer.end()
