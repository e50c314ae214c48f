# SPDX-License-Identifier: Apache-2.0
"""tensorlease-mirror: a set is seen as it was at one moment, or not at all."""

import contextlib
import os
import random
import threading
import time

import numpy as np
import pytest
from conftest import daemon_at, eventually
from limits import limit
from mirrors import IMPORT, PIECE, SKIPS, came, hosts, imported, linked, nats, storm  # noqa: F401 (fixtures)

import tensorlease

pytestmark = SKIPS

SET = "[export all]\nset = yes\nprefix = s/\n"


def moment(value, sizes):
    return {f"s/{n}": np.full(size, value) for n, size in enumerate(sizes)}


@contextlib.contextmanager
def all_of(client, count):
    tensors = client.get_many([f"s/{n}" for n in range(count)])
    try:
        yield tensors
    finally:
        for tensor in tensors.values():
            tensor.release()


class Follower(threading.Thread):
    """Gets all members of a set at once, all the time. They must be of one moment, and versions must not fall."""

    def __init__(self, host, count):
        super().__init__()
        self.socket, self.names, self.over = host.socket, [f"s/{n}" for n in range(count)], threading.Event()
        self.wrong, self.got, self.values = [], 0, set()

    def look(self, client, last):
        with all_of(client, len(self.names)) as tensors:
            values = {name: t.numpy() for name, t in tensors.items()}
            firsts = {v[0] for v in values.values()}
            if len(firsts) != 1 or not all((v == v[0]).all() for v in values.values()):
                self.wrong.append(f"a mixture: {firsts}")
            versions = {name: t.version for name, t in tensors.items()}
            self.wrong += [f"{n} fell from {last[n]} to {v}" for n, v in versions.items() if v < last[n]]
            last.update(versions)
            self.values |= firsts
            self.got += 1

    def run(self):
        last = dict.fromkeys(self.names, 0)
        with tensorlease.connect(self.socket, namespace="mirror") as client:
            while not self.over.is_set() and not self.wrong:
                try:
                    self.look(client, last)
                except tensorlease.NotFoundError:
                    time.sleep(0.001)
                except tensorlease.Error:  # the daemon is being replaced
                    time.sleep(0.01)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.join()
        assert not self.wrong, self.wrong[:3]


def is_all(client, value, count):
    try:
        with all_of(client, count) as tensors:
            return {t.numpy()[0] for t in tensors.values()} == {value}
    except tensorlease.NotFoundError:
        return False


@pytest.mark.parametrize("sizes", [[3, 5, 7], [3, 50_000, 1_500_000]], ids=["small", "large"])
def test_no_mixture_is_seen(hosts, sizes):
    a, b = hosts("a", SET).start(), hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    here.put_many(moment(1, sizes))
    eventually(lambda: is_all(there, 1, len(sizes)))
    with Follower(b, len(sizes)) as follower:
        end = time.monotonic() + 1.5
        value = 1
        while time.monotonic() < end:
            value += 1
            here.put_many(moment(value, sizes))
        eventually(lambda: is_all(there, value, len(sizes)))
    assert len(follower.values) > 3, "it has seen nothing of the middle"
    assert here.stat("s/1").version == there.stat("s/1").version
    eventually(lambda: here.status().retired == 0)


def test_what_did_not_change_is_not_sent(linked):
    a = linked("a", SET)
    here = a.connect()
    here.put_many(moment(1, [PIECE // 8 * 3, 100_000, 10]))
    (b,), (there,) = imported(linked, "b")
    eventually(lambda: is_all(there, 1, 3))
    kept = there.stat("s/0").committed_ns
    before = a.link.total()
    here.put("s/1", np.full(100_000, 2))
    eventually(lambda: came(there, "s/1", 2, 2))
    assert a.link.total() - before < 2 * 800_000
    assert there.stat("s/0").committed_ns == kept
    b.mirror.kill()  # nor is it after a restart
    b.mirror.wait()
    b.start()
    here.put("s/2", np.full(10, 3))
    eventually(lambda: came(there, "s/2", 2, 3))
    assert a.link.total() - before < 2 * 800_000
    assert there.stat("s/0").committed_ns == kept


def test_names_go_in_the_same_step(hosts):
    a, b = hosts("a", SET).start(), hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    here.put_many(moment(1, [10, 10]))
    eventually(lambda: is_all(there, 1, 2))
    seen = set()
    value = 1
    end = time.monotonic() + 1
    while time.monotonic() < end or len(seen) < 2:  # s/1 is there if s/0 is odd
        assert time.monotonic() < end + limit(60)
        value += 1
        if value % 2:
            here.put_many(moment(value, [10, 10]))
        else:
            here.put_many({"0": np.full(10, value)}, prefix="s", replace=True)
        with there.get("s/0") as before:
            both = "s/1" in there
            with there.get("s/0") as after:
                if before.version == after.version:
                    assert both == bool(before.numpy()[0] % 2)
                    seen.add(both)
    eventually(lambda: sorted(there.keys()) == sorted(here.keys()))
    here.delete(prefix="s/")
    eventually(lambda: not there.keys())
    here.put_many(moment(77, [10, 10]))
    eventually(lambda: is_all(there, 77, 2))


def test_more_members_than_a_message_has(hosts):
    a, b = hosts("a", SET), hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    here.put_many(moment(1, [5] * 1500))
    a.start()
    eventually(lambda: is_all(there, 1, 1500))
    for value in range(2, 6):
        here.put_many(moment(value, [5] * 1500))
    eventually(lambda: is_all(there, 5, 1500))
    here.put("s/7", np.full(5, 6))
    eventually(lambda: came(there, "s/7", 6, 6))
    assert there.stat("s/8").version == 5


def test_a_slow_link_gets_on(linked):
    sizes = [PIECE // 8] * 2
    a = linked("a", f"{SET}fanout = 0\n")
    here = a.connect()
    here.put_many(moment(0, [3, 3]))
    (b, c), (fast, slow) = imported(linked, "bc")
    eventually(lambda: is_all(fast, 0, 2) and is_all(slow, 0, 2))
    a.link.rates["c"] = 4 * PIECE
    with Follower(b, 2) as one, Follower(c, 2) as other:
        end = time.monotonic() + limit(60)
        value = 0
        while len(other.values) < 4:
            assert time.monotonic() < end, (value, len(one.values), len(other.values))
            value += 1
            here.put_many(moment(value, sizes))
        eventually(lambda: is_all(fast, value, 2) and is_all(slow, value, 2))
    eventually(lambda: here.status().retired == 0)


def test_hosts_give_a_set_to_others(linked):
    sizes = [PIECE // 8 + 5, 2 * PIECE // 8, 7, 3 * PIECE // 8]
    a = linked("a", SET)
    here = a.connect()
    here.put_many(moment(1, [3] * 4))
    importers, others = imported(linked, "bcdef")
    for there in others:
        eventually(lambda there=there: is_all(there, 1, 4))
    size = sum(sizes) * 8
    for value in range(2, 5):
        before = a.link.total()
        here.put_many(moment(value, sizes))
        for there in others:
            eventually(lambda there=there, value=value: is_all(there, value, 4))
        assert a.link.total() - before <= 2 * size * 1.03
    assert sum(host.link.total() for host in importers) > size


def test_an_origin_that_begins_anew(hosts):
    a, b = hosts("a", SET).start(), hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    for value in range(5):
        here.put_many(moment(value, [10, 100_000]))
    eventually(lambda: is_all(there, 4, 2))
    a.daemon.kill()
    a.daemon.wait()
    a.daemon = a.stack.enter_context(daemon_at(a.socket, a.capacity, a.more))
    fresh = a.connect()
    fresh.put_many(moment(100, [10, 100_000]))
    eventually(lambda: is_all(there, 100, 2))


def test_what_is_lost_here_comes_again(hosts):
    """The importer's daemon has lost all, then somebody deletes a member, and nothing is published meanwhile."""
    a, b = hosts("a", SET).start(), hosts("b", IMPORT).start()
    here, there = a.connect(), b.connect("mirror")
    here.put_many(moment(1, [10, 100_000]))
    eventually(lambda: is_all(there, 1, 2))
    b.daemon.kill()
    b.daemon.wait()
    b.daemon = b.stack.enter_context(daemon_at(b.socket, b.capacity, b.more))
    eventually(lambda: is_all(there, 1, 2))
    there.delete("s/1")
    b.mirror.kill()
    b.mirror.wait()
    b.start()
    eventually(lambda: is_all(there, 1, 2))


def test_a_storm_of_kills(hosts, nats):
    """Mirrors, the server and daemons with keepers are killed all the time."""
    rounds = int(os.environ.get("TL_KILLS", 0)) // 10 or 6
    sizes = [3, 40_000, 1_200_000]
    a, b, c = [hosts(name, rules, keeper=True).start() for name, rules in (("a", SET), ("b", IMPORT), ("c", IMPORT))]
    here, others = a.connect(), [b.connect("mirror"), c.connect("mirror")]
    rng = random.Random(7)
    value = 0

    def publish(seconds):
        nonlocal value
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value += 1
            try:
                here.put_many(moment(value, sizes))
            except (tensorlease.DisconnectedError, tensorlease.NoDaemonError):
                pass

    with Follower(b, 3) as one, Follower(c, 3) as other:
        kills = storm(rounds, rng, nats, {a: here, b: others[0], c: others[1]}, publish)
        last = time.monotonic()
        publish(0.1)
        here.put_many(moment(-1, sizes))
        for there in others:
            eventually(lambda there=there: is_all(there, -1, 3))
        print(f"{value} updates, killed {kills}, all equal {time.monotonic() - last:.1f} s after the last kill; looked"
              f" {one.got} and {other.got} times, saw {len(one.values)} and {len(other.values)} moments")  # fmt: skip
    assert one.got > rounds and other.got > rounds
