# SPDX-License-Identifier: Apache-2.0
"""How long names stay: bound to their producer, for a time, as long as there is space; and kick()."""

import math
import os
import subprocess
import sys

import pytest
from conftest import daemon_at, eventually

import tensorlease


def gone(client, name):
    return name not in client


def test_what_is_bound_goes_with_its_client(daemon, client):
    with tensorlease.connect(daemon) as producer:
        producer.put("bound/a", b"x" * 100, owner_bound=True)
        with producer.create("bound/b", 100, "uint8", owner_bound=True) as draft:
            draft[...] = 1
        producer.put_many({"bound/c": b"c", "bound/d": b"d"}, owner_bound=True)
        producer.publish("bound/e", b"e", owner_bound=True)
        assert client.stat("bound/a").owner_bound
        assert not client.stat("bound/a").evictable
        assert client.stat("bound/a").ttl is None
        held = client.get("bound/a")
    eventually(lambda: not client.list("bound/"))
    assert bytes(held) == b"x" * 100


def test_what_is_bound_goes_with_its_process(daemon, client):
    code = "import sys, tensorlease, time\nc = tensorlease.connect(sys.argv[1])\n" + (
        "c.put('dies', b'1', owner_bound=True)\nprint('ready', flush=True)\ntime.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, daemon], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert "dies" in client
        process.kill()
    eventually(lambda: gone(client, "dies"))


def test_a_name_goes_when_its_time_is_over(client, tmp_path):
    client.put("ttl/a", b"1", ttl=60)
    assert 0 < client.stat("ttl/a").ttl <= 60
    client.put("ttl/a", b"1", ttl=0.05)
    client.put_many({"ttl/b": b"1", "ttl/c": b"1"}, ttl=0.05)
    client.create("ttl/d", 3, "uint8", ttl=0.05).commit()
    client.publish("ttl/e", client.create("other", 3, "uint8"), ttl=0.05)
    eventually(lambda: not client.list("ttl/"))


def test_a_published_tensor_can_have_a_second_name_for_a_time(client):
    client.put("first", b"12345678")
    assert not client.publish("second", client.get("first"), ttl=60, evictable=True).copied
    assert client.stat("second").evictable and 0 < client.stat("second").ttl <= 60
    assert not client.publish("second", client.get("first"), ttl=0.05, evictable=True).copied
    eventually(lambda: gone(client, "second"))
    assert client.stat("first").ttl is None


@pytest.mark.parametrize("ttl", [0, -1, 1e10, math.inf, math.nan])
def test_times_that_cannot_be_are_refused(client, ttl):
    with pytest.raises(tensorlease.InvalidError, match="ttl"):
        client.put("x", b"1", ttl=ttl)
    with pytest.raises(tensorlease.InvalidError, match="ttl"):
        client.create("x", 3, "uint8", ttl=ttl)
    with pytest.raises(tensorlease.InvalidError, match="ttl"):
        client.put_many({"x": b"1"}, ttl=ttl)


def test_a_time_must_be_a_number(client):
    with pytest.raises(TypeError, match="ttl"):
        client.put("x", b"1", ttl="soon")


def test_what_is_not_used_frees_space_and_what_is_held_stays(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address, "8M"), tensorlease.connect(address) as client:
        for i in range(8):
            client.put(f"cache/{i}", bytes(1 << 20), evictable=True)
        held = client.get("cache/0")
        client.get("cache/1").release()
        for i in range(6):
            client.put(f"new/{i}", bytes(1 << 20))
        assert [info.name for info in client.list("cache/")] == ["cache/0", "cache/1"]
        client.put("new/6", bytes(1 << 20))
        with pytest.raises(tensorlease.NoSpaceError):
            client.put("new/7", bytes(1 << 20))
        held.release()
        client.put("new/7", bytes(1 << 20))
        assert not client.list("cache/")


def test_what_was_used_of_late_may_stay(tmp_path):
    address = str(tmp_path / "socket")
    with daemon_at(address, "8M"), tensorlease.connect(address) as client:
        for i in range(8):
            client.put(f"cache/{i}", bytes(1 << 20), evictable=True)
        for idle in (1000, 1e30, math.inf):
            with pytest.raises(tensorlease.NoSpaceError):
                client.put("new", bytes(1 << 20), evict_idle=idle)
        assert len(client.list("cache/")) == 8
        client.put("new", bytes(1 << 20), evict_idle=0)
        assert len(client.list("cache/")) == 7
        with pytest.raises(ValueError, match="evict_idle"):
            client.put("new", bytes(1 << 20), evict_idle=-1)


def test_a_kicked_client_stays_away_until_it_is_closed(daemon, client):
    with tensorlease.connect(daemon) as other:
        newest = max(c.id for c in client.clients())
        client.kick(newest)
        for _ in range(3):
            with pytest.raises(tensorlease.KickedError, match="disconnected"):
                other.put("x", b"1")
        with pytest.raises(ConnectionAbortedError):
            other.get("never", timeout=math.inf)
    with pytest.raises(tensorlease.NotFoundError):
        client.kick(newest)
    with tensorlease.connect(daemon), tensorlease.connect(daemon):
        assert client.kick_user(os.getuid()) >= 2
    with pytest.raises(tensorlease.NotFoundError):
        client.kick_user(os.getuid())
    client.put("x", b"1")
    client.delete("x")
