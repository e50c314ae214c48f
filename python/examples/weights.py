#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer pushes the weights of each step to rollout workers, which use the newest ones without a copy.

Neither waits for the other: a slow worker skips steps. rl_weights.py does it on GPUs, too, and kills the trainer.
"""

import multiprocessing
import sys
import time

import numpy as np

import tensorlease

PREFIX, STEPS = "weights_example", int(sys.argv[1]) if len(sys.argv) > 1 else 100
LAYERS = {"embedding": (256, 64), "block": (64, 64), "head": (64, 16)}


def roll_out(pause, results):
    seen, skipped = [], 0
    with tensorlease.connect() as client, client.watch(prefix=PREFIX, timeout=60) as watch:
        for layers in watch:  # the newest whole set; the leases on the former one end
            values = {float(value) for layer in layers.values() for value in (layer.numpy().min(), layer.numpy().max())}
            assert len(values) == 1, f"layers of several steps: {values}"
            seen += values
            if seen[-1] == STEPS:
                break
            time.sleep(pause)  # stands for a rollout, while the trainer goes on
    assert seen == sorted(set(seen))
    results.put((pause, len(seen)))


def main():
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tensorlease.connect() as client:
        workers = [context.Process(target=roll_out, args=(pause, results)) for pause in (0.001, 0.02)]
        for worker in workers:
            worker.start()
        for step in range(1, STEPS + 1):
            time.sleep(0.005)  # stands for training
            weights = {name: np.full(shape, step, "float32") for name, shape in LAYERS.items()}
            client.put_many(weights, prefix=PREFIX)  # all layers in one step, or none
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        for pause, seen in sorted(results.get() for _ in workers):
            print(f"worker with rollouts of {pause * 1000:.0f} ms: {seen} of {STEPS} steps, each of them whole")
        client.delete(prefix=PREFIX)


if __name__ == "__main__":
    main()
