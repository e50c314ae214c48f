# SPDX-License-Identifier: Apache-2.0
"""tensorlease-mirror: hosts give a version to others while it comes, and transfers outlive links and hosts."""

import signal
import time

import numpy as np
import pytest
from conftest import eventually
from mirrors import IMPORT, PIECE, SKIPS, came, hosts, imported, linked, met, nats, numbers  # noqa: F401 (fixtures)

pytestmark = SKIPS

def export(fanout=2):
    return f"[export all]\nfanout = {fanout}\n"


def test_the_origin_sends_few_copies(linked):
    size = 5 * PIECE + 4000
    a = linked("a", export())
    here = a.connect()
    importers, others = imported(linked, "bcdefg")
    met(here, others)
    for version in range(1, 4):
        before = [host.link.total() for host in (a, *importers)]
        here.put("large", numbers(size) + version)
        for there in others:
            eventually(lambda there=there, version=version: came(there, "large", version, version))
            with there.get("large") as t:
                assert np.array_equal(t.numpy(), numbers(size) + version)
        after = [host.link.total() for host in (a, *importers)]
        sent = [one - other for one, other in zip(after, before, strict=True)]
        assert sent[0] <= 2 * size * 1.03, "the origin has sent more than two copies"
        assert max(sent) <= 2 * size * 1.03, "a host has sent more than two copies"
        assert sum(sent) <= 6 * size * 1.03, "something was sent twice"
    assert sum(sent[1:]) > 3 * size, "nobody has relayed"


def test_who_comes_later_gets_it_from_another_host(linked):
    a = linked("a", export(1))
    here = a.connect()
    (b,), (first,) = imported(linked, "b")
    here.put("large", numbers(2 * PIECE))
    eventually(lambda: came(first, "large", 1, 0))
    (c,), (second,) = imported(linked, "c")
    eventually(lambda: came(second, "large", 1, 0))
    assert a.link.sent.keys() == {"b"} or a.link.sent["c"] < 10_000
    assert b.link.sent["c"] > 2 * PIECE
    # what b does not have any more, the origin has
    b.mirror.kill()
    b.mirror.wait()
    (d,), (third,) = imported(linked, "d")
    eventually(lambda: came(third, "large", 1, 0))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_host_that_relays_ends(linked, how):
    size = 6 * PIECE
    a = linked("a", export())
    here = a.connect()
    importers, others = imported(linked, "bcdefg")
    met(here, others)
    a.link.rate = 4 * PIECE
    here.put("large", numbers(size))
    eventually(lambda: any(host.link.total() > PIECE for host in importers))
    relay = max(importers, key=lambda host: host.link.total())
    relay.mirror.send_signal(how)
    try:
        for host, there in zip(importers, others, strict=True):
            if host is not relay:
                eventually(lambda there=there: came(there, "large", 1, 0))
                with there.get("large") as t:
                    assert np.array_equal(t.numpy(), numbers(size))
        assert not came(others[importers.index(relay)], "large", 1), "it was killed too late"
    finally:
        relay.mirror.send_signal(signal.SIGCONT)
    if how == signal.SIGKILL:
        relay.mirror.wait()
        relay.start()
    eventually(lambda: came(others[importers.index(relay)], "large", 1, 0))


def test_a_link_that_goes_and_comes(linked):
    size = 8 * PIECE
    a = linked("a", export())
    here = a.connect()
    (b,), (there,) = imported(linked, "b")
    met(here, [there])
    before = a.link.total()
    a.link.rate = 4 * PIECE
    here.put("large", numbers(size))
    eventually(lambda: a.link.total() > before + 4 * PIECE)
    a.link.cut()
    eventually(lambda: not a.link.sockets)
    a.link.mend()
    eventually(lambda: came(there, "large", 1, 0))
    with there.get("large") as t:
        assert np.array_equal(t.numpy(), numbers(size))
    assert a.link.total() - before <= (size + 2 * PIECE) * 1.01
    assert "did not come" not in b.mirror.said()


def test_a_slow_link_beside_a_fast_one(linked):
    """What the fast one has got is held for the slow one as well, so that this one gets on."""
    a = linked("a", export(0))
    here = a.connect()
    (b, c), (fast, slow) = imported(linked, "bc")
    met(here, [fast, slow])
    a.link.rates["c"] = 4 * PIECE
    seen = {"b": set(), "c": set()}
    end = time.monotonic() + 60

    def look(name, there):
        if "frame" in there:
            with there.get("frame") as t:
                assert t.numpy()[0] == t.numpy()[-1] == t.version, "torn"
                seen[name].add(t.version)

    version = 0
    while len(seen["c"]) < 3:
        assert time.monotonic() < end, f"the slow one has {seen['c']} of {version}, the fast one {len(seen['b'])}"
        version += 1
        here.put("frame", np.full(2 * PIECE // 8, version))
        look("b", fast)
        look("c", slow)
    assert len(seen["b"]) >= 3
    for there in (fast, slow):
        eventually(lambda there=there: came(there, "frame", version, version))
    eventually(lambda: here.status().retired == 0)  # and is not held when all have it


def test_a_slow_link_does_not_cost_the_origin_memory(linked):
    """100 frames of 6 MB a second by 100 Mbit/s: most are skipped, and few are held."""
    a = linked("a", export())
    here = a.connect()
    (b,), (there,) = imported(linked, "b")
    met(here, [there])
    a.link.rate = 12_500_000
    frame = np.zeros(6_000_000, "uint8")
    held = seen = 0
    end = time.monotonic() + 2
    published = 0
    while time.monotonic() < end or not seen:
        assert time.monotonic() < end + 60
        published += 1
        here.put("frame", frame)
        held = max(held, here.status().retired)
        seen = there.stat("frame").version if "frame" in there else 0
        time.sleep(0.01)
    assert held <= 3
    assert 0 < seen <= published
    a.link.rate = None
    eventually(lambda: there.stat("frame").version == here.stat("frame").version)
    eventually(lambda: here.status().retired == 0)


def test_who_does_not_listen_relays_nothing(hosts):
    a = hosts("a", export(1)).start()
    here = a.connect()
    importers = [hosts(name, IMPORT) for name in "bcd"]
    for host in importers:
        host.config.write_text(host.config.read_text().replace("listen = 127.0.0.1:0\n", ""))
        host.start()
    others = [host.connect("mirror") for host in importers]
    met(here, others)
    here.put("large", numbers(2 * PIECE))
    for there in others:
        eventually(lambda there=there: came(there, "large", 1, 0))
