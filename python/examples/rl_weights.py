#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer publishes the weights of each step, and rollout workers use the newest ones without a copy.

python rl_weights.py [--rounds 8] [--workers 2] [--device cuda:0]

One step is one group. put_many() publishes all layers or none, and watch() gives the newest whole set, so a worker
never mixes two steps. A worker holds leases on what it uses, so the trainer never overwrites that, and neither waits
for the other: a slow worker skips steps. put_many() and not publish_many(), because its copies also stay on a GPU when
the trainer is killed. Workers then go on with what they hold, and the watch finds the first step of whoever trains next.
"""

import argparse
import multiprocessing
import os
import time

import numpy as np

import tensorlease

tensorlease.explain_faults()  # a library that writes to read-only memory is told apart from other crashes

PREFIX = "rl_weights_example/"
LAYERS = {"embedding": (256, 64), "block.0": (64, 64), "block.1": (64, 64), "head": (64, 16)}
LAST = PREFIX + list(LAYERS)[-1]  # when one layer is new, all are


def train_layer(name, step, device):
    """Stands for training. Each value of a layer is the number of the step, so that anybody can tell steps apart."""
    if device == "cpu":
        return np.full(LAYERS[name], step, "float32")
    import torch

    return torch.full(LAYERS[name], step, dtype=torch.float32, device=device)


def weights_of(tensor):
    """What a worker computes with: the shared memory itself, where it lies."""
    return tensor.numpy() if tensor.device == "cpu" else tensor.torch()


def train(link, device):
    """Publish step after step until link says stop, or whoever started this has ended."""
    with tensorlease.connect() as client:
        # Whoever trained before may have been killed: go on after the last step that it published.
        step = int(client.stat(LAST).metadata.split()[0]) if LAST in client else 0
        while not link.poll():
            step += 1
            weights = {name: train_layer(name, step, device) for name in LAYERS}
            client.put_many(weights, prefix=PREFIX, metadata=f"{step} {os.getpid()}".encode(), timeout=60)


def values_in(layers):
    """Stands for a rollout. It reads all weights and returns the values that it finds."""
    arrays = [weights_of(tensor) for tensor in layers.values()]
    return sorted({float(value) for array in arrays for value in (array.min(), array.max())})


def roll_out(link):
    """Make a rollout for each word that link brings: whether to wait for weights that are new."""
    with tensorlease.connect() as client, client.watch(prefix=PREFIX, timeout=60) as watch:
        layers = {}
        for fresh in iter(link.recv, None):
            former = values_in(layers)  # the trainer went on meanwhile, and what is held is as it was
            layers = (next(watch) if fresh else watch.poll()) or layers  # gives the former leases back
            step, trainer = map(int, layers["head"].metadata.split())
            link.send((layers["head"].version, step, trainer, former, values_in(layers), watch.skipped))


class Process:
    """A function in a process of its own, and a link to it. CUDA does not survive a fork: the parent never uses it."""

    def __init__(self, function, *arguments):
        context = multiprocessing.get_context("fork")
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def end(self):
        self.link.send(None)
        self.process.join(60)
        assert self.process.exitcode == 0


def rounds(workers, count, fresh, seen):
    for _ in range(count):
        for worker in workers:
            worker.link.send(fresh)
        for worker, rollouts in zip(workers, seen, strict=True):
            assert worker.link.poll(100), "a worker does not answer"
            rollouts.append(worker.link.recv())


def check(rollouts, trainers):
    """Each rollout saw one whole step; steps only grow; what was held stayed as it was; both trainers were seen."""
    held = []
    for _, step, _, former, found, _ in rollouts:
        assert former == held and found == [step], (former, held, found, step)
        held = found
    for column in (0, 1):
        numbers = [rollout[column] for rollout in rollouts]
        assert numbers == sorted(numbers), numbers
    assert list(dict.fromkeys(rollout[2] for rollout in rollouts)) == trainers


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=8, help="rollouts of each worker with each trainer")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU such as cuda:0, which takes PyTorch")
    options = parser.parse_args()
    with tensorlease.connect() as client:
        if client.list(PREFIX):
            raise SystemExit(f"{PREFIX} is there already: `tensorlease rm` it, or use another daemon")
        workers = [Process(roll_out) for _ in range(options.workers)]
        seen = [[] for _ in workers]
        first = Process(train, options.device)
        rounds(workers, options.rounds, True, seen)
        first.process.kill()  # SIGKILL, anywhere in a step
        first.process.join()
        while any(entry.pid == first.process.pid for entry in client.clients()):
            time.sleep(0.01)  # until the daemon knows of its end
        rounds(workers, 3, False, seen)  # nobody trains, and the rollouts go on
        second = Process(train, options.device)
        rounds(workers, options.rounds, True, seen)
        for process in (second, *workers):
            process.end()
        trainers = [first.process.pid, second.process.pid]
        for number, rollouts in enumerate(seen):
            check(rollouts, trainers)
            for trainer in trainers:
                steps = [rollout[1] for rollout in rollouts if rollout[2] == trainer]
                print(f"worker {number}: trainer {trainer}, steps {' '.join(map(str, steps))}")
            print(f"worker {number}: skipped {sum(r[5] for r in rollouts) // len(LAYERS)} steps")
        print(f"{len(workers)} workers saw whole steps only, of {len(trainers)} trainers, the first of them killed")
        for info in client.list(PREFIX):
            client.delete(info.name)


if __name__ == "__main__":
    main()
