# SPDX-License-Identifier: Apache-2.0
"""multiprocessing.Queue: a thread of the producer pickles each object and writes it to a pipe.

stream: put() and get() of an array. A put that returns has only handed the array to that thread.
"""

import multiprocessing
import platform

from . import BaseConsumer, BaseProducer


class Producer(BaseProducer):
    version = f"multiprocessing of Python {platform.python_version()}"

    def __init__(self, folder):
        self.address = self.queue = multiprocessing.get_context("spawn").Queue(16)

    def resize(self, source):
        self.source = source

    def offers(self):
        put, source = self.queue.put, self.source
        return {"multiprocessing": lambda: put(source)}


class Consumer(BaseConsumer):
    def __init__(self, address):
        self.queue = address

    def takes(self):
        return {"multiprocessing": self.queue.get}
