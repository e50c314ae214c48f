# SPDX-License-Identifier: Apache-2.0
"""faster-fifo: a queue of pickles in a ring of shared memory, with a lock of all its processes.

stream: put() and get() of an array, which both copy it. The ring has room for four of the largest ones.
"""

import importlib.metadata

import faster_fifo
import faster_fifo_reduction  # noqa: F401, so that spawned processes can be given the queue

from . import BaseConsumer, BaseProducer

BYTES = 68 << 20
WAIT_S = 60


class Producer(BaseProducer):
    version = f"faster-fifo {importlib.metadata.version('faster-fifo')}"

    def __init__(self, folder):
        self.address = self.queue = faster_fifo.Queue(BYTES)

    def resize(self, source):
        self.source = source

    def offers(self):
        put, source = self.queue.put, self.source
        return {"faster_fifo": lambda: put(source, timeout=WAIT_S)}


class Consumer(BaseConsumer):
    def __init__(self, address):
        self.queue = address

    def takes(self):
        get = self.queue.get
        return {"faster_fifo": lambda: get(timeout=WAIT_S)}
