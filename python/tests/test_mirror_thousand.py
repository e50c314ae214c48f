# SPDX-License-Identifier: Apache-2.0
"""tensorlease-mirror: many hosts at one NATS server. TL_MIRROR_HOSTS says how many.

They are real connections to a real server. A real mirror is the origin of their names, or the one to which theirs come.
"""

import asyncio
import collections
import contextlib
import json
import os
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import eventually
from crowd import Member, open_files, read
from limits import limit
from mirrors import EXPORT, IMPORT, PIECE, SKIPS, hosts, listens_at, nats  # noqa: F401 (fixtures)
from test_mirror import Talker, message, note
from test_mirror_status import ask, runs

pytestmark = SKIPS

HOSTS = int(os.environ.get("TL_MIRROR_HOSTS") or 100)
ASK_S = 2  # as long as a mirror waits for an answer


@pytest.fixture(autouse=True)
def files():
    with open_files(8 * HOSTS + 500):
        yield


def memory_of(program, what="VmRSS"):
    """In MB."""
    return int(re.search(rf"{what}:\s+(\d+)", Path(f"/proc/{program.pid}/status").read_text())[1]) / 1000


async def until(condition):
    end = time.monotonic() + limit(60)
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


class Importer:
    """A host that imports all: it knows which version of each name it was told of last, and when."""

    def __init__(self, number):
        self.number, self.names, self.told_at, self.tickets = number, {}, {}, {}
        self.beats, self.late = 0, 0
        self.member = Member(self.heard)

    async def connect(self, port):
        await self.member.connect(port, self.number)
        self.member.subscribe("tl1.all.ann.*")
        self.member.subscribe("tl1.all.beat.*")
        await self.member.flush()

    def heard(self, member, subject, reply, data):
        self.beats += subject == "tl1.all.beat.a"
        self.take(data)

    def take(self, data):
        page = read(data)[0]
        for one in page["notes"]:
            self.told_at[one["name"]] = time.monotonic()
            self.names[one["name"]] = max(self.names.get(one["name"], 0), int(one["version"]))
            self.tickets[one["name"]] = one.get("ticket")
            if one.get("gone"):
                del self.names[one["name"]]
        return page

    async def compare(self):
        """As an importing mirror does when it has a connection: until it has the whole list."""
        self.names, self.beats, self.late = {}, 0, 0
        self.member.publish("tl1.all.who")
        await until(lambda: self.beats)
        wait = 1
        while True:
            try:
                after = self.take(await self.member.ask("tl1.all.list.a", b"", ASK_S))["next"]
                while after:
                    after = self.take(await self.member.ask("tl1.all.list.a", after.encode(), ASK_S))["next"]
                return
            except asyncio.TimeoutError:
                self.late += 1
                await asyncio.sleep(wait)
                wait = min(2 * wait, 30)


@contextlib.asynccontextmanager
async def importers(nats):
    crowd = [Importer(n) for n in range(HOSTS)]
    try:
        await asyncio.gather(*(one.connect(nats.port) for one in crowd))
        yield crowd
    finally:
        for one in crowd:
            one.member.close()


async def announced(here, crowd, name, value):
    """Puts it, and returns how long it took until the last host had heard of it."""
    begin = time.monotonic()
    here.put(name, value)
    version = here.stat(name).version
    await until(lambda: all(one.names.get(name) == version for one in crowd))
    return max(one.told_at[name] for one in crowd) - begin


def test_all_hosts_hear_of_each_version(hosts, nats):
    a = hosts("a", EXPORT).start()
    here = a.connect()

    async def work():
        async with importers(nats) as crowd:
            await until(lambda: all(one.beats for one in crowd))
            slowest = {}
            for size in (1, 1000, 100_000):
                names = [f"n/{size}/{k}" for k in range(5)] * 2
                slowest[8 * size] = [await announced(here, crowd, name, np.zeros(size)) for name in names]
            names = {info.name: info.version for info in here.list()}
            assert len(names) == 15 and all(one.names == names for one in crowd)
            here.delete("n/1/0")
            await until(lambda: not any("n/1/0" in one.names for one in crowd))
            begin = time.monotonic()
            for k in range(200):  # faster than they can be heard one by one: the newest one comes
                here.put("fast", np.array([k]))
            await until(lambda: all(one.names.get("fast") == 200 for one in crowd))
            print(f"the last of {HOSTS} hosts heard of the last of 200 versions after {time.monotonic() - begin:.2f} s")
            for size, seconds in slowest.items():
                print(f"the last of {HOSTS} hosts heard of {size} bytes after {sorted(seconds)[5] * 1000:.0f} ms,"
                      f" and once after {max(seconds) * 1000:.0f} ms")  # fmt: skip

    asyncio.run(work())


def test_all_hosts_compare_at_once(hosts, nats):
    """As after a restart of the NATS server. Names are published meanwhile, of which none may be missed."""
    a = hosts("a", EXPORT)
    here = a.connect()
    here.put_many({f"n/{k}": np.full(4, k) for k in range(700)})
    a.start()

    async def publish():
        while True:
            here.put(f"n/{random.randrange(700)}", np.zeros(random.choice((4, 10_000))))
            await asyncio.sleep(0.002)

    async def storm(crowd, when):
        begin = time.monotonic()
        publishing = asyncio.create_task(publish())
        await asyncio.gather(*(one.compare() for one in crowd))
        seconds = time.monotonic() - begin
        publishing.cancel()
        names = {info.name: info.version for info in here.list()}
        await until(lambda: all(one.names == names for one in crowd))
        beats = max(one.beats for one in crowd)
        assert beats <= 10 + 15 * seconds, "one beat did not answer many"
        slowest = await announced(here, crowd, "after", np.zeros(3))
        print(f"{HOSTS} hosts compare {len(names)} names {when}: {seconds:.2f} s, {beats} beats,"
              f" {sum(one.late for one in crowd)} answers late; all heard of the next put after {slowest:.3f} s;"
              f" the mirror had at most {memory_of(a.mirror, 'VmHWM'):.0f} MB")  # fmt: skip

    async def work():
        before = memory_of(a.mirror)
        async with importers(nats) as crowd:
            await storm(crowd, "at first")
            nats.kill()
            await asyncio.gather(*(one.member.lost for one in crowd))
            assert nats.start()
            begin = time.monotonic()
            await asyncio.gather(*(one.connect(nats.port) for one in crowd))
            print(f"{HOSTS} hosts are back {time.monotonic() - begin:.2f} s after the NATS server")
            await storm(crowd, "after the server was killed")
        assert memory_of(a.mirror, "VmHWM") < before + 100

    asyncio.run(work())


class Asker(Importer):
    """It asks for the first piece of a version, from an address of its own, and keeps the connection."""

    async def ask(self, port, ticket):
        address = f"127.1.{self.number // 250}.{self.number % 250 + 1}"
        self.reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        writer.write(f"GET /v1/{ticket}/0 HTTP/1.1\r\nHost: a\r\nX-Host: h{self.number}\r\n"
                     f"X-Url: http://{address}:1\r\nX-Want: 5\r\n\r\n".encode())  # fmt: skip
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        await self.reader.readexactly(int(re.search(r"(?i)content-length: (\d+)", head)[1]))
        where = re.search(r"(?i)location: http://127\.1\.(\d+)\.(\d+):1", head)
        self.status, self.parent = int(head.split()[1]), int(where[1]) * 250 + int(where[2]) - 1 if where else None
        return writer


def test_all_hosts_ask_for_bytes_at_once(hosts, nats):
    a = hosts("a", EXPORT).start()
    here = a.connect()
    count = max(HOSTS, 300)

    async def work():
        crowd = [Asker(n) for n in range(count)]
        await crowd[0].connect(nats.port)
        here.put("large", np.zeros(5 * PIECE // 8))
        await until(lambda: "large" in crowd[0].tickets)
        port, ticket = listens_at(a.mirror.pid), crowd[0].tickets["large"]
        begin = time.monotonic()
        writers = await asyncio.gather(*(one.ask(port, ticket) for one in crowd))
        print(f"{count} hosts know from whom they get a version after {time.monotonic() - begin:.2f} s")
        assert not any(one.reader.at_eof() for one in crowd), "some had to wait until others' connections ended"
        assert sum(one.status == 200 for one in crowd) == 2 and sum(one.status == 307 for one in crowd) == count - 2
        children = collections.Counter(one.parent for one in crowd)
        assert children[None] == 2 and max(children.values()) == 2, "more than two get it from one host"
        for writer in writers:
            writer.close()
        crowd[0].member.close()

    asyncio.run(work())


class Exporter:
    """A host with one small tensor."""

    def __init__(self, number):
        self.number, self.host, self.version = number, f"h{number}", number + 1
        self.member = Member(self.heard)
        self.beating = None

    def message(self, notes=1, **more):
        value = (self.version * 1000).to_bytes(8, "little")
        one = note(f"of/{self.host}", self.version, time=str(self.version), metadata=0)
        return message(*[one] * notes, data=value * notes, life=str(self.number + 1), **more)

    def heard(self, member, subject, reply, data):
        if reply:
            member.publish(reply, self.message(next=""))
        else:  # who is there?
            self.beat()

    def beat(self):
        self.member.publish(f"tl1.all.beat.{self.host}", self.message(0))

    def announce(self):
        self.version += 1
        self.member.publish(f"tl1.all.ann.{self.host}", self.message())

    async def connect(self, port):
        await self.member.connect(port, self.number)
        self.member.subscribe(f"tl1.all.list.{self.host}")
        self.member.subscribe("tl1.all.who")
        await self.member.flush()
        self.beating = asyncio.create_task(self.beats())

    async def beats(self):
        while True:
            self.beat()
            await asyncio.sleep(2)

    def close(self):
        if self.beating:
            self.beating.cancel()
        self.member.close()


@contextlib.asynccontextmanager
async def exporters(nats, count):
    crowd = [Exporter(n) for n in range(count)]
    try:
        await asyncio.gather(*(one.connect(nats.port) for one in crowd))
        yield crowd
    finally:
        for one in crowd:
            one.close()


def has(there, crowd):
    return {info.name: info.version for info in there.list()} == {f"of/{one.host}": one.version for one in crowd}


def check_values(there, crowd):
    for one in crowd:
        with there.get(f"of/{one.host}") as tensor:
            assert tensor.numpy()[0] == 1000 * one.version, "wrong bytes"


def peers(host):
    (rule,) = json.loads(ask(host, "status", "--json"))["imports"]
    return rule["hosts"]


def gone(there, crowd):
    return [one for one in crowd if there.stat(f"of/{one.host}").publisher.gone]


def test_names_of_many_hosts(hosts, nats):
    b = hosts("b", IMPORT, more=("--max-clients", str(2 * HOSTS + 20))).start()
    there = b.connect("mirror")

    async def work():
        async with exporters(nats, HOSTS) as crowd:
            begin = time.monotonic()
            await until(lambda: has(there, crowd))
            print(f"the names of {HOSTS} hosts are here after {time.monotonic() - begin:.2f} s")
            check_values(there, crowd)
            begin = time.monotonic()
            for one in crowd:
                one.announce()
            await until(lambda: has(there, crowd))
            print(f"a version of each of {HOSTS} hosts is here after {time.monotonic() - begin:.2f} s")
            check_values(there, crowd)
            assert all(one["up"] for one in peers(b)) and len(peers(b)) == HOSTS
            print(f"the mirror has {memory_of(b.mirror, 'RssAnon'):.0f} MB of its own")
            silent, rest = crowd[::2], crowd[1::2]
            for one in silent:
                one.close()
            begin = time.monotonic()
            await until(lambda: {one["host"] for one in peers(b) if not one["up"]} == {one.host for one in silent})
            await until(lambda: gone(there, crowd) == silent)
            print(f"{len(silent)} of {HOSTS} hosts are gone {time.monotonic() - begin:.2f} s after they fell silent")
            for one in rest:
                one.announce()
            await until(lambda: has(there, crowd))
            check_values(there, crowd)

    asyncio.run(work())


def test_more_hosts_than_the_daemon_has_connections_for(hosts, nats):
    b = hosts("b", IMPORT, more=("--max-clients", "20")).start()
    there = b.connect("mirror")

    async def work():
        async with exporters(nats, 14) as crowd:

            def refused():
                return {one["host"] for one in peers(b) if one["failures"]["space"] and not one["names"]}

            await until(lambda: runs(b) and len(there.keys()) + len(refused()) == 14)
            here = [one for one in crowd if f"of/{one.host}" in there]
            assert 9 <= len(here) <= 10, "one may be the mirror's own, to read what it relays"
            assert "too many hosts for the daemon here" in b.mirror.said()
            assert b.connect("mirror").stat(f"of/{here[0].host}")  # programs of this host are served
            for one in here:
                one.announce()
            await until(lambda: has(there, here))
            check_values(there, here)
            for one in here[:5]:
                one.close()
            await until(lambda: has(there, crowd))  # others take their places
            check_values(there, crowd)
            await until(lambda: gone(there, crowd) == here[:5])

    asyncio.run(work())


def test_hosts_that_are_gone_make_room(hosts, nats):
    b = hosts("b", f"{IMPORT}gone = delete\n").start()
    there, talker, most = b.connect("mirror"), Talker(nats.port), 4096

    def known():
        return {one["host"]: one["up"] for one in json.loads(ask(b, "peers", "--json"))["imports"][0]["hosts"]}

    def says(host, *notes, data=b""):
        talker.publish(f"tl1.all.ann.{host}", message(*notes, data=data))

    eventually(lambda: runs(b))
    eventually(lambda: says("first", note("of-first"), data=bytes(8)) or "of-first" in there.keys())
    for n in range(most - 1):
        says(f"h{n}")
    eventually(lambda: len(known()) == most)
    says("late", note("of-late"), data=bytes(8))
    says("first", note("after"), data=bytes(8))
    eventually(lambda: "after" in there.keys())
    assert "late" not in known()
    eventually(lambda: not any(known().values()) and not there.keys())
    eventually(lambda: says("late", note("of-late"), data=bytes(8)) or "of-late" in there.keys())
    assert known()["late"] and len(known()) <= 2  # the connection of the first one may be there yet
