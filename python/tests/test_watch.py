# SPDX-License-Identifier: Apache-2.0
"""watch() of names and prefixes, and events()."""

import asyncio
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import daemon_at, interrupted_as, once_asleep, run_python
from limits import limit

import tensorlease


def told(events, n):
    return [next(events)[:3] for _ in range(n)]


def producer_of(address, code):
    """Runs code in another process, which has a client, and ends without a word."""
    program = f"import os, numpy, tensorlease\nclient = tensorlease.connect({address!r})\n{code}\nos._exit(0)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_events_of_names_that_start_alike(client, address):
    client.put("ev/a", b"1")
    with client.events("ev/", timeout=limit(60)) as events:
        assert told(events, 1) == [("published", "ev/a", 1)]
        assert events.poll() is None
        for _ in range(3):
            client.put("ev/b", b"2", ring=False)
        client.put("other", b"3")
        assert next(events) == ("published", "ev/b", 3, 0)
        for _ in range(3):
            client.put("ev/b", b"2", ring=False)
        assert next(events) == tensorlease.Event("published", "ev/b", 6, 2)
        client.delete("ev/a")
        assert told(events, 1) == [("deleted", "ev/a", 1)]
        producer_of(address, "client.put('ev/c', b'4')")
        assert told(events, 2) == [("published", "ev/c", 1), ("producer-gone", "ev/c", 1)]
        assert events.poll() is None
    with client.events("ev/", new=True) as events:
        assert events.poll() is None
        client.put("ev/c", b"5")
        assert told(events, 1) == [("published", "ev/c", 2)]
        assert not select.select([events], [], [], 0)[0]
        client.put("ev/d", b"5")
        assert select.select([events], [], [], limit(60))[0]
        assert told(events, 1) == [("published", "ev/d", 1)]
    with pytest.raises(ValueError, match="closed"):
        next(events)
    with pytest.raises(tensorlease.TimeoutError, match="nothing happened to names below 'none/' within 0.01 s"):
        next(client.events("none/", timeout=0.01))


def test_a_watch_counts_what_it_skips_and_ends_with_the_producer(client, address):
    producer_of(address, "for i in range(5): client.put('gone', numpy.full(3, i), ring=False)")
    watch = client.watch("gone", timeout=limit(60), until_gone=True)
    assert [int(tensor[0]) for tensor in watch] == [4]
    assert watch.over
    assert list(client.watch("gone", newer_than=5, until_gone=True, timeout=limit(60))) == []  # the last was had
    seen = []
    client.put("gone", np.full(3, 10))
    for tensor in client.watch("gone", newer_than=5, until_gone=True, timeout=limit(60)):
        seen.append(int(tensor[0]))
        if len(seen) == 1:
            producer_of(address, "client.put('gone', numpy.full(3, 11))")
    assert seen == [10, 11]
    with client.watch("gone", timeout=limit(60)) as watch:
        assert next(watch).version == 7
        for i in range(4):
            client.put("gone", np.full(3, i), ring=False)
        assert next(watch).version == 11 and watch.skipped == 3
    client.delete("gone")


def test_a_whole_set_again_and_again(client, address):
    sets = [{"a": np.full(2, 1), "b": np.full(2, 1)}, {"a": np.full(2, 2), "b": np.full(2, 2), "c": np.full(2, 2)}]
    watch = client.watch(prefix="set/", timeout=limit(60))
    for each in sets:
        client.put_many(each, prefix="set/")
        found = next(watch)
        assert {name: tensor.tolist() for name, tensor in found.items()} == {n: a.tolist() for n, a in each.items()}
    for _ in range(3):
        client.put_many(sets[1], prefix="set/")
    assert sorted(next(watch)) == ["a", "b", "c"]
    assert watch.skipped == 6
    with pytest.raises(tensorlease.TimeoutError, match="nothing new came below 'none/' within 0.01 s"):
        next(client.watch("none/", timeout=0.01))
    client.delete("set/c")
    assert sorted(next(watch)) == ["a", "b"]
    for name in "ab":
        client.delete(f"set/{name}")
    assert watch.poll() is None  # no set is empty
    watch.close()
    with pytest.raises(ValueError, match="closed"):
        next(watch)


def test_a_set_is_never_a_mix(client, address):
    """Another process publishes sets that grow; each has as many names as its values say."""
    code = "for i in range(1, 61): client.put_many({str(k): numpy.full(4, i) for k in range(i)}, prefix='mix/')"
    thread = threading.Thread(target=producer_of, args=(address, code))
    thread.start()
    last = 0
    for found in client.watch(prefix="mix/", timeout=limit(60), until_gone=True):
        values = {int(v) for tensor in found.values() for v in tensor.numpy()}
        assert len(values) == 1, values
        assert values == {len(found)}
        assert len(found) > last
        last = len(found)
        for tensor in found.values():
            tensor.release()
    thread.join()
    assert last == 60
    for name in client.keys("mix/"):
        client.delete(name)


def test_a_set_replaces_the_former_one(client, address):
    client.put_many({"a": b"1", "b": b"1", "c": b"1"}, prefix="rep/")
    client.put("other", b"1")
    watch = client.watch(prefix="rep/", timeout=limit(60))
    assert sorted(next(watch)) == ["a", "b", "c"]
    client.put_many({"b": b"2", "d": b"2"}, prefix="rep/", replace=True)
    assert {name: tensor.bytes() for name, tensor in next(watch).items()} == {"b": b"2", "d": b"2"}
    assert sorted(client.get_many(prefix="rep/")) == ["b", "d"]
    with pytest.raises(tensorlease.InvalidError, match="needs a prefix"):
        client.put_many({"b": b"2"}, replace=True)
    with pytest.raises(TypeError, match="a name or prefix=, and not both"):
        client.delete()
    client.delete(prefix="rep/")
    assert watch.poll() is None and client.keys("rep/") == []  # no set is empty
    client.put_many({"e": b"3"}, prefix="rep/")
    assert {name: tensor.bytes() for name, tensor in next(watch).items()} == {"e": b"3"}
    client.delete("rep/e")
    client.delete(prefix="rep/", missing_ok=True)
    with pytest.raises(tensorlease.NotFoundError, match="there is no tensor below 'rep/'"):
        client.delete(prefix="rep/")
    assert "other" in client
    client.delete("other")


def test_no_reader_sees_a_mix_of_sets_that_replace_each_other(client, address):
    """Sets have names of their own, so a mix would have names of two."""
    code = (
        "for i in range(1, 41): client.put_many({f'{i}/{k}': numpy.full(4, i) for k in range(i % 7 + 1)}, prefix='reps/',"
        " replace=True)"
    )
    thread = threading.Thread(target=producer_of, args=(address, code))
    thread.start()
    last = 0
    for found in client.watch(prefix="reps/", timeout=limit(60), until_gone=True):
        sets = {int(name.split("/")[0]) for name in found}
        assert len(sets) == 1 and len(found) == sets.pop() % 7 + 1
        last = int(next(iter(found)).split("/")[0])
    thread.join()
    assert last == 40
    client.delete(prefix="reps/")


def test_in_asyncio(client, address):
    async def main():
        seen, sets = [], []
        async for tensor in client.watch("aw", timeout=limit(60)):
            seen.append(tensor.item())
            if seen[-1] == 3:
                break
            client.put("aw", np.array([seen[-1] + 1]))
        async for found in client.watch(prefix="aset/", timeout=limit(60)):
            sets.append({name: tensor.item() for name, tensor in found.items()})
            if len(sets) == 3:
                break
            client.put_many({"x": np.array([len(sets)]), "y": np.array([len(sets)])}, prefix="aset/")
        with pytest.raises(tensorlease.TimeoutError):
            async for _ in client.events("none/", timeout=0.05):
                pass
        late = asyncio.get_running_loop().create_task(anext(client.watch("aw2")))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        return seen, sets

    client.put("aw", np.array([1]))
    client.put_many({"x": np.array([0]), "y": np.array([0])}, prefix="aset/")
    assert asyncio.run(main()) == ([1, 2, 3], [{"x": n, "y": n} for n in range(3)])


def test_a_cancellation_is_not_lost_when_something_comes(client):
    async def main(turns):
        watch = client.watch("cancelled/a")

        async def follow():
            async for _ in watch:
                pass

        async def let_it_run(turns):
            for _ in range(turns):
                await asyncio.sleep(0)

        task = asyncio.create_task(follow())
        await let_it_run(10)  # it waits now
        client.put("cancelled/a", b"1")
        assert select.select([watch], [], [], limit(60))[0]
        await let_it_run(turns)
        task.cancel()
        await let_it_run(10)
        return task.cancelled()

    assert all([asyncio.run(main(turns)) for turns in range(9)])
    client.delete("cancelled/a")


@pytest.mark.parametrize("function", ["Watch.next", "list.pop"])
@pytest.mark.parametrize("kind", ["name", "prefix", "events"])
def test_an_interrupted_step_loses_no_event(client, kind, function):
    def step():
        if kind == "name":
            return next(watch).bytes()
        if kind == "prefix":
            return {name: tensor.bytes() for name, tensor in next(watch).items()}
        while len(told) < 3:
            told.append(next(watch)[:2])
        return sorted(told)

    wanted = {
        "name": b"2",
        "prefix": {"b": b"2", "c": b"2"},
        "events": [("deleted", "cut/a"), ("published", "cut/b"), ("published", "cut/c")],
    }
    n, interrupted = 0, True
    while interrupted:
        n += 1
        client.put_many({"a": b"1", "b": b"1"}, prefix="cut/", replace=True)
        if kind == "events":
            watch = client.events("cut/", new=True, timeout=limit(60))
        else:
            watch = client.watch("cut/b" if kind == "name" else "cut/", timeout=limit(60))
            next(watch)
        told = []
        client.put_many({"b": b"2", "c": b"2"}, prefix="cut/", replace=True)
        try:
            with interrupted_as(function, n):
                found = step()
            interrupted = False
        except KeyboardInterrupt:
            found = step()
        assert found == wanted[kind]
        watch.close()
    assert n > 1 or function == "list.pop"
    client.delete(prefix="cut/")


@pytest.mark.parametrize("how", ["get", "aget", "watch", "watch prefix", "async watch"])
def test_a_wait_goes_on_while_the_daemon_stands_still(tmp_path, how):
    address = str(tmp_path / "socket")
    with daemon_at(address) as daemon, tensorlease.connect(address, timeout=0.2, autostart=False) as client:
        watch = client.watch("s/") if how == "watch prefix" else client.watch("s/a")
        with tensorlease.connect(address, autostart=False) as other:
            other.put("s/a", b"1")

        async def step():
            return await (client.aget("s/a") if how == "aget" else anext(watch))

        daemon.send_signal(signal.SIGSTOP)
        timer = threading.Timer(1, daemon.send_signal, [signal.SIGCONT])
        timer.start()
        try:
            if "a" in how.split()[0][0]:
                found = asyncio.run(step())
            else:
                found = client.get("s/a", timeout=limit(60)) if how == "get" else next(watch)
        finally:
            timer.join()
        assert (found["a"] if how == "watch prefix" else found).bytes() == b"1"
        watch.close()


async def anext(iterator):  # a builtin since Python 3.10, but not for all that have __anext__()
    return await iterator.__anext__()


def test_it_outlives_the_daemon(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        events = client.events("o/", timeout=limit(60))
        watch = client.watch("o/a", timeout=limit(60))
        client.put("o/a", b"1")
        assert told(events, 1) == [("published", "o/a", 1)]
        assert next(watch).version == 1
        first.kill()
        first.wait()
        with pytest.raises(tensorlease.DisconnectedError):
            next(client.watch("o/a", timeout=0.05))

        async def disconnected():
            await anext(client.watch("o/a", newer_than=1, timeout=0.05))

        with pytest.raises(tensorlease.DisconnectedError):
            asyncio.run(disconnected())
        with daemon_at(address), tensorlease.connect(address, autostart=False) as producer:
            assert next(events)[0] == "restarted"
            producer.put("o/a", b"2")
            assert next(events)[:2] == ("published", "o/a")
            assert next(watch).bytes() == b"2"


@pytest.mark.parametrize("kind", ["name", "prefix"])
def test_another_daemon_is_not_the_end_of_the_producer(tmp_path, kind):
    address = str(tmp_path / "socket")
    where = {"name": "o/a"} if kind == "name" else {"prefix": "o/"}
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        events, watch = client.events("o/", timeout=limit(60)), client.watch(**where, until_gone=True, timeout=limit(60))
        client.put("o/a", b"1")
        assert next(watch) and told(events, 1) == [("published", "o/a", 1)]
        with tensorlease.connect(address, autostart=False) as other:
            for _ in range(50):
                other.put("x", b"1", ring=False)  # the next daemon begins above all versions
        first.kill()
        first.wait()
        with daemon_at(address):
            assert next(events)[0] == "restarted"
            assert watch.poll() is None and not watch.over
            thread = once_asleep(lambda: client.put("o/a", b"2"))
            found = next(watch)
            thread.join()
            found = found if kind == "name" else found["a"]
            assert found.bytes() == b"2" and found.version > 50 and watch.skipped == 0
            client.delete("o/a")
            assert list(watch) == []


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_step_that_begins_without_a_daemon_waits_for_the_next_one(tmp_path, kind):
    address, got, begun = str(tmp_path / "socket"), [], threading.Event()
    with daemon_at(address) as first, tensorlease.connect(address, autostart=False) as client:
        watch = client.watch(prefix="o/", timeout=limit(60))
        first.kill()
        first.wait()
        with pytest.raises(tensorlease.DisconnectedError):
            client.stat("o/a")  # it has been noticed

        def step():
            begun.set()
            found = next(watch) if kind == "thread" else asyncio.run(anext(watch))
            got.append({name: tensor.bytes() for name, tensor in found.items()})

        thread = threading.Thread(target=step)
        thread.start()
        begun.wait()
        thread.join(0.5)
        assert thread.is_alive()
        with daemon_at(address), tensorlease.connect(address, autostart=False) as producer:
            producer.put("o/a", b"2")
            thread.join()
    assert got == [{"a": b"2"}]


def test_a_fast_producer_does_not_stop_the_event_loop(client):
    async def main():
        watches = client.watch("fast/a"), client.watch(prefix="fast/")
        turns = 0

        async def other():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for step in range(100):  # nothing here ever has to wait
            client.put("fast/a", b"1")
            for watch in watches:
                await anext(watch)
            await client.aget("fast/a", newer_than=step)
        task.cancel()
        return turns

    assert asyncio.run(main()) >= 300
    client.delete("fast/a")


@pytest.mark.parametrize("kind", ["name", "prefix"])
def test_a_tensor_that_is_lost_before_it_is_got_is_passed_over(client, kind, monkeypatch):
    """The memory of a GPU's tensor may go with its producer between the event and the get."""
    method = {"name": "get", "prefix": "_get_many"}[kind]
    real = getattr(tensorlease.Client, method)
    lost = []

    def losing(self, *args, **options):
        if not lost:
            lost.append(1)
            client.put("lost/a", b"2", ring=False)
            raise tensorlease.TensorLostError(61, "the producer has ended")
        return real(self, *args, **options)

    monkeypatch.setattr(tensorlease.Client, method, losing)
    client.put("lost/a", b"1", ring=False)
    where = {"name": "lost/a"} if kind == "name" else {"prefix": "lost/"}
    with client.watch(**where, timeout=limit(60)) as watch:
        found = next(watch)
    tensor = found if kind == "name" else found["a"]
    assert lost and tensor.tolist() == [ord("2")]


def test_a_set_that_comes_while_one_is_got_is_polled_for_without_a_wait(client, monkeypatch):
    real = tensorlease.Client._get_many

    def overtaken(self, *args):
        found = real(self, *args)
        monkeypatch.undo()
        client.put_many({"a": b"2", "b": b"2"}, prefix="poll/")
        return found

    with client.watch(prefix="poll/") as watch:
        client.put_many({"a": b"1", "b": b"1"}, prefix="poll/")
        assert select.select([watch], [], [], limit(60))[0]
        monkeypatch.setattr(tensorlease.Client, "_get_many", overtaken)
        sets = [watch.poll()]
        assert select.select([watch], [], [], 0)[0]  # for one poll() at a time
        sets.append(watch.poll())
        select.select([watch], [], [], 0)  # it may be
        assert watch.poll() is None
        assert not select.select([watch], [], [], 0)[0]
    assert [found["b"].bytes() for found in sets] == [b"1", b"2"]
    client.delete(prefix="poll/")


def test_a_watch_is_generic():
    assert tensorlease.Watch[int].__origin__ is tensorlease.Watch


def test_a_watch_needs_a_name(client):
    with pytest.raises(tensorlease.InvalidError, match="an empty name"):
        client.watch("")


@pytest.mark.parametrize("closed", ["the watch", "its client"])
def test_close_ends_a_wait_in_an_event_loop(address, client, closed):
    async def main():
        other = tensorlease.connect(address, autostart=False)
        watch = other.watch("never")
        wait = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)  # it waits now
        (watch if closed == "the watch" else other).close()
        with pytest.raises(ValueError, match="closed"):
            await wait
        other.close()

    asyncio.run(main())


def test_close_leaves_the_event_loop_what_has_the_watchs_number_now(client):
    async def main():
        watch = client.watch("never")
        number = watch.fileno()
        wait = asyncio.create_task(anext(watch))
        for _ in range(3):
            await asyncio.sleep(0)  # it waits now
        watch.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
        a, theirs = socket.socketpair()
        if a.fileno() != number:  # lower numbers became free, too
            if theirs.fileno() == number:
                a, theirs = theirs, a
            else:
                os.dup2(a.fileno(), number)
                a.close()
                a = socket.socket(fileno=number)
        with a as ours, theirs:
            heard = asyncio.Event()
            asyncio.get_running_loop().add_reader(ours, heard.set)
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            theirs.send(b"x")
            await asyncio.wait_for(heard.wait(), limit(60))
            asyncio.get_running_loop().remove_reader(ours)

    asyncio.run(main())


def test_close_and_signals_end_a_wait(client):
    watch = client.watch("never")
    errors = []

    def wait():
        try:
            next(watch)
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    watch.close()
    thread.join()
    assert len(errors) == 1 and "closed" in errors[0]

    with tensorlease.connect(autostart=False) as other:
        watch = other.watch("never")
        thread = threading.Thread(target=wait)
        thread.start()
    thread.join()
    assert len(errors) == 2 and "closed" in errors[1]

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = once_asleep(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    with pytest.raises(KeyboardInterrupt):
        next(client.watch("never"))
    thread.join()
    signal.signal(signal.SIGUSR1, before)


def test_what_is_collected_is_given_back(client):
    for _ in range(300):  # more than one client may have
        watch = client.watch(prefix="collected/")
        watch.fileno()
        del watch
        gc.collect(0)  # it is young


CLOSED_AT_ONCE = """
import threading, tensorlease

def end(watches):
    barrier.wait()
    while watches:
        watch = watches.pop()
        if {close}:
            watch.close()

for _ in range(100):
    client = tensorlease.connect(autostart=False)
    watches, barrier = [client.events("once/") for _ in range(3)], threading.Barrier(2)
    for watch in watches:
        watch.fileno()
    del watch
    drafts = [client.create(f"draft{{n}}", 1 << 20, "uint8") for n in range(8)]  # whose end gives the GIL up
    thread = threading.Thread(target=end, args=(watches,))
    thread.start()
    barrier.wait()
    client.close()
    thread.join()
"""


@pytest.mark.parametrize("close", [True, False])  # False: they are collected
def test_watches_are_closed_while_their_client_is(address, close):
    """In another interpreter, because what once went wrong was a wait for ever in the library."""
    run_python(CLOSED_AT_ONCE.format(close=close))


def test_mistakes(client):
    with pytest.raises(TypeError, match="a name or prefix=, and not both"):
        client.watch()
    with pytest.raises(TypeError, match="a name or prefix=, and not both"):
        client.watch("a", prefix="b")
    with pytest.raises(TypeError, match="newer_than and stream are for the watch of a name"):
        client.watch(prefix="a/", newer_than=1)
    for wrong in (-1, 1 << 64, 1 << 70):
        with pytest.raises(ValueError, match="newer_than must be an int from 0 to 2"):
            client.watch("a", newer_than=wrong)
    for wrong in ("", 1.5):
        with pytest.raises(TypeError, match="newer_than"):
            client.watch("a", newer_than=wrong)
    with pytest.raises(tensorlease.InvalidError):
        client.watch("a//b")
    with pytest.raises(TypeError):
        client.watch(5)
    with pytest.raises((TypeError, ValueError)):
        client.watch("a", timeout="soon")
    watches = [client.watch("a") for _ in range(256)]
    with pytest.raises(tensorlease.NoSpaceError, match="256"):
        client.watch("a")
    for watch in watches:
        watch.close()
