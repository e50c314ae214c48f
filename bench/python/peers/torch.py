# SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing: tensors that pass from one process to another through a queue, as descriptors.

put: share_memory_(), which copies into new shared memory each time. There is no get by name. transfer: put() of a
shared tensor into a SimpleQueue, to a consumer that sleeps in get() and may write to the tensor. stream: put() of
another tensor over the same array into a Queue, whose thread copies it into shared memory.
"""

import torch
import torch.multiprocessing

from . import BaseConsumer, BaseProducer


class Producer(BaseProducer):
    version = f"torch {torch.__version__}"

    def __init__(self, folder):
        context = torch.multiprocessing.get_context("spawn")
        self.queue, self.items = self.address = context.SimpleQueue(), context.Queue(16)

    def resize(self, source):
        self.source = source
        self.tensor = torch.from_numpy(source).share_memory_()

    def puts(self):
        from_numpy, source = torch.from_numpy, self.source

        def put():
            self.last = from_numpy(source).share_memory_()

        return {"torch": (put, None)}

    def offers(self):
        put, from_numpy, source = self.items.put, torch.from_numpy, self.source
        return {"torch": lambda: put(from_numpy(source))}

    def latest(self):
        self.queue.put(self.last)

    def send(self):
        self.queue.put(self.tensor)


class Consumer(BaseConsumer):
    def __init__(self, address):
        self.queue, self.items = address

    def takes(self):
        get = self.items.get
        return {"torch": lambda: get().numpy()}

    def look(self, token):
        return self.queue.get().numpy()

    def receive(self):
        self.queue.get().numpy()
