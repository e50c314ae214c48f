#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A data loader for a trainer: workers decode batches into shared memory, and the trainer copies nothing.

The queue has names in it, not tensors. The memory of a batch is free when the trainer has deleted its name and the last
view is freed. It is then used again for the next batch of the same size.

    python dataloader.py [--batches 40] [--workers 3]
"""

import argparse
import multiprocessing

import numpy as np

import tensorlease

tensorlease.explain_faults()  # a library that writes to read-only memory is told apart from other crashes

SHAPE = (16, 64, 64, 3)


def work(client, todo, done):
    """Runs in a worker, whose client was inherited (fork) or connects again (spawn)."""
    for number in iter(todo.get, None):
        name = f"loader/{number}"
        images = client.create(f"{name}/images", SHAPE, "uint8")
        labels = client.create(f"{name}/labels", SHAPE[0], "int64")
        with images, labels:
            random = np.random.default_rng(number)
            images[...] = random.integers(0, 256, SHAPE, dtype="uint8")  # "decode"
            labels[...] = images.numpy().reshape(SHAPE[0], -1).max(axis=1)
        done.put(name)


def train(client, done, batches):
    """Runs in the trainer. With PyTorch use images.torch(), which is writable, private, and not a copy."""
    total = 0
    for _ in range(batches):
        name = done.get(timeout=60)
        with client.get(f"{name}/images") as images, client.get(f"{name}/labels") as labels:
            assert (images.numpy().reshape(SHAPE[0], -1).max(axis=1) == labels.numpy()).all()
            total += int(images.numpy().sum(dtype="int64"))
        client.delete(f"{name}/images")
        client.delete(f"{name}/labels")
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--method", choices=multiprocessing.get_all_start_methods(), default="spawn")
    options = parser.parse_args()
    context = multiprocessing.get_context(options.method)
    todo, done = context.Queue(), context.Queue()
    with tensorlease.connect() as client:
        workers = [context.Process(target=work, args=(client, todo, done)) for _ in range(options.workers)]
        for worker in workers:
            worker.start()
        for number in [*range(options.batches), *[None] * options.workers]:
            todo.put(number)
        total = train(client, done, options.batches)
        for worker in workers:
            worker.join()
        print(f"{options.batches} batches, {total} in all, {client.status().segments} segments of memory used")


if __name__ == "__main__":
    main()
