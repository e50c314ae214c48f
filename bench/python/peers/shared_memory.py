# SPDX-License-Identifier: Apache-2.0
"""multiprocessing.shared_memory: bytes under a name, without shape, type or knowledge of readers.

put: "new" makes a segment for each value, which is needed for a value that readers may hold, and unlinks the one
before. "in place" overwrites an existing segment while readers may read it. get: "open" opens the name, makes an array
and closes it. "opened" makes an array over an open segment, which holds nothing. transfer: send the name over a Pipe,
then "open".
"""

import multiprocessing
import platform
from multiprocessing.shared_memory import SharedMemory

import numpy

from . import BaseConsumer, BaseProducer


def forget(segment):
    if segment:
        segment.close()
        segment.unlink()


class Producer(BaseProducer):
    version = f"multiprocessing.shared_memory of Python {platform.python_version()}"

    def __init__(self, folder):
        self.address, self.pipe = multiprocessing.Pipe(duplex=False)
        self.kept = self.new = None

    def resize(self, source):
        self.close()
        self.source = source
        self.kept, self.new = self.make(), self.make()
        self.last = self.kept
        return self.kept.name

    def make(self):
        segment = SharedMemory(create=True, size=self.source.nbytes)
        self.fill(segment)
        return segment

    def fill(self, segment):
        numpy.ndarray(self.source.shape, "uint8", segment.buf)[:] = self.source

    def puts(self):
        def new():
            forget(self.new)
            self.new = self.last = self.make()

        def in_place():
            self.fill(self.kept)
            self.last = self.kept

        return {"shared_memory/new": (new, None), "shared_memory/in-place": (in_place, None)}

    def latest(self):
        return self.last.name

    def send(self):
        self.pipe.send(self.kept.name)

    def close(self):
        forget(self.kept)
        forget(self.new)


class Consumer(BaseConsumer):
    def __init__(self, address):
        self.pipe = address
        self.kept = None

    def resize(self, size, token):
        self.close()
        self.shape = (size,)
        self.name = token
        self.kept = SharedMemory(token)

    def gets(self):
        name, shape, kept, ndarray = self.name, self.shape, self.kept, numpy.ndarray

        def open_it():
            segment = SharedMemory(name)
            ndarray(shape, "uint8", segment.buf)
            segment.close()

        def opened():
            ndarray(shape, "uint8", kept.buf)

        return {"shared_memory/open": open_it, "shared_memory/opened": opened}

    def look(self, token):
        segment = SharedMemory(token)
        try:
            return numpy.ndarray(self.shape, "uint8", segment.buf).copy()
        finally:
            segment.close()

    def receive(self):
        segment = SharedMemory(self.pipe.recv())
        numpy.ndarray(self.shape, "uint8", segment.buf)
        segment.close()

    def close(self):
        if self.kept:
            self.kept.close()
            self.kept = None
