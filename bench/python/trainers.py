#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what several trainers get from one decoding of a dataset of JPEG pictures, and what it costs.

Each row is a way to feed trainers, programs of their own that do nothing with their batches of 64: a DataLoader in each,
one tensorlease.torch.SharedLoader, or tensorsocket with its producer. Each number is how many pictures per second a trainer
gets, the mean of all, without the first third of the run; and the seconds of processor that all processes took. There are
as many workers as processors, for each DataLoader and for each of the others. "of all" says which share of all samples
arrived. `make bench-dataset` runs it; compare numbers of one run only.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import tensorlease
import tensorlease.torch
import torch
from dataset import Jpegs, make_jpegs
from torch.utils.data import DataLoader

BATCH = 64
PATIENCE = 20  # seconds without a batch after which a trainer is given up


def batches(kind, dataset, epochs, workers, ports):
    """Yield the batches that a trainer gets."""
    if kind == "tensorsocket":
        from tensorsocket import TensorConsumer

        consumer = TensorConsumer(ports[0], ports[1], (ports[2], ports[3]), batch_size=BATCH)
        for _ in range(epochs):
            yield from consumer
        return
    options = {"batch_size": BATCH, "shuffle": True, "num_workers": workers, "persistent_workers": True}
    if kind == "SharedLoader":
        loader = tensorlease.torch.SharedLoader(dataset, name="trainers", trainers=ports[0], **options)
    else:
        loader = DataLoader(dataset, **options)
    for _ in range(epochs):
        yield from loader
    if kind == "SharedLoader":
        loader.close()


def train(kind, dataset, epochs, workers, ports):
    """Print the time and how many samples came, for each batch."""
    print("ready", flush=True)
    sys.stdin.readline()
    for batch in batches(kind, dataset, epochs, workers, ports):
        print(time.monotonic(), len(batch[1]), flush=True)


def produce(dataset, workers, ports):
    from tensorsocket import TensorProducer

    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=True)
    producer = TensorProducer(loader, ports[0], ports[1], (ports[2], ports[3]))
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in producer:  # without an end
        pass


class Program:
    """A trainer, or the producer."""

    def __init__(self, kind, folder, epochs, workers, ports):
        arguments = json.dumps([kind, folder, epochs, workers, ports])
        self.err = tempfile.TemporaryFile()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.err}
        self.process = subprocess.Popen([sys.executable, __file__, "--as", arguments], start_new_session=True, **pipes)
        self.text = b""
        while (line := self.process.stdout.readline()) not in (b"ready\n", b""):
            pass  # tensorsocket says more
        if not line:
            self.err.seek(0)
            raise RuntimeError(f"{kind} did not begin: {self.err.read().decode()}")
        os.set_blocking(self.process.stdout.fileno(), False)

    def begin(self):
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def read(self):
        """Return whether there was something to read."""
        more = self.process.stdout.read()
        self.text += more or b""
        return bool(more)

    def end(self):
        """Let it end, or end it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.read()


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def cpu():
    times = os.times()
    return times.children_user + times.children_system


def rate_of(text):
    """Return the samples per second without the first third, and how many there were."""
    lines = [line.split() for line in text.decode().splitlines() if line[:1].isdigit() and line.count(" ") == 1]
    times, counts = [float(when) for when, _ in lines], [int(count) for _, count in lines]
    first = len(lines) // 3
    if len(lines) < 6:
        return 0.0, sum(counts)
    return sum(counts[first + 1 :]) / (times[-1] - times[first]), sum(counts)


def row(kind, folder, count, trainers, epochs):
    workers, before = len(os.sched_getaffinity(0)), cpu()
    ports = free_ports(4) if kind == "tensorsocket" else [trainers]
    programs = [Program(kind, folder, epochs, workers, ports) for _ in range(trainers)]
    if kind == "tensorsocket":
        programs.append(Program("producer", folder, epochs, workers, ports))
    for program in programs:
        program.begin()
    last = time.monotonic()
    while any(program.process.poll() is None for program in programs[:trainers]):
        if any([program.read() for program in programs]):
            last = time.monotonic()
        if time.monotonic() - last > PATIENCE:
            break
        time.sleep(0.05)
    for program in programs:
        program.end()
    got = [rate_of(program.text) for program in programs[:trainers]]
    rate = sum(rate for rate, _ in got) / trainers
    share = sum(seen for _, seen in got) / (trainers * count * epochs)
    print(f"{kind:16}{trainers:10}{rate:12.0f}{cpu() - before:12.1f}{share:10.1%}", flush=True)
    if kind != "tensorsocket" and (share != 1 or not rate):
        said = b""
        for program in programs:
            program.err.seek(0)
            said += program.err.read()
        raise RuntimeError(f"{share:.1%} of all samples arrived: {said.decode()[-4000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=8000)
    parser.add_argument("--trainers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the pictures, and two trainers")
    parser.add_argument("--as", dest="program", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        kind, folder, epochs, workers, ports = json.loads(arguments.program)
        torch.set_num_threads(1)
        dataset = Jpegs(os.path.join(folder, "pictures"), json.loads(pathlib.Path(folder, "offsets").read_text()))
        if kind == "producer":
            return produce(dataset, workers, ports)
        return train(kind, dataset, epochs, workers, ports)
    if arguments.quick:
        arguments.pictures, arguments.trainers = 800, [2]
    with tempfile.TemporaryDirectory() as folder:
        _, offsets = make_jpegs(folder, arguments.pictures)
        pathlib.Path(folder, "offsets").write_text(json.dumps(offsets))
        os.environ["TENSORLEASE_SOCKET"] = os.path.join(folder, "socket")
        print(f"{'':16}{'trainers':>10}{'pictures/s':>12}{'CPU, s':>12}{'of all':>10}")
        with tensorlease.connect(autostart=True):
            for trainers in arguments.trainers:
                for kind in ("DataLoader", "SharedLoader", "tensorsocket"):
                    row(kind, folder, arguments.pictures, trainers, arguments.epochs)


if __name__ == "__main__":
    main()
