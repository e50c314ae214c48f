# SPDX-License-Identifier: Apache-2.0
"""A consumer computes without a pause, and 100 times a second a producer hands it 64 MB: how much slower it computes.

The consumer's main thread keeps four batches of kernels queued, each of about a millisecond. Another thread takes the
updates and reads the last bytes of each. The kernels are PyTorch's products of bfloat16 matrices, or copies on the GPU
if PyTorch cannot be used. Two processes that use a GPU without MPS take turns on it, so the floor is a producer that
writes as much and hands over nothing.
"""

import itertools
import multiprocessing
import socket
import threading
import time

from gpu_driver import TAIL, TORCH_DEVICE, Child, Gpu, hear_from, why_no_torch
from gpu_handover import Draft, Peer, Publish, Stream, Torch

QUEUED = 4  # batches
LAST = 255  # what the bytes of the last update are
MATRIX = 8192


class Nothing(Peer):
    name = "no updates"


class Write(Peer):
    name = "floor: written, not handed over"

    def give(self):
        pass


SOURCES = [Nothing, Write, Publish, Draft, Stream, Torch]


class Compute:
    """Kernels on a stream of their own. batch() queues about a millisecond of them."""

    def __init__(self, gpu, copied):
        self.gpu, self.size = gpu, copied
        self.events = itertools.cycle([gpu.event() for _ in range(QUEUED)])
        if TORCH_DEVICE == "cpu" or why_no_torch():
            self.what = f"copies of {copied >> 20} MiB on the GPU"
            self.stream, self.batch = gpu.stream(), self.copies
            self.memory = [gpu.alloc(copied) for _ in range(2)]
        else:
            import torch

            self.torch, self.batch, self.memory = torch, self.products, []
            self.what = f"products of {MATRIX} x {MATRIX} bfloat16 matrices"
            self.on = torch.cuda.Stream()
            self.stream = self.on.cuda_stream
            make = {"dtype": torch.bfloat16, "device": "cuda"}
            self.a, self.b = (torch.randn(MATRIX, MATRIX, **make) for _ in range(2))
            self.c = torch.empty(MATRIX, MATRIX, **make)
            torch.cuda.synchronize()

    def copies(self):
        for _ in range(max(1, (2 << 30) // self.size) if self.size > 64 << 20 else 1):
            self.gpu.copy(*self.memory, self.size, self.stream)

    def products(self):
        with self.torch.cuda.stream(self.on):
            self.torch.matmul(self.a, self.b, out=self.c)

    def rate(self, seconds):
        """Return how many batches were done in a second, over so many seconds."""
        for _ in range(QUEUED):
            self.next()
        begin, done = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            self.next()
            done += 1
        return done / (time.monotonic() - begin)

    def next(self):
        """Queue a batch, when the one before the last QUEUED has ended."""
        event = next(self.events)
        self.gpu.use("cuEventSynchronize", event)
        self.batch()
        self.gpu.record(event, self.stream)

    def close(self):
        self.gpu.synchronize(self.stream)
        for address in self.memory:
            self.gpu.free(address)
        self.memory = []


def produce(link, size, hertz, channel, queue):
    gpu = Gpu()
    peers = {}
    link.send([kind.why_not() for kind in SOURCES])
    for number, seconds in iter(link.recv, None):
        if number not in peers:
            peers[number] = SOURCES[number](gpu, channel, queue)
            peers[number].resize(size)
        send(peers[number], hertz, seconds)
        link.send(None)
    channel.recv(1)  # the consumer has closed what it had open
    for peer in peers.values():
        peer.close()


def send(peer, hertz, seconds):
    begin, count = time.monotonic(), max(2, int(hertz * seconds))
    for number in range(count):
        time.sleep(max(0, begin + number / hertz - time.monotonic()))
        peer.ready(LAST if number == count - 1 else number % 250)
        peer.give()


def consume(link, copied, channel, queue):
    gpu = Gpu()
    compute, peers = Compute(gpu, copied), {}
    compute.rate(0.5)
    link.send(compute.what)
    for number, size, seconds in iter(link.recv, None):
        kind = SOURCES[number]
        if hasattr(kind, "take") and number not in peers:
            peers[number] = kind(gpu, channel, queue)
            peers[number].expect(size)
        found = []
        taker = threading.Thread(target=take_all, args=(peers.get(number), found))
        taker.start()
        link.send("ready")
        rate = compute.rate(seconds)
        taker.join()
        if found and isinstance(found[-1], Exception):
            raise found[-1]
        link.send((rate, len(found)))
    compute.close()
    for peer in peers.values():
        peer.close()
    channel.send(b"x")


def take_all(peer, found):
    """Take updates until the last one."""
    try:
        while peer:
            tail = peer.tail(*peer.take())
            peer.drop()
            found.append(tail)
            if tail == bytes([LAST]) * TAIL:
                break
    except Exception as error:  # noqa: BLE001 -- the main thread raises it
        found.append(error)


class Pair:
    """Both processes, as gpu.py sees them."""

    def __init__(self, size, copied, hertz):
        self.size = size
        self.queue = queue = multiprocessing.get_context("spawn").Queue()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            self.children = [Child(produce, size, hertz, ours, queue), Child(consume, copied, theirs, queue)]
        self.reasons = dict(zip(SOURCES, hear_from(self.children), strict=True))
        self.what = hear_from(self.children, 1)

    def measure(self, kind, seconds):
        """Return (batches a second, updates that the consumer took)."""
        number = SOURCES.index(kind)
        producer, consumer = self.children
        consumer.tell((number, self.size, seconds))
        hear_from(self.children, 1)
        if kind is not Nothing:
            producer.tell((number, seconds))
        result = hear_from(self.children, 1)
        if kind is not Nothing:
            hear_from(self.children)
        return result

    def end(self):
        producer, consumer = self.children
        consumer.end()  # first: the producer waits for it
        producer.end()
