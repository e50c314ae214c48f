# SPDX-License-Identifier: Apache-2.0
"""The producer's process of one peer. run.py starts it with the peer's Python, and it starts the consumer's process.

run.py talks to it over a socket, with one line of JSON for each question and answer. peers/__init__.py defines a peer.
"""

import importlib
import itertools
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
import zlib

GROUP = 10  # fast calls are timed together, since reading the clock takes a tenth of a microsecond
FAST_NS = 10_000
FALL_ASLEEP_NS = 200_000  # the time that a consumer needs to fall asleep after it said that it will wait
VISIBLE_S = 10  # a value that was put must be visible within this time
BURST_BYTES, BURST_MAX = 64 << 20, 1000  # how much is put in a burst, and how many items at most


def measure(op, after, budget_ns, group, most):
    """Return times of op(), in ns, until budget_ns are over. after() is not timed."""
    clock = time.perf_counter_ns
    samples = []
    end = clock() + budget_ns
    while True:
        start = clock()
        for _ in itertools.repeat(None, group):
            op()
        stop = clock()
        samples.append((stop - start) / group)
        if after:
            after()
        if stop >= end or len(samples) == most:
            return samples


def group_of(op, after):
    """Return how many calls to time together. This also warms up."""
    if after:
        for _ in range(3):
            op()
            after()
        return 1
    samples = measure(op, None, 2_000_000, 1, 5)
    return GROUP if min(samples) < FAST_NS else 1


def spin(ns):
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass


class Failed(Exception):
    """An error whose text is reported without its type."""


class Consuming:
    """The requests to a consumer, carried out in its process."""

    def __init__(self, peer, address):
        self.peer = importlib.import_module(f"peers.{peer}").Consumer(address)
        self.ops = {}
        self.groups = {}

    def resize(self, size, token):
        self.peer.resize(size, token)
        self.ops = self.peer.gets()
        self.groups = {}

    def get(self, case, budget_ns, calls):
        """Time gets. calls is the number of values that can be received, or None if there is no limit."""
        op = self.ops[case]
        if calls is not None:
            return measure(op, None, 0, calls, 1)
        if case not in self.groups:
            self.groups[case] = group_of(op, None)
        return measure(op, None, budget_ns, self.groups[case], None)

    def get_busy(self, case, budget_ns, calls):
        """Time one call at a time, while another thread computes in Python."""
        stop = threading.Event()
        running = threading.Event()

        def compute():
            running.set()
            while not stop.is_set():
                sum(range(100))

        thread = threading.Thread(target=compute)
        thread.start()
        running.wait()
        try:
            return measure(self.ops[case], None, budget_ns if calls is None else 0, 1, calls)
        finally:
            stop.set()
            thread.join()

    def receive(self, *arguments):
        return self.peer.receive(*arguments)

    def take(self, case):
        self.peer.takes()[case]()
        return time.perf_counter_ns()

    def take_many(self, case, n):
        take = self.peer.takes()[case]
        for _ in range(n):
            take()
        return time.perf_counter_ns()

    def checksum_of_taken(self, case):
        return zlib.crc32(self.peer.takes()[case]())

    def checksum(self, token):
        return zlib.crc32(self.peer.look(token))

    def close(self):
        self.peer.close()


def consume(peer, address, conn):
    """The main function of the consumer's process."""
    consuming = Consuming(peer, address)
    conn.send(("ok", None))
    while True:
        try:
            method, arguments = conn.recv()
        except EOFError:
            return
        try:
            if method in ("receive", "take"):
                n, *arguments = arguments
                for _ in range(n):
                    conn.send(("ok", "waiting"))
                    getattr(consuming, method)(*arguments)
                    conn.send(("ok", time.perf_counter_ns()))
                continue
            conn.send(("ok", getattr(consuming, method)(*arguments)))
        except Exception as e:
            conn.send(("error", f"{type(e).__name__}: {e}"))
        if method == "close":
            return


class Child:
    """The consumer, as a child of this process."""

    def __init__(self, peer, address):
        context = multiprocessing.get_context("spawn")
        self.conn, other = context.Pipe()
        self.process = context.Process(target=consume, args=(peer, address, other), daemon=True)
        self.process.start()
        other.close()
        self.answer()

    def ask(self, method, *arguments):
        self.conn.send((method, arguments))

    def answer(self):
        kind, value = self.conn.recv()
        if kind == "error":
            raise Failed(value)
        return value

    def call(self, method, *arguments):
        self.ask(method, *arguments)
        return self.answer()

    def transfer(self, producer, n):
        """Time from send() to the end of the consumer's receive(), in ns. The consumer waits when that begins."""
        samples = []
        self.ask("receive", n)
        for _ in range(n):
            producer.before_send()
            self.answer()
            spin(FALL_ASLEEP_NS)
            start = time.perf_counter_ns()
            producer.send()
            samples.append(self.answer() - start)
            producer.after_send()
        return samples

    def stream(self, offer, case, n):
        """Time from a put to the moment when the consumer, which waits, has the item as an array and gave it back."""
        samples = []
        self.ask("take", n, case)
        for _ in range(n):
            self.answer()
            spin(FALL_ASLEEP_NS)
            start = time.perf_counter_ns()
            offer()
            samples.append(self.answer() - start)
        return samples

    def stream_burst(self, offer, case, n):
        """Put n items as fast as that is possible, and return the time for each until the consumer had the last."""
        self.ask("take_many", case, n)
        start = time.perf_counter_ns()
        for _ in range(n):
            offer()
        return (self.answer() - start) / n

    def close(self):
        self.call("close")
        self.process.join()


class Producing:
    """The requests of run.py to a producer, carried out in its process."""

    def __init__(self, peer, folder):
        import numpy

        self.numpy = numpy
        self.producer = importlib.import_module(f"peers.{peer}").Producer(folder)
        start = getattr(self.producer, "start_consumer", None)
        self.consumer = start(Consuming) if start else Child(peer, self.producer.address)
        self.puts = {}
        self.groups = {}

    def hello(self):
        return {"version": self.producer.version, "pid": os.getpid()}

    def resize(self, size):
        block = self.numpy.frombuffer(os.urandom(min(size, 1 << 20)), dtype="uint8")
        self.source = self.numpy.resize(block, size)
        token = self.producer.resize(self.source)
        self.consumer.call("resize", size, token)
        self.puts = self.producer.puts()
        self.groups = {}

    def check(self, streams):
        """Check that the consumer sees the values of each way of putting and, if there are streams, of offering."""
        for n, (op, after) in enumerate(self.puts.values()):
            self.source[0] = n
            self.source[-1] = 255 - n
            op()
            self.expect(zlib.crc32(self.source))
            if after:
                after()
        for n, (case, offer) in enumerate(self.producer.offers().items() if streams else ()):
            self.source[0] = n
            self.source[-1] = 255 - n
            offer()
            if self.consumer.call("checksum_of_taken", case) != zlib.crc32(self.source):
                raise Failed("the consumer took other bytes than were put")
        return list(self.puts)

    def expect(self, checksum):
        end = time.monotonic() + VISIBLE_S
        while self.consumer.call("checksum", self.producer.latest()) != checksum:
            if time.monotonic() > end:
                raise Failed("the consumer sees other bytes than were put")

    def put(self, case, budget_ns):
        op, after = self.puts[case]
        if case not in self.groups:
            self.groups[case] = group_of(op, after)
        # Another peer had the caches and the processors before. Without this, the first case of each peer takes up to
        # twice as long as the same one at the second place.
        measure(op, after, budget_ns, self.groups[case], None)
        return measure(op, after, budget_ns, self.groups[case], None)

    def get(self, case, budget_ns, method="get"):
        refill = getattr(self.producer, "refill", None)
        if not refill:
            return self.consumer.call(method, case, budget_ns, None)
        samples = []
        end = time.perf_counter_ns() + budget_ns
        while time.perf_counter_ns() < end:
            samples += self.consumer.call(method, case, 0, refill(GROUP))
        return samples

    def busy(self, case, budget_ns):
        return self.get(case, budget_ns, "get_busy")

    def transfer(self, case, n):
        return self.consumer.transfer(self.producer, n)

    def stream(self, case, n):
        return self.consumer.stream(self.producer.offers()[case], case, n)

    def stream_burst(self, case, bursts):
        n = min(BURST_MAX, BURST_BYTES // self.source.nbytes)
        return [self.consumer.stream_burst(self.producer.offers()[case], case, n) for _ in range(bursts)]

    def close(self):
        self.consumer.close()
        self.producer.close()


def reason(e):
    return str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}"


def main():
    peer, folder, descriptor = sys.argv[1:]
    channel = socket.socket(fileno=int(descriptor)).makefile("rw", encoding="utf-8")

    def say(answer):
        channel.write(json.dumps(answer) + "\n")
        channel.flush()

    producing = None
    try:
        producing = Producing(peer, folder)
        say({"ok": producing.hello()})
        for line in channel:
            method, *arguments = json.loads(line)
            try:
                say({"ok": getattr(producing, method)(*arguments)})
            except Exception as e:
                if method not in ("get", "busy", "put"):
                    raise
                say({"error": reason(e), "of": "case"})  # the others may work
            if method == "close":
                return
    except Exception as e:
        import traceback

        traceback.print_exc()
        try:
            say({"error": reason(e), "of": "peer"})
        except OSError:
            pass  # run.py has ended
    # Nothing is closed here: the consumer and the processes that the producer started end when they see our end.
    if producing:
        producing.producer.close()


if __name__ == "__main__":
    main()
