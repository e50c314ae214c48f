# SPDX-License-Identifier: Apache-2.0
"""Waits for a tensor that is published, but that the GPU of its producer has not written yet."""

import asyncio
import math
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gpu_help
import pytest
from conftest import eventually
from cuda_driver import LEGACY, Child, Driver, Taken, run
from gpu_help import publish_and_stay, publish_held, start_held
from limits import limit

import tensorlease

daemon, gpus = gpu_help.daemon, gpu_help.gpus

SHORT = 0.5  # seconds; the timeout of clients, which waits are to outlast


@pytest.fixture
def producer(gpus):
    """Publishes "t", and its GPU stands still until hold(0)."""
    producer = start_held(gpus, publish_held)
    yield producer
    gpus.hold(0)
    producer.end()


def connect(timeout=SHORT):
    while True:
        try:
            return tensorlease.connect(autostart=False, timeout=timeout)
        except tensorlease.TimeoutError:  # the machine is busy
            pass


def read(tensor):
    return Taken(Driver(), tensor, -1).peek()


def once_it_is_late(link):
    """Tells the test when the client's timeout must be over."""
    threading.Timer(3 * SHORT, link.send, ("late",)).start()


# ---- Threads that wait ----


def get(client):
    return client.get("t", timeout=limit(60), stream=1)


def first_of_watch(client):
    with client.watch("t", stream=1) as watch:
        return next(watch)


def wait_longer_than_the_client(link, call):
    client = connect()
    once_it_is_late(link)
    return read(call(client))


@pytest.mark.parametrize("call", [get, first_of_watch])
def test_a_wait_lasts_as_long_as_its_own_timeout(gpus, producer, call):
    consumer = Child(wait_longer_than_the_client, call)
    assert consumer.hear() == "late"
    gpus.hold(0)
    assert consumer.end() == bytes([4]) * 64


def wait_briefly():
    client, none = connect(limit(60)), object()
    began = time.monotonic()
    with pytest.raises(tensorlease.TimeoutError, match="has not finished it"):
        client.get("t", timeout=0.05, stream=1)
    assert client.get("t", timeout=0.05, stream=1, default=none) is none
    with pytest.raises(tensorlease.TimeoutError, match="has not finished it"):
        client.get("t", timeout=0.05, device="cpu")
    with pytest.raises(tensorlease.TimeoutError, match="has not finished it"):
        next(client.watch("t", stream=1, timeout=0.05))
    with pytest.raises(tensorlease.TimeoutError, match="has not finished it"):
        asyncio.run(client.aget("t", stream=1, timeout=0.05))
    assert time.monotonic() - began < limit(60)
    watch = client.watch("t", stream=1)
    assert watch.poll() is None
    watch.close()


def test_a_wait_ends_with_its_own_timeout(producer):
    run(wait_briefly)


def wait_for_the_client():
    with pytest.raises(tensorlease.TimeoutError, match="has not finished it"):
        connect().get("t", stream=1)
    with pytest.raises(tensorlease.TimeoutError, match="has not finished it"):
        connect().get("t").__dlpack__(stream=1, max_version=(1, 0))
    with pytest.raises(tensorlease.TimeoutError, match="has not finished it"):
        asyncio.run(connect().aget("t", stream=1, timeout=None))


def test_the_clients_timeout_ends_a_wait_that_has_none(producer):
    run(wait_for_the_client)


def calls_of(client):
    tensor = client.get("t")
    return {
        "dlpack": lambda: tensor.__dlpack__(stream=1, max_version=(1, 0)),
        "interface": lambda: tensor.__cuda_array_interface__,
        "get": lambda: client.get("t", stream=1),
        "device": lambda: client.get("t", device="cpu"),
        "watch": lambda: next(client.watch("t", stream=1)),
        "put": lambda: client.put("u", tensor),
    }


def until_it_waits(thread, call):
    """Waits until a thread is in the call: ten looks in a row. While it waits it looks for the GPU's work all the time,
    and so seldom sleeps on a busy machine."""
    seen = 0

    def look():
        nonlocal seen
        frame = sys._current_frames().get(thread)
        while frame and frame.f_code is not call.__code__:
            frame = frame.f_back
        seen = seen + 1 if frame else 0
        return seen == 10

    eventually(look)


def interrupt(what):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    client = connect(math.inf)
    call, me = calls_of(client)[what], threading.get_ident()

    def work():
        until_it_waits(me, call)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=work)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        call()
    thread.join()


@pytest.mark.parametrize("what", ["dlpack", "interface", "get", "device", "watch", "put"])
def test_ctrl_c_ends_a_wait(producer, what):
    run(interrupt, what)


def close():
    for what in ("get", "device"):
        client = connect(math.inf)
        call = calls_of(client)[what]
        with ThreadPoolExecutor(1) as other:
            ident = other.submit(threading.get_ident).result()
            waiting = other.submit(call)
            until_it_waits(ident, call)
            client.close()
            with pytest.raises(ValueError, match="the client was closed during a get"):
                waiting.result()


def test_close_ends_a_wait(producer):
    run(close)


# ---- Tasks that wait ----


async def aget(client):
    return await client.aget("t", stream=1)


async def first_of_async_watch(client):
    with client.watch("t", stream=1) as watch:
        return await watch.__anext__()


async def beside_a_ticker(link, client, call):
    task = asyncio.ensure_future(call(client))
    began, ticks = time.monotonic(), 0
    while time.monotonic() - began < 3 * SHORT:
        await asyncio.sleep(SHORT / 50)
        ticks += 1
    assert not task.done() and ticks > 10
    link.send("late")
    return read(await task)


def wait_in_a_loop(link, call):
    return asyncio.run(beside_a_ticker(link, connect(), call))


@pytest.mark.parametrize("call", [aget, first_of_async_watch])
def test_a_task_that_waits_lets_others_run(gpus, producer, call):
    consumer = Child(wait_in_a_loop, call)
    assert consumer.hear() == "late"
    gpus.hold(0)
    assert consumer.end() == bytes([4]) * 64


async def cancel_and_close():
    client = connect(limit(60))
    task = asyncio.ensure_future(client.aget("t", stream=1))
    await asyncio.sleep(SHORT / 50)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    task = asyncio.ensure_future(client.aget("t", stream=1))
    await asyncio.sleep(SHORT / 50)
    client.close()
    with pytest.raises(ValueError, match="the client was closed during an aget"):
        await task


def end_tasks():
    asyncio.run(cancel_and_close())


def test_cancelling_and_closing_end_a_task_that_waits(producer):
    run(end_tasks)


def get_what_comes_after_a_loss(link):
    client = connect(limit(60))
    once_it_is_late(link)
    tensor = client.get("t", timeout=limit(60), stream=1)
    with pytest.raises(tensorlease.NotNewerError):
        client.get("t", newer_than=tensor.version)
    return tensor.version


def test_a_wait_goes_on_when_the_tensor_is_lost(gpus):
    lost = start_held(gpus, publish_held)
    consumer = Child(get_what_comes_after_a_loss)
    consumer.hear()
    lost.kill()
    gpus.hold(0)
    producer = Child(publish_and_stay, 5)
    producer.hear()
    assert consumer.end() == 2
    producer.end()


# ---- Errors of the driver ----


def fail_to_ask():
    client = connect(limit(60))
    tensor = client.get("t")
    with pytest.raises(tensorlease.Error, match="cuEventQuery|asking for the producer's work"):
        tensor.__dlpack__(stream=LEGACY, max_version=(1, 0))


def test_a_tensor_is_not_handed_out_unordered_if_the_driver_fails(monkeypatch, producer):
    monkeypatch.setenv("FAKECUDA_FAIL", "cuEventQuery:1:400")
    run(fail_to_ask)
