# SPDX-License-Identifier: Apache-2.0
"""tensorlease-mirror: the items of a stream reach other hosts, all of them, in their order."""

import contextlib
import threading
import time

import numpy as np
import pytest
from conftest import eventually
from limits import limit
from mirrors import IMPORT, SKIPS, hosts, nats  # noqa: F401 (fixtures)

import tensorlease

pytestmark = SKIPS

EXPORT = "[export all]\nstreams = yes\n"
SIZES = [3, 1000, 100_000, 3_000_000]


def item(number):
    return np.full(SIZES[number % len(SIZES)], number)


def existing(client, name):
    """Opens a stream once it has come here."""
    streams = []

    def opened():
        try:
            streams.append(client.stream(name, existing=True))
        except tensorlease.NotFoundError:
            return False
        return True

    eventually(opened)
    return streams[0]


def number_of(taken):
    with taken:
        values = taken.tensor.numpy()
        assert (values == values[0]).all(), "torn"
        assert len(values) == SIZES[values[0] % len(SIZES)]
        assert taken.metadata == b"%d" % values[0]
        return int(values[0])


def put_all(stream, count, first=0):
    for number in range(first, first + count):
        stream.put(item(number), metadata=b"%d" % number, timeout=limit(60))


def test_a_broadcast_comes_whole_and_in_order(hosts):
    a = hosts("a", EXPORT).start()
    importers = [hosts(name, IMPORT).start() for name in "bc"]
    here = a.connect()
    stream = here.stream("s", "broadcast", depth=8)
    subscriptions = [existing(host.connect("mirror"), "s").subscribe() for host in importers]
    eventually(lambda: stream.info().subscribers == 2)
    producer = threading.Thread(target=put_all, args=(stream, 120))
    producer.start()
    for subscription in subscriptions:  # one after the other: the second one holds the producer up
        got = [number_of(subscription.get(timeout=limit(60))) for _ in range(10)]
        assert got == list(range(10))
    for number in range(10, 120):
        for subscription in subscriptions:
            assert number_of(subscription.get(timeout=limit(60))) == number
    producer.join()
    stream.put({"obs": item(1), "reward": item(0)}, metadata=b"both")
    for subscription in subscriptions:
        with subscription.get(timeout=limit(60)) as taken:
            assert taken.keys() == ["obs", "reward"] and taken.metadata == b"both"
            assert np.array_equal(taken["obs"].numpy(), item(1))
    stream.end()
    for subscription in subscriptions:
        assert subscription.get(timeout=limit(60)) is None


def test_the_producer_waits_for_other_hosts(hosts):
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT).start()
    here = a.connect()
    stream = here.stream("s", "broadcast", depth=4)
    subscription = existing(b.connect("mirror"), "s").subscribe()
    eventually(lambda: stream.info().subscribers == 1)
    count = 0
    with pytest.raises(TimeoutError):
        while True:
            stream.put(item(count), metadata=b"%d" % count, timeout=2)
            count += 1
            assert count < 200
    for number in range(count):
        assert number_of(subscription.get(timeout=limit(60))) == number
    put_all(stream, 5, count)
    for number in range(count, count + 5):
        assert number_of(subscription.get(timeout=limit(60))) == number


def test_nobody_waits_for_a_lossy_host(hosts):
    a, b = hosts("a", EXPORT).start(), hosts("b", f"{IMPORT}streams = lossy\n").start()
    here = a.connect()
    stream = here.stream("s", "broadcast", depth=4)
    subscription = existing(b.connect("mirror"), "s").subscribe()
    eventually(lambda: stream.info().subscribers == 1)
    put_all(stream, 300)
    last = -1
    while last < 299:
        number = number_of(subscription.get(timeout=limit(60)))
        assert number > last
        last = number


def test_each_item_of_a_queue_goes_to_one_worker(hosts):
    a = hosts("a", EXPORT).start()
    importers = [hosts(name, IMPORT).start() for name in "bc"]
    here = a.connect()
    stream = here.stream("q", "queue", depth=16)
    queues = [existing(host.connect("mirror"), "q") for host in importers]
    stream.put(item(0), metadata=b"0")
    subscriptions = [queue.subscribe() for queue in queues]
    got = [[], []]
    over = threading.Event()

    def work(n):
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                got[n].append(number_of(subscriptions[n].get(timeout=0.2)))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for worker in workers:
        worker.start()
    put_all(stream, 200, 1)
    eventually(lambda: len(got[0]) + len(got[1]) >= 201)
    over.set()
    for worker in workers:
        worker.join()
    assert sorted(got[0] + got[1]) == list(range(201))
    assert got[0] and got[1]


def test_an_item_stays_where_somebody_takes_it(hosts):
    """A host that has no worker takes nothing of a queue."""
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT).start()
    here = a.connect()
    stream = here.stream("q", "queue", depth=8)
    queue = existing(b.connect("mirror"), "q")
    put_all(stream, 8)
    with pytest.raises(TimeoutError):
        stream.put(item(8), metadata=b"8", timeout=2)
    mine = stream.subscribe()
    got = [number_of(mine.get(timeout=limit(60)))]
    subscription = queue.subscribe()
    for _ in range(7):
        got.append(number_of(subscription.get(timeout=limit(60))))
    assert sorted(got) == list(range(8))


@pytest.mark.parametrize("mode", ["broadcast", "queue"])
def test_nothing_is_lost_when_the_importer_is_killed(hosts, mode):
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT).start()
    here = a.connect()
    stream = here.stream("s", mode, depth=8)
    subscription = existing(b.connect("mirror"), "s").subscribe()
    eventually(lambda: stream.info().subscribers == 1)
    producer = threading.Thread(target=put_all, args=(stream, 150))
    producer.start()
    got = []
    killed = 0
    while not got or got[-1] < 149:
        got.append(number_of(subscription.get(timeout=limit(60))))
        if len(got) > 40 * (killed + 1) and killed < 3:
            killed += 1
            b.mirror.kill()
            b.mirror.wait()
            b.start()
    producer.join()
    assert sorted(set(got)) == list(range(150)), "something is lost"
    assert len(got) - 150 <= killed * 32, "too much has come twice"
    assert killed == 3


def test_streams_come_and_go(hosts):
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    here.stream("x", "broadcast", depth=8, keep=3).put(item(1), metadata=b"1")
    subscription = existing(there, "x").subscribe(kept=True)
    assert number_of(subscription.get(timeout=limit(60))) == 1
    here.delete("x")
    eventually(lambda: not there.streams())
    stream = here.stream("x", "queue", depth=4)
    worker = existing(there, "x").subscribe()
    stream.put(item(2), metadata=b"2")
    assert number_of(worker.get(timeout=limit(60))) == 2
    here.delete("x")  # and is there again at once, in another form
    stream = here.stream("x", "queue", depth=9)
    eventually(lambda: there.streams() and there.streams()[0].depth == 9)
    worker = existing(there, "x").subscribe()
    stream.put(item(2), metadata=b"2")
    assert number_of(worker.get(timeout=limit(60))) == 2
    a.mirror.kill()  # another one says the same, under another URL
    a.mirror.wait()
    a.start()
    stream.put(item(3), metadata=b"3")
    end = time.monotonic() + limit(60)
    while number_of(worker.get(timeout=limit(60))) != 3:
        assert time.monotonic() < end


def test_a_rule_may_leave_streams_out(hosts):
    a = hosts("a", "[export all]\nnamespace = default\n").start()
    b, c = hosts("b", IMPORT).start(), hosts("c", f"{IMPORT}streams = no\n").start()
    here, others = a.connect(), [b.connect("mirror"), c.connect("mirror")]
    here.stream("s", "broadcast", depth=4)
    here.put("name", np.zeros(3))
    for there in others:
        eventually(lambda there=there: "name" in there)
        assert not there.streams()


def test_names_do_not_wait_for_streams_that_end(hosts):
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    names = [f"s{number}" for number in range(20)]
    streams = [here.stream(name, "broadcast", depth=4) for name in names]
    for name in names:
        existing(there, name)
    eventually(lambda: all(stream.info().subscribers for stream in streams))
    for name in names:
        here.delete(name)
    longest = 0
    end = time.monotonic() + limit(60)
    while there.streams() and time.monotonic() < end:
        version = here.put("name", np.zeros(3))
        began = time.monotonic()
        there.get("name", newer_than=version - 1, timeout=limit(60)).release()
        longest = max(longest, time.monotonic() - began)
    assert not there.streams()
    assert longest < limit(3), f"a name took {longest:.1f} s"


def test_a_stream_that_is_opened_before_it_comes(hosts):
    """It is as the program here wants it, and not that of the origin."""
    a, b = hosts("a", EXPORT).start(), hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    subscription = there.stream("s", "queue", depth=5).subscribe()
    stream = here.stream("s", "queue", depth=64)
    put_all(stream, 20)
    assert [number_of(subscription.get(timeout=limit(60))) for _ in range(20)] == list(range(20))
    assert there.stream("s", existing=True).info().depth == 5


def test_who_holds_a_stream_up_is_told(hosts):
    """And ends for that host only, if an administrator wants that."""
    a = hosts("a", EXPORT).start()
    b, c = hosts("b", IMPORT).start(), hosts("c", IMPORT).start()
    here = a.connect()
    stream = here.stream("s", "broadcast", depth=8, keep=8)
    subscriptions = [existing(host.connect("mirror"), "s").subscribe(kept=True) for host in (b, c)]

    def members():
        return {member.label: member for member in stream.members() if member.role == "subscriber"}

    eventually(lambda: set(members()) == {"mirror to b", "mirror to c"})
    here.kick(members()["mirror to b"].client)
    for number in range(20):
        put_all(stream, 1, number)
        assert number_of(subscriptions[1].get(timeout=limit(60))) == number
    eventually(lambda: set(members()) == {"mirror to b", "mirror to c"})
    put_all(stream, 1, 20)
    while number_of(subscriptions[0].get(timeout=limit(60))) != 20:
        pass
    assert a.mirror.poll() is None
