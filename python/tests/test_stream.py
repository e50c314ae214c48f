# SPDX-License-Identifier: Apache-2.0
"""Streams: every item reaches whoever must have it."""

import asyncio
import contextlib
import math
import select
import subprocess
import sys
import threading

import numpy as np
import pytest

import tensorlease
from conftest import daemon_at, eventually
from limits import limit


@pytest.fixture(autouse=True)
def no_streams(client):
    yield
    for name in ("s", "q"):
        with contextlib.suppress(tensorlease.NotFoundError):
            client.delete(name)


@pytest.fixture
def other(address):
    with tensorlease.connect(autostart=False) as other:
        yield other


def frames(n, size=1000):
    return [np.full(size, i % 251, np.uint8) for i in range(n)]


def test_each_subscriber_gets_every_item_in_order(client, other):
    stream = client.stream("s", "broadcast", depth=8)
    subscriptions = [stream.subscribe(), other.stream("s", existing=True).subscribe()]
    numbers = []
    for i, frame in enumerate(frames(100)):
        numbers.append(stream.put(frame, metadata=b"%d" % i))
        for subscription in subscriptions:
            item = subscription.get()
            assert np.array_equal(item.tensor.numpy(), frame)
            assert item.metadata == b"%d" % i
            assert item.number == numbers[-1]
    assert numbers == sorted(set(numbers))


def test_an_item_may_have_many_tensors(client):
    stream = client.stream("s", "broadcast")
    subscription = stream.subscribe()
    obs = np.arange(12.0).reshape(3, 4).T
    stream.put({"obs": obs, "reward": np.float32(2.5), "done": np.zeros(0, bool)})
    item = subscription.get()
    assert item.keys() == ["obs", "reward", "done"] and len(item) == 3 and "obs" in item
    assert np.array_equal(item["obs"].numpy(), obs)
    assert item["reward"].numpy() == np.float32(2.5) and item[2].shape == (0,)
    with pytest.raises(KeyError):
        item["action"]
    with pytest.raises(ValueError, match="3 tensors"):
        item.tensor  # noqa: B018
    kept = item["obs"].numpy()
    assert not kept.flags.writeable
    item.release()
    del item
    for _ in range(100):
        stream.put([obs * 0, obs])
        assert len(subscription.get().tensors) == 2
    assert np.array_equal(kept, obs)


def test_a_consumer_that_writes_gets_a_copy_of_its_own(client):
    stream = client.stream("s", "broadcast")
    subscriptions = [stream.subscribe(), stream.subscribe()]
    stream.put(np.arange(5))
    mine = subscriptions[0].get().tensor
    own = mine.copy_on_write().numpy()
    own[:] = 7
    assert own.sum() == 35
    assert list(subscriptions[1].get().tensor.numpy()) == [0, 1, 2, 3, 4]
    assert list(mine.numpy()) == [0, 1, 2, 3, 4]


def test_a_full_stream_says_who_holds_it_up(client):
    stream = client.stream("s", "broadcast", depth=2)
    subscription = stream.subscribe()
    stream.put(np.zeros(1))
    stream.put_nowait(np.zeros(1))
    with pytest.raises(tensorlease.NotNewerError):
        stream.put_nowait(np.zeros(1))
    with pytest.raises(tensorlease.TimeoutError, match=r"held up by .* \(pid \d+\), which is 2 items behind"):
        stream.put(np.zeros(1), timeout=0.01)
    with pytest.raises(tensorlease.TimeoutError, match="held up by"):
        asyncio.run(stream.aput(np.zeros(1), timeout=0.01))
    subscription.close()
    stream.put_nowait(np.zeros(1))


def test_a_lossy_subscriber_learns_what_it_has_skipped(client):
    stream = client.stream("s", "broadcast", depth=4)
    lossy = stream.subscribe(lossy=True)
    for frame in frames(50):
        stream.put_nowait(frame)
    item = lossy.get()
    assert item.skipped == 46 and item.tensor.numpy()[0] == 46


def test_what_is_kept_is_for_late_ones(client):
    stream = client.stream("s", "broadcast", depth=4, keep=3)
    for frame in frames(10):
        stream.put(frame)
    late = stream.subscribe(kept=True)
    assert [item.tensor.numpy()[0] for item in late.take(8)] == [7, 8, 9]


def test_the_end_ends_an_iteration(client):
    stream = client.stream("s", "queue", depth=4)
    subscription = stream.subscribe()

    def produce():
        for frame in frames(30):
            stream.put(frame)
        stream.end()

    thread = threading.Thread(target=produce)
    thread.start()
    assert [item.tensor.numpy()[0] for item in subscription] == list(range(30))
    thread.join()
    assert subscription.ended and subscription.get() is None
    with pytest.raises(BrokenPipeError):
        stream.put(np.zeros(1))
    stream.reopen()
    stream.put(np.ones(1))
    assert subscription.get().tensor.numpy()[0] == 1


def test_asyncio(client):
    stream = client.stream("s", "broadcast", depth=2)
    subscription = stream.subscribe()

    async def produce():
        for frame in frames(20):
            await stream.aput(frame)
        await stream.aend()

    async def consume():
        return [item.tensor.numpy()[0] async for item in subscription]

    async def both():
        return (await asyncio.gather(produce(), consume()))[1]

    assert asyncio.run(both()) == list(range(20))


def test_event_loops_sleep_until_there_is_something(client):
    stream = client.stream("s", "queue", depth=1)
    subscription = stream.subscribe()

    async def wait_and_close():
        get = asyncio.ensure_future(subscription.aget())
        with pytest.raises(tensorlease.TimeoutError):
            await subscription.aget(0.01)  # beside another task
        stream.put(np.zeros(1))
        assert (await get).tensor.numpy()[0] == 0
        get = asyncio.ensure_future(subscription.aget())
        await asyncio.sleep(0)
        get.cancel()
        with pytest.raises(asyncio.CancelledError):
            await get
        get = asyncio.ensure_future(subscription.aget())
        await asyncio.sleep(0)
        subscription.close()
        with pytest.raises(ValueError, match="closed"):
            await get

    asyncio.run(asyncio.wait_for(wait_and_close(), 60))


def test_trio(client):
    trio = pytest.importorskip("trio")
    stream = client.stream("s", "broadcast", depth=2)
    subscription = stream.subscribe()
    got = []

    async def produce():
        for frame in frames(20):
            await stream.aput(frame)
        await stream.aend()

    async def consume():
        got.extend([item.tensor.numpy()[0] async for item in subscription])

    async def both():
        with pytest.raises(tensorlease.TimeoutError):
            await subscription.aget(0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            nursery.start_soon(consume)

    trio.run(both)
    assert got == list(range(20))


def test_descriptors_for_other_loops(client):
    stream = client.stream("s", "queue", depth=1)
    subscription = stream.subscribe()
    with pytest.raises(tensorlease.NotNewerError):
        subscription.get(None)
    assert select.select([subscription], [], [], 0)[0] == []
    stream.put(np.zeros(1))
    assert select.select([subscription], [], [], 60)[0] == [subscription]
    with pytest.raises(tensorlease.NotNewerError):
        stream.put_nowait(np.zeros(1))
    subscription.get()
    assert select.select([stream], [], [], 60)[0] == [stream]


def test_drafts_are_written_in_place(client):
    stream = client.stream("s", "queue", depth=2)
    subscription = stream.subscribe()
    with stream.draft((2, 3), "float32", metadata_size=4) as draft:
        draft.tensor.numpy()[:] = 7
    assert (subscription.get().tensor.numpy() == np.full((2, 3), 7, np.float32)).all()
    draft = stream.draft({"image": ((4, 4), np.uint8), "label": (1, "int64")}, metadata_size=8)
    draft["image"].numpy()[:] = 1
    draft["label"].numpy()[0] = 5
    assert len(draft) == 2 and draft[1].shape == (1,)
    with pytest.raises(KeyError):
        draft["depth"]
    with pytest.raises(ValueError, match="use draft.tensors"):
        draft.tensor
    number = draft.commit(metadata=b"seven")
    with pytest.raises(ValueError, match="committed or aborted"):
        draft.commit()
    item = subscription.get()
    assert item.number == number and item.metadata == b"seven" and item["label"].numpy()[0] == 5
    assert (item["image"].numpy() == 1).all()
    with pytest.raises(RuntimeError), stream.draft(3, "uint8"):
        raise RuntimeError
    with pytest.raises(tensorlease.NotNewerError):
        subscription.get(None)
    small = stream.draft(3, "uint8", metadata_size=1)
    with pytest.raises(ValueError, match="room for 1"):
        small.commit(metadata=b"two")
    small.commit(metadata=b"1")
    stream.put(np.zeros(1))
    full = stream.draft(3, "uint8")
    with pytest.raises(tensorlease.NotNewerError):
        full.commit(timeout=None)
    subscription.take(2)
    full.commit()
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.draft(3, "uint8")
    with pytest.raises(ValueError):
        client.stream("s", existing=True).draft(-1, "uint8")


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_arrays_of_a_draft_become_read_only(client, ends):
    stream = client.stream("s", "queue", depth=2)
    draft = stream.draft({"a": (3, "uint8"), "b": ((), "bfloat16")})
    tensors = draft.tensors
    arrays = [draft["a"].numpy(), draft["a"].numpy()]
    arrays[0][:] = 1
    draft["a"][2] = 3
    own = draft["a"].numpy(copy=True)
    with contextlib.suppress(TypeError):  # without ml_dtypes
        arrays.append(draft["b"].numpy())
        arrays[-1][()] = 2
    getattr(draft, ends)()
    for array in arrays:
        assert not array.flags.writeable
    own[:] = 7
    assert list(arrays[1]) == [1, 1, 3]
    with pytest.raises(ValueError, match="released"):
        tensors[0].numpy()
    if ends == "commit":
        assert list(stream.subscribe().get()["a"].numpy()) == [1, 1, 3]


def test_a_draft_may_end_within_its_block(client):
    stream = client.stream("s", "queue", depth=2)
    subscription = stream.subscribe()
    with stream.draft(3, "uint8", metadata_size=1) as draft:
        draft.commit(metadata=b"1")
    assert subscription.get().metadata == b"1"
    with stream.draft(3, "uint8") as draft:
        draft.abort()
    with pytest.raises(RuntimeError), stream.draft(3, "uint8") as draft:
        draft.commit()
        raise RuntimeError
    assert subscription.get().metadata == b""
    with pytest.raises(tensorlease.NotNewerError):
        subscription.get(None)


def test_who_is_how_far_behind(client):
    stream = client.stream("s", "broadcast", depth=4, keep=2)
    subscription, lossy = stream.subscribe(), stream.subscribe(lossy=True)
    for frame in frames(3):
        stream.put(frame)
    subscription.get()
    info = stream.info()
    assert (info.name, info.mode, info.depth, info.keep, info.length) == ("s", "broadcast", 4, 2, 2)
    assert info.next - info.first == 3 and info.producers == 1 and info.subscribers == 2 and not info.ended
    assert "s" in [s.name for s in client.streams()] and client.streams("nothing") == []
    lags = {member.role: member.lag for member in stream.members()}
    assert lags["subscriber"] == 2 and lags["lossy"] == 3 and "producer" in lags
    stream.end()
    assert stream.info().ended
    del lossy
    with pytest.raises(tensorlease.NotFoundError):
        client._stream_info("nothing")


def test_what_never_fits_does_not_wait(client):
    stream = client.stream("s", "queue")
    stream.put(np.zeros(1))
    with pytest.raises(tensorlease.NoSpaceError):
        stream.draft(1 << 34, "uint8", timeout=60)
    stream.put(np.zeros(1))


def test_lifetimes(client, address):
    with tensorlease.connect(autostart=False) as other:
        bound = other.stream("bound", "queue", owner_bound=True)
        bound.put(np.zeros(1))
        client.stream("bound", existing=True)
    with pytest.raises(tensorlease.NotFoundError):
        client.stream("bound", existing=True)
    used = client.stream("used", "queue", ttl=1e-3, produce=True)
    client.stream("used", existing=True)
    used.close()
    with pytest.raises(tensorlease.NotFoundError):
        while True:
            client.stream("used", existing=True)
    with pytest.raises(ValueError, match="ttl"):
        client.stream("s", "queue", ttl=-1)


WORKER = """
import os, sys, tensorlease
client = tensorlease.connect(sys.argv[1])
item = client.stream("q", existing=True).subscribe().get()
print(int(item.tensor.numpy()[0]), flush=True)
sys.stdin.read()
os._exit(1)
"""


def test_what_a_dead_worker_had_goes_to_another(client, address):
    stream = client.stream("q", "queue", depth=4)
    stream.put(np.full(3, 5))
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(address)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout.readline().strip() == "5"
    subscription = stream.subscribe()
    worker.kill()
    worker.communicate()
    item = subscription.get()
    assert item.tries == 1 and list(item.tensor.numpy()) == [5, 5, 5]
    item.done()
    with pytest.raises(tensorlease.NotNewerError):
        subscription.get(None)


def test_what_cannot_be(client):
    client.put("t", np.zeros(1))
    with pytest.raises(OSError, match="means a tensor"):
        client.stream("t", "queue")
    with pytest.raises(tensorlease.NotFoundError):
        client.stream("none", existing=True)
    with pytest.raises(ValueError, match="mode is 'fan'"):
        client.stream("s", "fan")
    with pytest.raises(ValueError, match="mode is missing"):
        client.stream("s")
    stream = client.stream("s", "broadcast")
    with pytest.raises(OSError, match="'s' is a broadcast, and was opened as a queue"):
        client.stream("s", "queue")
    with pytest.raises(OSError, match="is a stream"):
        client.get("s")
    with pytest.raises(TypeError, match="'obs': 'dict' is not an array: .* without dicts in it, .* tensorlease.Queue"):
        stream.put({"obs": {"image": np.zeros(1)}})
    with pytest.raises(tensorlease.InvalidError, match="0 tensors"):
        stream.put([])
    stream.close()
    with pytest.raises(ValueError, match="the stream is closed"):
        stream.put(np.zeros(1))


def test_who_opens_a_stream_says_what_it_is_or_nothing(client, other):
    client.stream("s", "broadcast", depth=8, keep=2, shared=True, ttl=60)
    same = ({}, {"depth": 8}, {"keep": 2}, {"shared": True}, {"ttl": 60}, {"existing": True})
    for options in same:
        assert other.stream("s", "broadcast", **options).info().depth == 8
    for options in ({"depth": 16}, {"keep": 1}, {"ttl": 30}, {"owner_bound": True}, {"drop_oldest": True}):
        for existing in (False, True):
            with pytest.raises(ValueError, match=f"the stream 's' .* {next(iter(options))}.*, and was opened with"):
                other.stream("s", "broadcast", existing=existing, **options)
    client.stream("q", "queue", max_tries=15)
    other.stream("q", "queue")
    with pytest.raises(tensorlease.InvalidError, match="has max_tries 15, and was opened with 3"):
        other.stream("q", "queue", max_tries=3)


def test_closing_ends_a_wait(client, other):
    subscription = other.stream("s", "broadcast").subscribe()
    errors = []

    def wait():
        try:
            subscription.get(math.inf)
        except ValueError as e:
            errors.append(str(e))

    thread = threading.Thread(target=wait)
    thread.start()
    other.close()
    thread.join()
    assert errors and "closed" in errors[0]


def test_a_loop_acknowledges_the_last_item_too(client, other):
    stream = client.stream("q", "queue")
    numbers = [stream.put(frame) for frame in frames(5)]
    stream.end()
    seen = []
    for item in stream.subscribe():
        if item.number % 2:
            item.release()
        elif item.number % 4:
            item.done()
        seen.append(item.number)
    assert seen == numbers
    again = other.stream("q", existing=True).subscribe()
    assert [item.number for item in again] == []


def test_a_loop_that_waits_has_acknowledged_what_it_had(client):
    stream = client.stream("q", "queue")
    held = []

    def work():
        held.extend(stream.subscribe())

    thread = threading.Thread(target=work)
    thread.start()
    stream.put(np.zeros(3))
    eventually(lambda: stream.info().length == 0)
    stream.end()
    thread.join()
    assert len(held) == 1


@pytest.mark.parametrize("kind", ["for", "async for"])
def test_a_loop_acknowledges_when_it_asks_for_the_next_item(client, other, kind):
    stream = client.stream("q", "queue")
    numbers, held = [stream.put(frame) for frame in frames(3)], []
    subscription = stream.subscribe()

    async def take():
        async for item in subscription:
            held.append(item)
            if len(held) == 2:
                break

    if kind == "for":
        for item in subscription:
            held.append(item)
            if len(held) == 2:
                break
    else:
        asyncio.run(take())
    subscription.close()
    late = other.stream("q", existing=True).subscribe()
    eventually(lambda: stream.info().length == 2)
    assert [(item.number, item.tries) for item in late.take(3, limit(30))] == [(numbers[1], 1), (numbers[2], 0)]
    assert [item.number for item in held] == numbers[:2]


def test_an_item_without_names_is_its_tensors(client):
    stream = client.stream("s", "broadcast")
    subscription = stream.subscribe()
    stream.put(np.arange(4))
    item = subscription.get()
    assert np.asarray(item).tolist() == [0, 1, 2, 3] and np.asarray(item, "float32").dtype == np.float32
    assert np.array(item, copy=True).flags.writeable and [tensor.shape for tensor in item] == [(4,)]
    stream.put([np.zeros(2), np.ones(3)])
    item = subscription.get()
    assert [tensor.shape for tensor in item] == [(2,), (3,)] == [tensor.shape for tensor in item.values()]
    with pytest.raises(ValueError, match="2 tensors"):
        np.asarray(item)
    stream.put({"a": np.zeros(2), "b": np.ones(3)})
    item = subscription.get()
    assert list(item) == ["a", "b"] and [(name, t.shape) for name, t in item.items()] == [("a", (2,)), ("b", (3,))]
    assert {name: tensor.shape for name, tensor in dict(item).items()} == {"a": (2,), "b": (3,)}


@pytest.mark.parametrize("keep", [0, 2])
def test_who_comes_after_the_end_of_a_broadcast_learns_of_it(client, keep):
    stream = client.stream("s", "broadcast", depth=4, keep=keep)
    for i in range(3):
        stream.put(np.full(2, i))
    stream.end()
    assert list(stream.subscribe()) == []
    assert [item.tensor.numpy()[0] for item in stream.subscribe(kept=True)] == ([2] if keep else [])
    stream.reopen()
    subscription = stream.subscribe()
    assert subscription.get() is None
    stream.put(np.full(2, 3))
    assert subscription.get(limit(30)).tensor.numpy()[0] == 3


def test_what_is_kept_goes_before_a_producer_lacks_memory(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address, "16M"), tensorlease.connect(address, autostart=False) as client:
        stream = client.stream("s", "broadcast", depth=8, keep=8)
        subscription = stream.subscribe()
        for i in range(20):
            stream.put(np.full(4 << 20, i, "uint8"), timeout=limit(30))
            with subscription.get(limit(30)) as item:
                assert set(item.tensor.numpy()[::4096]) == {i}
        found = [item.tensor.numpy()[0] for item in stream.subscribe(kept=True).take(8, None)]
        assert found and found == list(range(20 - len(found), 20))
        with pytest.raises(tensorlease.TimeoutError, match="no memory for a further item"):
            for _ in range(20):
                stream.put(np.zeros(4 << 20, "uint8"), timeout=0.1)
        assert subscription.get().tensor.numpy()[0] == 0
