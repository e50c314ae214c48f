# SPDX-License-Identifier: Apache-2.0
"""Plasma of pyarrow 11, with a store of its own. Objects are bytes with ids, not names.

put: create, copy with NumPy, seal. The object before is deleted after the clock has stopped. get: get_buffers() of one
id and an array over it; the end of the buffer releases the object. transfer: seal an object that was created but not
written, for a consumer that waits in get_buffers().
"""

import os
import warnings

import numpy
import pyarrow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pyarrow import plasma

from . import BaseConsumer, BaseProducer, start_server

STORE = os.path.join(pyarrow.__path__[0], "plasma-store-server")
CAPACITY = 3 << 30
TRANSFERS = b"transfer"


def numbered(prefix, n):
    return plasma.ObjectID(prefix + n.to_bytes(20 - len(prefix), "little"))


class Producer(BaseProducer):
    version = f"Plasma of pyarrow {pyarrow.__version__}"

    def __init__(self, folder):
        self.address = os.path.join(folder, "plasma")
        self.store = start_server([STORE, "-s", self.address, "-m", str(CAPACITY)], self.address)
        self.client = plasma.connect(self.address)
        self.puts_done = self.transfers = 0
        self.kept = self.last = None

    def new(self, source):
        self.puts_done += 1
        i = numbered(b"put", self.puts_done)
        numpy.copyto(numpy.frombuffer(self.client.create(i, source.nbytes), "uint8"), source)
        self.client.seal(i)
        return i

    def resize(self, source):
        self.source = source
        self.client.delete([i for i in (self.kept, self.last) if i])
        self.kept, self.last = self.new(source), self.new(source)
        return self.kept.binary()

    def puts(self):
        def put():
            self.before = self.last
            self.last = self.new(self.source)

        def delete():
            self.client.delete([self.before])

        return {"plasma": (put, delete)}

    def latest(self):
        return self.last.binary()

    def before_send(self):
        self.transfers += 1
        self.client.create(numbered(TRANSFERS, self.transfers), self.source.nbytes)

    def send(self):
        self.client.seal(numbered(TRANSFERS, self.transfers))

    def after_send(self):
        self.client.delete([numbered(TRANSFERS, self.transfers)])

    def close(self):
        self.client.disconnect()
        self.store.terminate()
        self.store.wait()


class Consumer(BaseConsumer):
    def __init__(self, address):
        self.client = plasma.connect(address)
        self.transfers = 0

    def resize(self, size, token):
        self.ids = [plasma.ObjectID(token)]

    def gets(self):
        get_buffers, ids, frombuffer = self.client.get_buffers, self.ids, numpy.frombuffer

        def get():
            [buffer] = get_buffers(ids)
            frombuffer(buffer, "uint8")

        return {"plasma": get}

    def look(self, token):
        [buffer] = self.client.get_buffers([plasma.ObjectID(token)])
        return buffer

    def receive(self):
        self.transfers += 1
        [buffer] = self.client.get_buffers([numbered(TRANSFERS, self.transfers)], timeout_ms=60_000)
        numpy.frombuffer(buffer, "uint8")

    def close(self):
        self.client.disconnect()
