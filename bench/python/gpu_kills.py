# SPDX-License-Identifier: Apache-2.0
"""A trainer and workers are killed, 200 times, while sets of weights go from one to the others on a GPU.

Each tensor of a set is filled with one byte, that of its step, and each worker checks all tensors of each set that it
gets. The steps are put_many() and, in place, publish_many() by turns, and no step waits for the GPU. Whoever was killed
is followed by a process that has its CUDA context already.
"""

import ctypes
import mmap
import os
import random
import tempfile
import time

import tensorlease
from gpu_driver import PART, TAIL, Bytes, Child, Got, Gpu, connect, wait_until

PREFIX, TENSORS, SIZE = "bench/kills", 32, 1 << 20
PAUSE_S = 0.01  # between two steps
WAIT_S = 30  # for what must come: then the run has failed
SPARES = max(2, min(5, os.cpu_count() // 3))  # of trainers and of workers


FIELDS = ("sets", "trainer", "mixed", "partial", "lost", "longest_ns", "busy_ns")


class Seen(ctypes.Structure):
    """What one process tells of itself. It has one writer, and outlives it."""

    # busy_ns is when a step began that has not ended; 0: none has
    _fields_ = [(name, ctypes.c_longlong) for name in FIELDS]


class Table:
    """Rows of Seen in a file, which all processes map."""

    def __init__(self, path, rows=None):
        with open(path, "r+b") as file:
            if rows:
                file.truncate(rows * ctypes.sizeof(Seen))
            self.map = mmap.mmap(file.fileno(), 0)
        self.rows = (Seen * (len(self.map) // ctypes.sizeof(Seen))).from_buffer(self.map)


class Model:
    """Memory for one step in place."""

    def __init__(self, gpu):
        self.address = tensorlease.cuda_alloc(TENSORS * SIZE)
        self.arrays = {f"layer.{n}": Bytes(gpu, self.address + n * SIZE, SIZE) for n in range(TENSORS)}
        self.lent = 0

    def is_back(self):
        return all(array.deleted >= self.lent for array in self.arrays.values())


def train(link, path, row):
    seen, gpu, client = Table(path).rows[row], Gpu(), connect()
    models = [Model(gpu) for _ in range(3)]
    link.send(None)
    link.recv()
    for step in range(1 << 40):
        model = models[step % len(models)]
        seen.busy_ns = begin = time.monotonic_ns()
        wait_until(model.is_back, "a model was not given back", WAIT_S)
        gpu.fill(model.address, step % 251, TENSORS * SIZE, gpu.work)
        more = {"prefix": PREFIX, "metadata": f"{step} {os.getpid()}".encode(), "stream": gpu.work, "timeout": WAIT_S}
        if step % 2:
            client.publish_many(model.arrays, **more)
        else:
            client.put_many(model.arrays, **more)
            gpu.synchronize(gpu.work)  # the copy has been made before the model is filled again
        model.lent += 1
        seen.longest_ns = max(seen.longest_ns, time.monotonic_ns() - begin)
        seen.sets, seen.busy_ns = seen.sets + 1, 0
        time.sleep(PAUSE_S)


def work(link, path, row):
    seen, gpu, client = Table(path).rows[row], Gpu(), connect()
    link.send(None)
    link.recv()
    held = {}
    with client.watch(prefix=PREFIX, timeout=WAIT_S) as watch:
        while True:
            begin = time.monotonic_ns()
            try:
                tensors = next(watch)
                got = {name: Got(gpu, tensor) for name, tensor in tensors.items()}
            except tensorlease.TensorLostError:
                seen.lost += 1  # its trainer was killed before the GPU had written it
                continue
            words = {tensor.metadata for tensor in tensors.values()}
            step, trainer = map(int, next(iter(words)).split())
            wanted = bytes([step % 251]) * TAIL
            seen.mixed += len(words) > 1 or any(gpu.tail(g.address, SIZE) != wanted for g in got.values())
            seen.partial += len(got) != TENSORS
            if trainer == seen.trainer:  # another one needs time to begin
                seen.longest_ns = max(seen.longest_ns, time.monotonic_ns() - begin)
            seen.trainer, seen.sets = trainer, seen.sets + 1
            for former in held.values():
                former.drop()
            held = got


def used(link):
    """Return what of the GPU's memory is in use, beside this process."""
    del link
    return Gpu().used_bytes()


def left_after(before, client):
    """Return how many more bytes of the GPU are in use than before, by the driver's count or by the daemon's.

    Consumers and the daemon close memory a moment after it was given back, so this looks for some seconds.
    """
    end = time.monotonic() + 10
    while True:
        left = max(Child(used).end() - before, sum(usage.bytes_used for usage in client.devices()))
        if left < PART or time.monotonic() > end:
            return left


class Actors:
    """The processes, and others that wait to take the place of those that are killed."""

    def __init__(self, path, workers, kills):
        self.path = path
        self.table = Table(path, 1 + workers + 2 * SPARES + kills + 1)
        self.next_row, self.longest_ns = 0, 0
        self.spares = {train: [], work: []}
        self.live = []  # (child, its row of the table)
        for function in (train, *[work] * workers):
            self.replace(None, function)

    def spare(self, function):
        child = Child(function, self.path, self.next_row)
        self.spares[function].append((child, self.table.rows[self.next_row]))
        self.next_row += 1

    def replace(self, place, function):
        """Let the next one begin, and start another one for later."""
        if len(self.spares[function]) < 1:
            self.spare(function)
        child, row = self.spares[function].pop(0)
        child.hear()
        child.tell("begin")
        if place is None:
            self.live.append((child, row))
        else:
            self.live[place] = (child, row)

    def fill_up(self, left):
        """Start as many spares as are still of use."""
        while len(self.spares[train]) < min(SPARES, left):
            self.spare(train)
        while len(self.spares[work]) < min(SPARES, left):
            self.spare(work)

    def wait(self, sets):
        """Wait until the trainer has made so many sets and was heard of by all workers."""
        (trainer, row), *workers = self.live

        def check():
            for child, _ in self.live:
                if not child.process.is_alive():
                    raise ChildProcessError(f"process {child.pid} ended by itself: {child.process.exitcode}")
            return row.sets >= sets

        wait_until(check, "the trainer does not go on", WAIT_S)
        begin = time.monotonic_ns()
        wait_until(
            lambda: check() and all(seen.trainer == trainer.pid for _, seen in workers),
            "a worker has no set of the trainer",
            WAIT_S,
        )
        self.longest_ns = max(self.longest_ns, time.monotonic_ns() - begin)

    def kill(self, place):
        child, seen = self.live[place]
        busy_ns = seen.busy_ns
        if busy_ns:
            self.longest_ns = max(self.longest_ns, time.monotonic_ns() - busy_ns)
        child.kill()

    def kill_all(self):
        for child, _ in self.live + self.spares[train] + self.spares[work]:
            child.kill()

    def seen(self):
        """Return what all processes told together."""
        rows = self.table.rows[: self.next_row]
        totals = {field: sum(getattr(row, field) for row in rows) for field in ("sets", "mixed", "partial", "lost")}
        return {**totals, "longest_ns": max(self.longest_ns, *(row.longest_ns for row in rows))}


def run(kills, workers, until):
    """Return what was seen, as a dict. It ends early, with fewer kills, at the time `until`."""
    measured = Child(used)
    before = measured.end()
    chance = random.Random(7)
    begin = time.monotonic()
    with tempfile.NamedTemporaryFile(prefix="tl-kills-") as file:
        actors, done, killed_trainers = Actors(file.name, workers, kills), 0, 0
        try:
            while done < kills and time.monotonic() < until:
                actors.fill_up(kills - done)
                actors.wait(chance.randint(1, 9))
                time.sleep(chance.uniform(0, 3 * PAUSE_S))
                place = 0 if chance.random() < 0.4 else chance.randrange(1, workers + 1)
                actors.kill(place)
                done, killed_trainers = done + 1, killed_trainers + (place == 0)
                actors.replace(place, work if place else train)
            actors.wait(9)
        finally:
            actors.kill_all()
        seen = actors.seen()
    with connect() as client:
        pids = {child.pid for child in Child.started}
        wait_until(lambda: not pids & {c.pid for c in client.clients()}, "the daemon has not seen all ends")
        client.delete(prefix=PREFIX)
        left = left_after(before, client)
    return {**seen, "kills": done, "trainers": killed_trainers, "left": left, "seconds": time.monotonic() - begin}
