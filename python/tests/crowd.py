# SPDX-License-Identifier: Apache-2.0
"""Many hosts for tests of tensorlease-mirror: each is a real connection to the NATS server, as a mirror has one."""

import asyncio
import contextlib
import functools
import json
import resource

import pytest


@contextlib.contextmanager
def open_files(count):
    """Lets this process, and those that it starts, have so many open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= before[1] < count:
        pytest.skip(f"it needs {count} open files, and {before[1]} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(count, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Member(asyncio.Protocol):
    """One connection. What it hears goes to heard(subject, reply, data), and answers to those who ask."""

    def __init__(self, heard):
        self.heard, self.rest, self.inbox, self.asked = heard, bytearray(), "", {}
        self.transport, self.lost, self.ready = None, None, None
        self.subscriptions = 0

    async def connect(self, port, number):
        """The server may be away for a while."""
        loop = asyncio.get_running_loop()
        self.inbox, self.rest, self.subscriptions = f"_INBOX.test{number}", bytearray(), 0
        while True:
            self.lost, self.ready = loop.create_future(), loop.create_future()
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", port)
                self.transport.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\n')
                self.subscribe(f"{self.inbox}.*")
                await self.flush()
                return self
            except OSError:
                await asyncio.sleep(0.5)

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, error):
        for waiting in (self.lost, self.ready, *self.asked.values()):
            if not waiting.done():
                waiting.set_exception(ConnectionResetError()) if waiting is not self.lost else waiting.set_result(None)

    def data_received(self, data):
        rest, at = self.rest, 0
        rest += data
        while (end := rest.find(b"\r\n", at)) >= 0:
            line = bytes(rest[at:end])
            if line.startswith(b"MSG "):
                words = line.decode().split(" ")
                size = int(words[-1])
                if len(rest) < end + 2 + size + 2:
                    break
                self.message(words[1], words[3] if len(words) == 5 else None, bytes(rest[end + 2 : end + 2 + size]))
                at = end + 2 + size + 2
                continue
            at = end + 2
            if line == b"PING":
                self.transport.write(b"PONG\r\n")
            elif line == b"PONG":
                self.ready.done() or self.ready.set_result(None)
            else:
                assert line.startswith(b"INFO "), line
        del rest[:at]

    def message(self, subject, reply, data):
        if not subject.startswith(self.inbox):
            self.heard(self, subject, reply, data)
        elif (answer := self.asked.get(subject)) and not answer.done():
            answer.set_result(data)

    def subscribe(self, subject):
        self.subscriptions += 1
        self.transport.write(b"SUB %s %d\r\n" % (subject.encode(), self.subscriptions))

    def publish(self, subject, data=b"", reply=""):
        self.transport.write(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(data), data))

    async def flush(self):
        """The server has taken all that was said to it."""
        self.ready = asyncio.get_running_loop().create_future()
        self.transport.write(b"PING\r\n")
        await self.ready

    async def ask(self, subject, data, seconds):
        reply = f"{self.inbox}.{len(self.asked)}"
        self.asked[reply] = asyncio.get_running_loop().create_future()
        self.publish(subject, data, reply)
        return await asyncio.wait_for(self.asked[reply], seconds)

    def close(self):
        self.transport.close()


@functools.lru_cache(64)
def read(data):
    """A message's object and its bytes. Most members hear the same."""
    text, _, more = data.partition(b"\0")
    return json.loads(text), more
