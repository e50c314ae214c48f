# SPDX-License-Identifier: Apache-2.0
"""aget() and watch() in trio, and in anyio over trio and over asyncio."""

import os

import numpy as np
import pytest
from conftest import eventually, leases_of, until_the_waiter_sleeps
from limits import limit

import tensorlease

trio = pytest.importorskip("trio", reason="trio is not installed")
testing = pytest.importorskip("trio.testing", reason="trio is not installed")


async def until_all_wait():
    """Counts all tasks, and the thread that serves them."""
    await testing.wait_all_tasks_blocked()
    until_the_waiter_sleeps()


def test_a_wait_ends_with_the_tensor(client):
    async def main():
        client.put("trio/there", np.arange(3))
        assert (await client.aget("trio/there")).tolist() == [0, 1, 2]
        got = {}

        async def wait(name):
            got[name] = (await client.aget(name, timeout=limit(60))).item()

        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(wait, f"trio/{n}")
            await until_all_wait()
            for n in range(20):
                client.put(f"trio/{n}", np.array([n]))
        assert got == {f"trio/{n}": n for n in range(20)}

    trio.run(main)


def test_time_is_up_in_trio(client):
    async def main():
        with pytest.raises(TimeoutError, match="trio/none.*0.1 s"):
            await client.aget("trio/none", timeout=0.1)
        with pytest.raises(FileNotFoundError):
            await client.aget("trio/none", timeout=0)
        with trio.move_on_after(0.1) as scope:
            await client.aget("trio/none")
        assert scope.cancelled_caught

    trio.run(main)


def test_cancelled_waits_of_trio_take_no_lease(client, observer):
    async def main():
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(client.aget, "trio/cancel")
            await until_all_wait()
            nursery.cancel_scope.cancel()
            client.put("trio/cancel", b"x")

    trio.run(main)
    eventually(lambda: leases_of(observer, os.getpid()) == 0)


def test_close_ends_the_waits_of_trio(address):
    async def main():
        client = tensorlease.connect()

        async def wait():
            with pytest.raises(ValueError, match="closed"):
                await client.aget("trio/closed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await until_all_wait()
            client.close()

    trio.run(main)


def test_a_loop_that_is_gone_gets_nothing(client, observer):
    """What comes when trio has ended is released."""

    async def main():
        with trio.move_on_after(0.01):
            await client.aget("trio/late")

    trio.run(main)
    client.put("trio/late", b"x")
    eventually(lambda: leases_of(observer, os.getpid()) == 0)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_watching_in_anyio(client, backend):
    anyio = pytest.importorskip("anyio", reason="anyio is not installed")
    name, seen = f"trio/watch/{backend}", []

    async def watch():
        async for tensor in client.watch(name, timeout=limit(60)):
            seen.append(tensor.item())
            if seen[-1] == 3:
                return
            client.put(name, np.array([seen[-1] + 1]))

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.sleep(0.01)
            client.put(name, np.array([1]))
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.1):
                await client.aget("trio/none")

    anyio.run(main, backend=backend)
    assert seen == [1, 2, 3]
