#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how many steps a second vectors of environments make whose observations are pictures.

Each environment writes a line of its picture in a step, so that little is measured but what hands the pictures over.
All kinds take turns, and each number is the median of the rounds: steps of the whole vector per second.
`make bench-dataset` runs it; compare numbers of one run only.
"""

import argparse
import statistics
import time

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3.common.vec_env import SubprocVecEnv
from tensorlease.gymnasium import SharedVecEnv, SharedVectorEnv

COUNT = 4
SIZES = {"720p": (720, 1280, 3), "480p": (480, 640, 3)}
KINDS = {
    "SubprocVecEnv": lambda env_fns: SubprocVecEnv(env_fns, "fork"),
    "SharedVecEnv": lambda env_fns: SharedVecEnv(env_fns, "fork"),
    "SharedVecEnv, copy=False": lambda env_fns: SharedVecEnv(env_fns, "fork", copy=False),
    "AsyncVectorEnv": AsyncVectorEnv,
    "AsyncVectorEnv, copy=False": lambda env_fns: AsyncVectorEnv(env_fns, copy=False),
    "SharedVectorEnv": SharedVectorEnv,
    "SharedVectorEnv, copy=False": lambda env_fns: SharedVectorEnv(env_fns, copy=False),
}


class Picture(gymnasium.Env):
    def __init__(self, shape):
        self.observation_space, self.action_space = spaces.Box(0, 255, shape, numpy.uint8), spaces.Discrete(2)
        self.picture, self.count = numpy.zeros(shape, numpy.uint8), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.picture, {}

    def step(self, action):
        self.count += 1
        self.picture[self.count % len(self.picture)] = self.count % 256
        return self.picture, 1.0, False, False, {}


def rate(kind, shape, seconds):
    vector = KINDS[kind]([lambda: Picture(shape)] * COUNT)
    vector.reset()
    actions = numpy.zeros(COUNT, int)
    for _ in range(10):
        vector.step(actions)
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        observations = vector.step(actions)[0]
        steps += 1
    result = steps / (time.perf_counter() - begin)
    assert observations.shape == (COUNT, *shape)
    vector.close()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less, to see that it works")
    quick = parser.parse_args().quick
    rounds, seconds = (1, 0.3) if quick else (5, 1.0)
    for size, shape in SIZES.items():
        found = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                found[kind].append(rate(kind, shape, seconds))
        base = statistics.median(found["SubprocVecEnv"])
        for kind, rates in found.items():
            median = statistics.median(rates)
            speed = f"{median:6.0f} steps/s ({min(rates):.0f} to {max(rates):.0f}), {median / base:.1f} x SubprocVecEnv"
            print(f"{size} x {COUNT}  {kind:28} {speed}", flush=True)


if __name__ == "__main__":
    main()
