# SPDX-License-Identifier: Apache-2.0
"""tensorlease-mirror: names of one daemon appear at another one, with a real NATS server between them."""

import contextlib
import http.client
import json
import os
import random
import re
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse

import numpy as np
import pytest
from conftest import daemon_at, eventually
from limits import limit
from mirrors import EXPORT, IMPORT, MIRROR, PIECE, SKIPS, authority, came, hosts, nats, pair, storm  # noqa: F401 (fixtures)

import tensorlease

pytestmark = SKIPS


def test_a_name_comes_with_all_that_it_has(hosts):
    a, b, here, there = pair(hosts)
    small = np.arange(12, dtype="int16").reshape(3, 4)
    here.put("small", small, metadata=b"about it")
    here.put("dir/large", np.arange(5_000_000, dtype="float32").reshape(1000, 5000), evictable=True)
    here.put("empty", np.zeros((0, 3), "uint8"))
    here.put("scalar", np.array(7.5))
    for name in ("small", "dir/large", "empty", "scalar"):
        eventually(lambda name=name: came(there, name, 1))
        one, other = here.stat(name), there.stat(name)
        for field in ("version", "shape", "dtype", "nbytes", "metadata", "evictable", "ttl", "device"):
            assert getattr(one, field) == getattr(other, field), field
        assert other.publisher.label == "mirror of a"
        with here.get(name) as t, there.get(name) as u:
            assert np.array_equal(t.numpy(), u.numpy())


def test_what_is_there_comes_and_what_is_deleted_goes(hosts):
    a = hosts("a", "[export some]\nprefix = cam/\n")
    here = a.connect()
    for n in range(3):
        here.put_many({f"cam/{k}": np.full(100_000, n + k, "uint8") for k in range(20)})
    here.put("other", np.zeros(3))
    a.start()
    b = hosts("b", "[import some]\nprefix = of-a/\n").start()
    there = b.connect("mirror")
    eventually(lambda: len(there.keys()) == 20)
    assert sorted(there.keys()) == sorted(f"of-a/cam/{k}" for k in range(20))
    for k in range(20):
        assert came(there, f"of-a/cam/{k}", 3, 2 + k)
    here.delete("cam/7")
    eventually(lambda: len(there.keys()) == 19)
    here.put("cam/7", np.full(3, 5, "uint8"))
    eventually(lambda: came(there, "of-a/cam/7", here.stat("cam/7").version, 5))
    b.mirror.kill()  # what is deleted meanwhile goes too, when the next one compares
    b.mirror.wait()
    here.delete("cam/8")
    here.put("cam/9", np.full(3, 99, "uint8"))
    b.start()
    eventually(lambda: "of-a/cam/8" not in there and came(there, "of-a/cam/9", 4, 99))
    assert came(there, "of-a/cam/1", 3, 3)
    assert len(there.keys()) == 19


def test_the_newest_only_and_never_backwards(hosts):
    a, b, here, there = pair(hosts)
    rng = np.random.default_rng(1)
    seen = 0
    end = time.monotonic() + 1.5
    number = 0
    while time.monotonic() < end:
        number += 1
        here.put("fast", np.full(200_000, number, "int64"))
        if rng.random() < 0.3 and "fast" in there:
            with there.get("fast") as t:
                values = t.numpy()
                assert values[0] == values[-1] == t.version, "torn"
                assert t.version >= seen
                seen = t.version
    eventually(lambda: came(there, "fast", number, number))
    assert seen > 0
    eventually(lambda: here.status().retired == 0)  # what was sent is not held


@pytest.mark.parametrize("what", ["export", "import", "nats", "daemon"])
def test_it_goes_on_after_a_kill(hosts, nats, what):
    a, b, here, there = pair(hosts)
    here.put("a", np.full(100_000, 1))
    eventually(lambda: came(there, "a", 1, 1))
    for version in range(2, 5):
        if what == "nats":
            nats.kill()
            here.put("a", np.full(100_000, version))
            assert nats.start()
        elif what == "daemon":  # that of the importer, with all that it had
            b.daemon.kill()
            b.daemon.wait()
            here.put("a", np.full(100_000, version))
            b.daemon = b.stack.enter_context(daemon_at(b.socket, b.capacity, b.more))
        else:
            host = a if what == "export" else b
            host.mirror.kill()
            host.mirror.wait()
            here.put("a", np.full(100_000, version))
            host.start()
        eventually(lambda version=version: came(there, "a", version, version))
        here.put("inline", np.array([version]))
        eventually(lambda version=version: came(there, "inline", version - 1, version))


def test_nothing_is_sent_again(hosts):
    a, b, here, there = pair(hosts)
    here.put("a", np.full(1_000_000, 1))
    eventually(lambda: came(there, "a", 1, 1))
    before = there.stat("a").committed_ns
    b.mirror.kill()
    b.mirror.wait()
    b.start()
    here.put("b", np.full(1_000_000, 1))
    eventually(lambda: came(there, "b", 1, 1))
    here.put("c", np.full(3, 1))
    eventually(lambda: came(there, "c", 1, 1))
    assert there.stat("a").committed_ns == before


def test_what_is_lost_here_comes_again(hosts):
    """The importer's daemon has lost all, and nothing is published meanwhile."""
    a, b, here, there = pair(hosts)
    here.put("large", np.full(100_000, 1))
    here.put("small", np.array([2]))
    eventually(lambda: came(there, "large", 1, 1) and came(there, "small", 1, 2))
    b.daemon.kill()
    b.daemon.wait()
    b.daemon = b.stack.enter_context(daemon_at(b.socket, b.capacity, b.more))
    eventually(lambda: came(there, "large", 1, 1) and came(there, "small", 1, 2))


def test_more_names_than_a_page_has(hosts):
    a = hosts("a", EXPORT)
    here = a.connect()
    names = [f"n/{k}" for k in range(1300)]
    for name in names:
        here.put(name, np.array([len(name)]))
    a.start()
    others = [hosts(name, IMPORT).start().connect("mirror") for name in ("b", "c")]
    for there in others:
        eventually(lambda there=there: len(there.keys()) == 1300)
    for name in names[::2]:
        here.delete(name)
    for there in others:
        eventually(lambda there=there: sorted(there.keys()) == sorted(names[1::2]))
        assert came(there, "n/1", 1, 3)


def test_names_that_come_and_go(hosts):
    a, b, here, there = pair(hosts)
    rng = np.random.default_rng(3)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        name = f"x/{rng.integers(5)}"
        if rng.random() < 0.4:
            here.delete(name, missing_ok=True)
        else:
            here.put(name, np.full(int(rng.choice([3, 30_000])), rng.integers(1000)))

    mine = other = None

    def equal():
        nonlocal mine, other
        mine = {info.name: info.version for info in here.list()}
        other = {info.name: info.version for info in there.list()}
        return mine == other

    eventually(equal)
    for name in here.keys():
        with here.get(name) as t, there.get(name) as u:
            assert np.array_equal(t.numpy(), u.numpy())


def test_gone_is_delete(hosts):
    a = hosts("a", EXPORT).start()
    b = hosts("b", f"{IMPORT}gone = delete\n").start()
    here, there = a.connect(), b.connect("mirror")
    for n in range(3):
        here.put("a", np.full(100_000, n))
    here.put("b", np.array([1]))
    eventually(lambda: came(there, "a", 3, 2) and came(there, "b", 1, 1))
    a.mirror.kill()
    a.mirror.wait()
    eventually(lambda: not there.keys())
    a.start()
    eventually(lambda: sorted(there.keys()) == ["a", "b"])
    with there.get("a") as t:
        assert t.numpy()[0] == 2 and t.version >= 3


class Follower(threading.Thread):
    """Gets names of a namespace all the time. Versions must not fall, and each tensor must be whole."""

    def __init__(self, socket, names):
        super().__init__()
        self.socket, self.names, self.over = socket, names, threading.Event()
        self.wrong, self.got = [], 0

    def run(self):
        last = dict.fromkeys(self.names, 0)
        with tensorlease.connect(self.socket, namespace="mirror") as client:
            while not self.over.is_set() and not self.wrong:
                for name in self.names:
                    try:
                        with client.get(name) as tensor:
                            values, version = tensor.numpy(), tensor.version
                            if version < last[name]:
                                self.wrong.append(f"{name} fell from {last[name]} to {version}")
                            if not (values == version).all():
                                self.wrong.append(f"{name} {version} has {values[0]} to {values[-1]}")
                            last[name], self.got = version, self.got + 1
                    except tensorlease.NotFoundError:
                        pass
                    except tensorlease.Error:  # the daemon is being replaced
                        time.sleep(0.01)


def test_a_storm_of_kills(hosts, nats):
    """Mirrors, the server and daemons with keepers are killed all the time. Each value is its version."""
    rounds = int(os.environ.get("TL_KILLS", 0)) // 10 or 8
    keeper = {"keeper": True}
    a, b, c = hosts("a", EXPORT, **keeper).start(), hosts("b", IMPORT, **keeper).start(), hosts("c", IMPORT, **keeper).start()
    here, others = a.connect(), [b.connect("mirror"), c.connect("mirror")]
    rng = random.Random(5)
    names = [f"s/{n}" for n in range(6)]
    sizes = [3, 1000, 5000, 100_000, 300_000, 1_500_000]
    counts = dict.fromkeys(names, 0)
    followers = [Follower(host.socket, names) for host in (b, c)]
    for follower in followers:
        follower.start()

    def publish(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name = rng.choice(names)
            version = counts[name] + 1
            with contextlib.suppress(tensorlease.DisconnectedError, tensorlease.NoDaemonError):
                here.put(name, np.full(sizes[names.index(name)], version), ring=None)
            counts[name] = here.stat(name).version if name in here else 0
            assert counts[name] in (version - 1, version), f"{name}: {here.status()}"

    try:
        kills = storm(rounds, rng, nats, {a: here, b: others[0], c: others[1]}, publish)
        last = time.monotonic()
        for there in others:
            eventually(lambda there=there: all(came(there, name, counts[name], counts[name]) for name in names if counts[name]))
        seconds = time.monotonic() - last
        print(f"{sum(counts.values())} updates, killed {kills}, all equal {seconds:.1f} s after the last kill")
    finally:
        for follower in followers:
            follower.over.set()
            follower.join()
    assert not any(follower.wrong for follower in followers), [follower.wrong for follower in followers]
    assert all(follower.got > rounds for follower in followers)


def test_names_that_somebody_asks_for(hosts):
    a = hosts("a", EXPORT).start()
    here = a.connect()
    names = [f"layer/{n}" for n in range(250)]
    for n, name in enumerate(names):
        here.put(name, np.full(20_000, n))
    b = hosts("b", f"{IMPORT}requests = want/\n").start()
    mine, there = b.connect(), b.connect("mirror")
    mine.put("want/layer/7", np.zeros(0), ttl=60)
    with there.get("layer/7", timeout=limit(60)) as t:
        assert t.numpy()[0] == 7
    here.put("layer/7", np.full(20_000, 77))  # what was asked for goes on
    here.put("layer/8", np.full(20_000, 88))
    eventually(lambda: came(there, "layer/7", 2, 77))
    assert there.keys() == ["layer/7"]
    done = subprocess.run([MIRROR, "--config", b.config, "fetch", "layer/6"], capture_output=True, text=True, timeout=limit(60))
    assert (done.returncode, done.stdout) == (0, "layer/6 has version 1 and 156.2 KiB\n"), done
    done = subprocess.run([MIRROR, "--config", a.config, "fetch", "layer/6"], capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == 1 and "requests = want/" in done.stderr
    for name in names:
        mine.put(f"want/{name}", np.zeros(0))
    mine.put("want/none", np.zeros(0))
    eventually(lambda: sorted(there.keys()) == sorted(names))
    b.mirror.kill()  # the requests are there still
    b.mirror.wait()
    here.put("layer/9", np.full(20_000, 99))
    here.delete("layer/10")
    b.start()
    eventually(lambda: came(there, "layer/9", 2, 99) and "layer/10" not in there)
    assert len(there.keys()) == 249


def test_an_origin_that_begins_anew(hosts):
    """Its daemon has lost its names, and counts from 1. Here versions go on, and the bytes are the new ones."""
    a, b, here, there = pair(hosts)
    for n in range(5):
        here.put("a", np.full(100_000, n))
    eventually(lambda: came(there, "a", 5, 4))
    a.daemon.kill()
    a.daemon.wait()
    a.daemon = a.stack.enter_context(daemon_at(a.socket, a.capacity, a.more))
    fresh = a.connect()
    for n in range(5):
        fresh.put("a", np.full(100_000, 100 + n))

    def newest():
        try:
            with there.get("a") as t:
                assert t.version >= 5
                return t.numpy()[0] == 104
        except tensorlease.NotFoundError:  # it was deleted, and has not come again yet
            return False

    eventually(newest)


def test_who_has_no_space_keeps_the_old_version(hosts):
    a, b, here, there = pair(hosts, capacity="16M")
    here.put("a", np.full(100_000, 1, "uint8"))
    eventually(lambda: came(there, "a", 1, 1))
    here.put("a", np.full(64 << 20, 2, "uint8"))
    here.put("b", np.full(100_000, 3, "uint8"))
    eventually(lambda: came(there, "b", 1, 3))
    eventually(lambda: "a name did not come" in b.mirror.said())
    assert came(there, "a", 1, 1)
    here.put("a", np.full(100_000, 4, "uint8"))
    eventually(lambda: came(there, "a", 3, 4))


def test_one_name_of_two_hosts(hosts):
    a, b, here, there = pair(hosts)
    here.put("a", np.array([1]))
    eventually(lambda: came(there, "a", 1, 1))
    c = hosts("c", EXPORT).start()
    other = c.connect()
    other.put("a", np.array([2]))
    other.put("c", np.array([3]))
    eventually(lambda: came(there, "c", 1, 3))
    eventually(lambda: "two hosts have one name" in b.mirror.said())
    assert came(there, "a", 1, 1)


def test_a_host_that_goes(hosts):
    a, b, here, there = pair(hosts)
    here.put("a", np.array([1]))
    eventually(lambda: came(there, "a", 1, 1))
    with there.watch("a", until_gone=True, timeout=None) as watch:
        a.mirror.kill()
        a.mirror.wait()
        eventually(lambda: watch.poll() is None and watch.over)
    assert came(there, "a", 1, 1)
    assert there.stat("a").publisher.gone


@pytest.mark.parametrize("nats", ["tls"], indirect=True)
def test_with_certificates(hosts, nats, tmp_path):
    a, b, here, there = pair(hosts)
    here.put("a", np.full(3_000_000, 7))
    here.put("b", np.array([8]))
    eventually(lambda: came(there, "a", 1, 7) and came(there, "b", 1, 8))

    foreign = authority(tmp_path / "foreign", "others", ["a", "c"])
    where = urllib.parse.urlsplit(a.url())
    assert where.scheme == "https"

    def ask(path, tls=nats.tls, name="b"):
        context = ssl.create_default_context(cafile=f"{nats.tls}/ca.pem")
        if tls:
            context.load_cert_chain(f"{tls}/{name}.pem", f"{tls}/{name}.key")
        with contextlib.closing(http.client.HTTPSConnection(where.hostname, where.port, context=context, timeout=60)) as c:
            c.request("GET", path, headers={"X-Host": "b"})
            return c.getresponse().status

    assert ask(f"/v1/{'0' * 32}/0") == 410, "no such ticket, or an old one"
    assert ask(f"/v1/{'0' * 32}/0", None) == ask(f"/v1/{'0' * 32}/0", foreign, "a") == 403
    for path in ("/", "/v1/", "/v1/xyz/0", f"/v1/{'0' * 31}/0", f"/v1/{'0' * 32}", f"/v1/{'0' * 32}/x", f"/v1/{'0' * 33}/0"):
        assert ask(path) == 404, path

    # c says that it is a, to which its certificate does not entitle it
    c = hosts("c", EXPORT)
    c.config.write_text(c.config.read_text().replace("host = c", "host = a"))
    other = c.connect()
    other.put("a", np.full(1000, 666))
    c.start()
    eventually(lambda: "Permissions Violation" in c.mirror.said())
    # a foreign certificate is not even let in
    d = hosts("d", EXPORT)
    d.config.write_text(d.config.read_text().replace(f"{nats.tls}/d", f"{foreign}/c").replace("host = d", "host = c"))
    d.start()
    d.mirror.statuses = (0, 1)
    eventually(lambda: d.mirror.poll() is not None or "not there yet" in d.mirror.said())
    here.put("a", np.full(3_000_000, 9))
    eventually(lambda: came(there, "a", 2, 9))
    assert "permission" not in b.mirror.said().lower()


class Talker:
    """Speaks NATS, so far as it must to send what no mirror would."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), limit(60))
        self.file = self.socket.makefile("rwb")
        assert self.file.readline().startswith(b"INFO")
        self.file.write(b'CONNECT {"verbose":true,"pedantic":false,"headers":false}\r\n')
        self.answered()

    def answered(self):
        self.file.flush()
        while (line := self.file.readline()) != b"+OK\r\n":
            assert line == b"PING\r\n", line
            self.file.write(b"PONG\r\n")

    def publish(self, subject, data):
        self.file.write(b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(data), data))
        self.answered()


def note(name, version=1, **changes):
    """A note as a mirror writes it, but for changes; None leaves a field out."""
    fields = {
        "name": name,
        "version": str(version),
        "time": "1",
        "bytes": "8",
        "flags": "0",
        "lifetime": "0",
        "ttl": "0",
        "type": [0, 64, 1],
        "shape": [1],
        "ticket": "0" * 32,
        "metadata": 0,
        "inline": True,
        **changes,
    }
    return {key: value for key, value in fields.items() if value is not None}


def message(*notes, data=b"", **changes):
    return json.dumps({"life": "1", "url": "http://127.0.0.1:1", "notes": notes, **changes}).encode() + b"\0" + data


EIGHT = bytes(range(8))
WRONG = [
    b"",
    b"\0",
    b"[]\0",
    b"{}\0",
    b"{" * 5000 + b"\0",
    message(notes={}),
    message(note("a"), data=EIGHT[:7]),
    message(note("a"), data=EIGHT + b"x"),
    message(note("a"), note("b"), data=EIGHT),
    message(note("a"), data=EIGHT, url=7),
    message(note("a"), data=EIGHT, url="file:///etc/passwd"),
    message(note("a"), data=EIGHT, url="http://127.0.0.1:1/path?"),
    message(note("a"), data=EIGHT, url="h" * 5000),
    message(note("a"), data=EIGHT, life=None),
    message({"name": "good", "gone": True}),
    message(note(""), data=EIGHT),
    message(note("a" * 300), data=EIGHT),
    message(note(7), data=EIGHT),
    message(note("a", 0), data=EIGHT),
    message(note("a", -1), data=EIGHT),
    message(note("a", "18446744073709551616"), data=EIGHT),
    message(note("a", bytes="9"), data=EIGHT),
    message(note("a", bytes="99999"), data=EIGHT),
    message(note("a", metadata=1025), data=EIGHT * 200),
    message(note("a", metadata=-1), data=EIGHT),
    message(note("a", metadata=0.5), data=EIGHT),
    message(note("a", type=[0, 64]), data=EIGHT),
    message(note("a", type=[0, 256, 1]), data=EIGHT),
    message(note("a", shape=[-1]), data=EIGHT),
    message(note("a", shape=[1] * 100), data=EIGHT),
    message(note("a", shape="1"), data=EIGHT),
    message(note("a", ticket="0" * 31), data=EIGHT),
    message(note("a", ticket="g" * 32), data=EIGHT),
    message(note("a", lifetime="1"), data=EIGHT),
    message(note("a", ttl="-1"), data=EIGHT),
    message(*[note("a") for _ in range(501)], data=EIGHT * 501),
]
# Messages of the right form, whose tensors cannot be had.
USELESS = [
    message(note("a/", bytes="8"), data=EIGHT),
    message(note("x\n"), data=EIGHT),
    message(note("big", bytes="32", shape=[4], inline=None)),  # nobody listens there
    message(note("short", bytes="16", shape=[1], inline=None)),
    message(note("huge", bytes=str(2**62), shape=[2**53], inline=None)),
    message(note("type", type=[99, 64, 1]), data=EIGHT),
    message({"name": "none", "gone": True, "version": "1", "time": "1"}),
    message(note("url", inline=None), url="http://[::"),
]


def test_messages_that_no_mirror_sends(hosts, nats):
    a, b, here, there = pair(hosts)
    here.put("good", np.array([1]))
    eventually(lambda: came(there, "good", 1, 1))
    talker = Talker(nats.port)
    for subject in ("tl1.all.ann.x", "tl1.all.beat.x", f"tl1.all.ann.{'y' * 100}", "tl1.all.list.a", "tl1.all.who"):
        for data in WRONG + USELESS:
            talker.publish(subject, data)
    assert b.mirror.poll() is None
    fine = message(note("fine", 7, metadata=3), data=b"abc" + EIGHT, url="http://127.0.0.1:2")  # the next one of that name
    talker.publish("tl1.all.ann.x", fine)
    eventually(lambda: came(there, "fine", 7, int.from_bytes(EIGHT, "little")))
    assert there.stat("fine").metadata == b"abc" and there.stat("fine").publisher.label == "mirror of x"
    here.put("good", np.array([2]))
    eventually(lambda: came(there, "good", 2, 2))
    assert sorted(there.keys()) == ["fine", "good"]
    assert a.mirror.poll() is b.mirror.poll() is None


def test_bytes_come_at_the_rate_of_the_rule(hosts):
    a, b = hosts("a", EXPORT).start(), hosts("b", f"{IMPORT}rate = 4\n").start()
    here, there = a.connect(), b.connect("mirror")
    here.put("hello", np.array([1]))
    eventually(lambda: came(there, "hello", 1, 1))
    begin = time.monotonic()
    for name in ("one", "other"):
        here.put(name, np.full(5 * PIECE, 9, "uint8"))
    for name in ("one", "other"):
        eventually(lambda name=name: came(there, name, 1, 9))
    assert time.monotonic() - begin > 9 * PIECE / (4 << 20)  # the first piece is asked for at once


def refused(config, text, tmp_path):
    path = tmp_path / "wrong.conf"
    path.write_text(config)
    done = subprocess.run([MIRROR, "--config", path, "--check"], capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == 1 and text in done.stderr, done.stderr


def test_what_is_wrong_in_a_configuration_is_said(tmp_path):
    good = "[mirror]\nhost = a\nnats = nats://127.0.0.1:4222\ntls = no\n"
    long = "".join(f"; {'x' * n}[no section]\n" for n in range(200 - 14))
    refused(f"{good}{long}[export x]\nprefix =\n", "listen = ADDRESS:PORT", tmp_path)
    refused("", "no rule", tmp_path)
    refused(good, "no rule", tmp_path)
    refused("[mirror]\ntls = no\n[import x]\nfrom = a\n", "no server", tmp_path)
    refused(f"{good}[export x]\nprefix =\n", "listen = ADDRESS:PORT", tmp_path)
    refused(f"{good}[export a.b]\nprefix =\n", "not 'a.b'", tmp_path)
    refused(f"{good}[export]\nprefix =\n", "no section [export]", tmp_path)
    refused(f"{good}[import all]\n[export]\n", "no section [export]", tmp_path)
    refused(f"{good}[import all]\n[export other]\n", "listen = ADDRESS:PORT", tmp_path)  # it has what a rule has by default
    refused(f"{good}[import x]\nfro = a\n", "[import x] has no 'fro'", tmp_path)
    refused(f"{good}[import x]\ngone = maybe\n", "not 'maybe'", tmp_path)
    refused(f"{good}[import x]\nrate = 3\n", "rate must be a number from 4 to 999999, not '3'", tmp_path)
    refused(f"{good}[export x]\ngpus = yes\n", "gpus must be skip or copy, not 'yes'", tmp_path)
    refused(f"{good}[import x]\nprefix = a\n", "end in a slash, not 'a'", tmp_path)
    refused(f"{good}[import x]\nprefix =\n[import y]\nprefix = y/\n", "[import x] and [import y] have one place", tmp_path)
    refused(f"{good}[import x]\nfrom = a\n[mirror]\ntls = no\n[import x]\nfrom = b\n", "two sections [import x]", tmp_path)
    refused(f"{good}listen = 7070\n[import x]\nfrom = a\n", "ADDRESS:PORT, not '7070'", tmp_path)
    refused("[mirror]\nhost = " + "a" * 21 + "\n", "1 to 20", tmp_path)
    refused(good.replace("tls = no", "tls = 1") + "[import x]\nfrom = a\n", "yes or no, not '1'", tmp_path)
    refused(good.replace("tls = no", "") + "[import x]\nfrom = a\n", "write tls = no", tmp_path)
    refused(f"{good}listen = 127.0.0.1:1\n[import x]\nfrom = a\n[export y]\nnamespace = mirror\n", "cannot be exported", tmp_path)
    path = tmp_path / "good.conf"
    path.write_text(f"{good}[import x]\nfrom = a\n")
    assert subprocess.run([MIRROR, "--config", path, "--check"], check=False, timeout=limit(60)).returncode == 0
