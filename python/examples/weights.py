#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights that workers share: loaded once and mapped by all. Workers switch to a new version between two requests.

python weights.py [--workers 4]
"""

import argparse
import multiprocessing
import os

import numpy as np

import tensorlease

tensorlease.explain_faults()  # a library that writes to read-only memory is told apart from other crashes

LAYERS = {"fc1": (256, 512), "fc2": (512, 10)}


def load(client, seed):
    """Publish the weights of a model in one step, so that nobody sees layers of different epochs together."""
    random = np.random.default_rng(seed)
    arrays = {name: random.standard_normal(shape, dtype="float32") * seed for name, shape in LAYERS.items()}
    client.put_many(arrays, prefix="weights")


def infer(layers, batch):
    hidden = np.maximum(batch @ layers["fc1"].numpy(), 0)
    return hidden @ layers["fc2"].numpy()


def work(client, ready, results):
    batch = np.ones((2, 256), "float32")
    outputs = []
    watch = client.watch(prefix="weights", timeout=60)
    for epoch in (1, 2):
        # The old layers stay mapped and unchanged until we release them, whatever the publisher does.
        layers = next(watch)  # the newest whole set
        outputs.append(float(infer(layers, batch).sum()))
        ready.put(epoch)
    results.put((os.getpid(), outputs, sum(tensor.nbytes for tensor in layers.values())))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    context = multiprocessing.get_context("fork")
    ready, results = context.Queue(), context.Queue()
    with tensorlease.connect() as client:
        if client.list("weights/"):
            raise SystemExit("weights/ is there already: `tensorlease rm` it, or use another daemon")
        load(client, 1)
        workers = [context.Process(target=work, args=(client, ready, results)) for _ in range(options.workers)]
        for worker in workers:
            worker.start()
        for _ in workers:
            assert ready.get(timeout=60) == 1
        load(client, 2)
        answers = [results.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join()
        for pid, outputs, nbytes in answers:
            print(f"worker {pid}: {outputs}, {nbytes} bytes of weights, shared")
        assert len({tuple(outputs) for _, outputs, _ in answers}) == 1 and answers[0][1][0] != answers[0][1][1]
        for info in client.list("weights/"):
            client.delete(info.name)


if __name__ == "__main__":
    main()
