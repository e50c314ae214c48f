# SPDX-License-Identifier: Apache-2.0
"""await client.aget() waits in asyncio without blocking the loop. One thread serves all waits."""

import asyncio
import decimal
import fractions
import os
import threading
import time

import numpy as np
import pytest
from conftest import (
    daemon_at,
    eventually,
    in_child,
    leases_of,
    run_python,
    until_the_waiter_sleeps,
    waiters,
)
from limits import limit

import tensorlease


async def until_all_wait():
    """Counts all tasks, and the thread that serves them."""
    await asyncio.sleep(0)
    until_the_waiter_sleeps()


def test_what_is_there_comes_at_once(client):
    async def main():
        client.put("async/a", np.arange(3))
        tensor = await client.aget("async/a")
        return tensor.numpy().sum(), (await client.aget("async/a", mode="c")).read_only

    assert asyncio.run(main()) == (3, False)
    eventually(lambda: not waiters())


def test_waits_are_served_by_one_thread(client):
    async def main():
        waits = [asyncio.create_task(client.aget(f"async/many{n}", timeout=limit(60))) for n in range(100)]
        newer = asyncio.create_task(client.aget("async/many0", newer_than=1, timeout=limit(60)))
        ticks = 0
        await until_all_wait()
        for n in reversed(range(100)):
            client.put(f"async/many{n}", np.full(3, n))
            await asyncio.sleep(0)
            ticks += 1
        values = [int((await wait).numpy()[0]) for wait in waits]
        client.put("async/many0", np.full(3, 1000))
        assert (await newer).version == 2
        return values, ticks

    assert asyncio.run(main()) == (list(range(100)), 100)
    client.close()
    eventually(lambda: not waiters())


def test_more_names_than_the_kernel_waits_for(client):
    async def main():
        waits = [asyncio.create_task(client.aget(f"async/crowd{n}", timeout=limit(60))) for n in range(600)]
        await asyncio.sleep(0)
        for n in range(600):
            client.put(f"async/crowd{n}", b"x", wait=False)
        return sum([(await wait).nbytes for wait in waits])

    assert asyncio.run(main()) == 600


def test_time_is_up(client):
    async def main():
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="async/none.*0.1 s"):
            await client.aget("async/none", timeout=0.1)
        assert time.monotonic() - start > 0.09
        with pytest.raises(FileNotFoundError):
            await client.aget("async/none", timeout=0)
        with pytest.raises(FileNotFoundError):
            await client.aget("async/none", timeout=None)
        with pytest.raises(ValueError):
            await client.aget("a//b")

    asyncio.run(main())


def test_cancelled_waits_take_no_lease(client, observer):
    async def main():
        waits = [asyncio.create_task(client.aget("async/cancel")) for _ in range(10)]
        await until_all_wait()
        for wait in waits[:9]:
            wait.cancel()
        client.put("async/cancel", b"x")
        (await waits[9]).release()
        assert sum([r is not None for r in await asyncio.gather(*waits[:9], return_exceptions=True)]) == 9

    asyncio.run(main())
    eventually(lambda: leases_of(observer, os.getpid()) == 0)
    assert client.get("async/cancel").version == 1


def test_close_ends_the_waits(address):
    async def main():
        client = tensorlease.connect()
        wait = asyncio.create_task(client.aget("async/closed"))
        await until_all_wait()
        client.close()
        with pytest.raises(ValueError, match="closed"):
            await wait
        with pytest.raises(ValueError, match="closed"):
            await client.aget("async/closed")

    asyncio.run(main())
    eventually(lambda: not waiters())


def test_several_loops_share_a_client(client):
    results, all_wait = [], threading.Barrier(5)

    def run(n):
        async def main():
            wait = asyncio.create_task(client.aget(f"async/loop{n}", timeout=limit(60)))
            await asyncio.sleep(0)
            all_wait.wait()
            results.append(int((await wait).numpy()[0]))

        asyncio.run(main())

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    all_wait.wait()
    for n in range(4):
        client.put(f"async/loop{n}", np.full(1, n))
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2, 3]


def test_a_stream_loses_nothing_that_is_waited_for(client):
    async def produce(seen):
        for n in range(200):
            client.put("async/stream", np.full(4, n))
            assert await seen.get() == await seen.get() == n + 1

    async def consume(seen):
        for version in range(200):
            tensor = await client.aget("async/stream", newer_than=version, timeout=limit(60))
            assert tensor.numpy()[0] == version
            seen.put_nowait(tensor.version)

    async def main():
        seen = asyncio.Queue()
        await asyncio.gather(consume(seen), consume(seen), produce(seen))

    asyncio.run(main())


def test_an_idle_wait_uses_no_processor(client):
    async def main():
        wait = asyncio.create_task(client.aget("async/idle", timeout=limit(60)))
        await until_all_wait()
        before = time.process_time()
        await asyncio.sleep(1.0)  # this time is what is measured
        used = time.process_time() - before
        wait.cancel()
        return used

    assert asyncio.run(main()) < 0.2  # one that looks again and again takes all it gets


def test_a_wait_goes_on_over_a_restart(tmp_path):
    address = str(tmp_path / "socket")

    async def main(first, client):
        wait = asyncio.create_task(client.aget("async/restart", timeout=limit(60)))
        await until_all_wait()
        first.kill()
        first.wait()
        await asyncio.sleep(1.5)  # longer than the library takes to notice, and the wait must stay
        assert not wait.done()
        with daemon_at(address), tensorlease.connect(address, autostart=False) as other:
            other.put("async/restart", b"12")
            assert (await wait).nbytes == 2

    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        asyncio.run(main(first, client))


def test_a_child_has_waits_of_its_own(client):
    async def main(name):
        asyncio.get_running_loop().call_later(0.05, client.put, name, b"x")
        return (await client.aget(name, timeout=limit(60))).nbytes

    assert asyncio.run(main("async/parent")) == 1
    in_child(lambda: asyncio.run(main("async/child")) == 1)
    assert asyncio.run(main("async/again")) == 1


def test_an_error_keeps_no_tensor_of_another_wait(client, observer):
    """A traceback keeps frames, and the thread's have what it hands over."""

    class Failing(tensorlease.Client):
        def get(self, name, **options):
            if name == "async/bad" and threading.current_thread() in waiters():
                raise LookupError(name)
            return super().get(name, **options)

    async def main(failing):
        waits = [asyncio.create_task(failing.aget(name)) for name in ("async/bad", "async/good")]
        await until_all_wait()
        client.put_many({"bad": b"x", "good": b"y"}, prefix="async/")
        return await asyncio.gather(*waits, return_exceptions=True)

    with Failing(autostart=False) as failing:
        error, good = asyncio.run(main(failing))
        assert isinstance(error, LookupError) and good.nbytes == 1
        del good
        eventually(lambda: leases_of(observer, os.getpid()) == 0)
    client.delete(prefix="async/")


def test_a_cancelled_wait_keeps_no_tensor(client, observer):
    """The tensor is there when the task is cancelled, and the traceback of that keeps the frames of aget()."""

    async def main():
        client.put("async/there", b"x")
        task = asyncio.create_task(client.aget("async/there"))
        await asyncio.sleep(0)  # now it has the tensor, and lets others run
        task.cancel()
        try:
            await task
        except asyncio.CancelledError as error:
            return error

    error = asyncio.run(main())
    eventually(lambda: leases_of(observer, os.getpid()) == 0)
    assert error.__traceback__
    client.delete("async/there")


CLOSED_IN_A_HANDLER = """
import asyncio, signal, sys, tensorlease, tensorlease._waiter

class Step:
    # Sends a signal at the n-th line that the waiter or the client runs on this thread.
    def __init__(self, n):
        self.left = n

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.endswith(("_waiter.py", "_client.py")):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return self

async def wait(client):
    task = asyncio.create_task(client.aget("async/handler", timeout=20))
    await asyncio.sleep(0)
    other = asyncio.create_task(client.aget("async/handler2", timeout=20))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    client.close()
    return (await asyncio.gather(task, other, return_exceptions=True))[1]

n = 0
left = 0
while left <= 0:
    n += 1
    client = tensorlease.connect(autostart=False)
    signal.signal(signal.SIGUSR1, lambda *_: client.close())
    step = Step(n)
    sys.settrace(step)
    try:
        said = asyncio.run(wait(client))
    finally:
        sys.settrace(None)
    assert client.closed and isinstance(said, (ValueError, asyncio.CancelledError)), (n, said)
    left = step.left
print("lines:", n)
"""


def test_a_signal_handler_may_close_the_client_at_any_point(address):
    """Whatever an aget() is doing just then, nothing waits for ever."""
    said = run_python(CLOSED_IN_A_HANDLER).stdout
    assert int(said.removeprefix("lines:")) > 50


@pytest.mark.parametrize("seconds", [fractions.Fraction(1, 100), decimal.Decimal("0.01"), np.float32(0.01)])
def test_a_timeout_may_be_any_number(client, seconds):
    with pytest.raises(tensorlease.TimeoutError, match="0.01 s"):
        asyncio.run(client.aget("async/never", timeout=seconds))


def test_so_may_the_clients(address):
    with tensorlease.connect(address, autostart=False, timeout=decimal.Decimal(5)) as client:
        client.put("async/decimal", np.arange(3))
        assert asyncio.run(client.aget("async/decimal", timeout=None, stream=1)).shape == (3,)


def test_a_wait_that_cannot_begin_is_forgotten(client, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start"):
        asyncio.run(client.aget("async/nothing"))
    assert not client._waiter.waits
