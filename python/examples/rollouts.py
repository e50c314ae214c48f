#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Actors send rollouts to a learner by a queue: none is lost, and the learner reads them where they lie.

python rollouts.py [--actors 3] [--rollouts 20]

tensorlease.Queue is used as multiprocessing.Queue is. Each put() copies the arrays of a rollout into shared memory once,
and get() copies nothing: mode="r" gives read-only arrays. An actor that is too fast waits in put().
"""

import argparse
import multiprocessing

import numpy as np

import tensorlease

tensorlease.explain_faults()  # a library that writes to read-only memory is told apart from other crashes

STEPS, FRAME = 32, (84, 84)
BATCH = 4


def act(actor, queue, count):
    """Stands for an actor. Each value of a rollout tells which one it is, so that the learner can check it."""
    for number in range(count):
        observations = np.full((STEPS, *FRAME), number % 256, "uint8")
        rewards = np.full(STEPS, actor, "float32")
        queue.put({"actor": actor, "number": number, "observations": observations, "rewards": rewards})
    queue.put(None)  # no more of this actor


def batches(queue, actors):
    batch = []
    while actors:
        rollout = queue.get(timeout=60)
        if rollout is None:
            actors -= 1
            continue
        batch.append(rollout)
        if len(batch) == BATCH:
            yield batch
            batch = []  # gives the memory back
    if batch:
        yield batch


def learn(batch):
    """Stands for a step of training: makes one array of the batch, and checks what is in it."""
    observations = np.stack([rollout["observations"] for rollout in batch])
    for rollout, frames in zip(batch, observations, strict=True):
        assert (frames == rollout["number"] % 256).all() and (rollout["rewards"] == rollout["actor"]).all()
    return observations.nbytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--actors", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=20, help="of each actor")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    queue = tensorlease.Queue(8, mode="r")
    actors = [context.Process(target=act, args=(i, queue, options.rollouts)) for i in range(options.actors)]
    for process in actors:
        process.start()
    seen, nbytes = {i: [] for i in range(options.actors)}, 0
    for batch in batches(queue, options.actors):
        nbytes += learn(batch)
        for rollout in batch:
            seen[rollout["actor"]].append(rollout["number"])
    for actor, numbers in seen.items():
        assert numbers == list(range(options.rollouts)), (actor, numbers)
    for process in actors:
        process.join()
        assert process.exitcode == 0
    print(f"{sum(map(len, seen.values()))} rollouts of {options.actors} actors, {nbytes >> 20} MiB, none lost")


if __name__ == "__main__":
    main()
