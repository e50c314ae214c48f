# SPDX-License-Identifier: Apache-2.0
"""tensorlease, with a daemon of its own.

put: client.put() as it comes, which is to a ring up to 4 MiB, and to a name without one, which waits for the daemon.
get: client.get(name).release(), the lease alone; client.get(name).numpy() and the end of the array, which ends the
lease; client.get(name, mode="c").torch(), which maps pages of its own each time. transfer: commit() of a draft to a
consumer that sleeps in get(newer_than=...), of a name with a ring. stream: a Queue, whose get() gives an array that its
caller may write to; one with mode="r"; the put() and get() of a stream; and a tensor that is put, got and handed on
through a multiprocessing.Queue.
"""

import multiprocessing
import os
import signal
import socket
from pathlib import Path

import tensorlease

from . import BaseConsumer, BaseProducer, start_server


DEPTH = 16  # of the queues
RING = 4  # slots of the ring of "transfer"


def queues(client):
    return {
        "tensorlease": tensorlease.Queue(DEPTH, name="bench/private", client=client),
        "tensorlease/read-only": tensorlease.Queue(DEPTH, name="bench/shared", client=client, mode="r"),
        "tensorlease/stream": client.stream("bench/stream", "queue", depth=DEPTH),
    }


class Producer(BaseProducer):
    version = f"tensorlease {tensorlease.__version__}"

    def __init__(self, folder):
        socket_path = os.path.join(folder, "tensorlease")
        self.handed = multiprocessing.get_context("spawn").Queue(DEPTH)
        self.address = socket_path, self.handed
        program = Path(tensorlease.__file__).parent / "bin" / "tensorleased"
        command = [program, "--foreground", "--socket", socket_path, "--log-level", "error"]
        self.daemon = start_server(command, socket_path, socket.SOCK_SEQPACKET)
        self.client = tensorlease.connect(socket_path, autostart=False)
        self.client.pickle_tensors()
        self.queues = queues(self.client)

    def resize(self, source):
        self.source = source
        self.client.put("get", source)
        self.client.put("transfer", source, ring=RING)
        assert self.client.stat("transfer").ring

    def puts(self):
        put, source = self.client.put, self.source

        def ring():
            put("put/ring", source, ring="auto")

        def wait():
            put("put/no-ring", source, ring=False)

        return {
            "tensorlease": (ring, None),
            "tensorlease/no-ring": (wait, None),
        }

    def offers(self):
        def offer(case):
            put, source = self.queues[case].put, self.source
            return lambda: put(source)

        def hand_on():
            self.client.put("handed", self.source)
            with self.client.get("handed") as tensor:
                self.handed.put(tensor)

        return {**{case: offer(case) for case in self.queues}, "tensorlease/handed": hand_on}

    def latest(self):
        return max(self.client.list("put"), key=lambda info: info.committed_ns).name

    def before_send(self):
        self.draft = self.client.create("transfer", self.source.shape, "uint8", ring=RING)

    def send(self):
        self.draft.commit()

    def close(self):
        self.client.close()
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait()


class Consumer(BaseConsumer):
    def __init__(self, address):
        path, self.handed = address
        self.client = tensorlease.connect(path, autostart=False)
        self.queues = queues(self.client)
        self.subscription = self.queues.pop("tensorlease/stream").subscribe()

    def resize(self, size, token):
        self.seen = self.client.stat("transfer").version

    def gets(self):
        get = self.client.get

        def tensor():
            get("get").release()

        def array():
            get("get").numpy()

        def torch():
            get("get", mode="c").torch()

        return {"tensorlease": tensor, "tensorlease/numpy": array, "tensorlease/torch": torch}

    def takes(self):
        def take():
            with self.subscription.get() as item:
                return item.tensor.numpy()

        def handed():
            return self.handed.get().numpy()

        return {"tensorlease/stream": take, "tensorlease/handed": handed, **{case: queue.get for case, queue in self.queues.items()}}

    def look(self, token):
        return self.client.get(token).numpy()

    def receive(self):
        tensor = self.client.get("transfer", newer_than=self.seen, timeout=60)
        self.seen = tensor.version
        tensor.numpy()

    def close(self):
        self.client.close()
