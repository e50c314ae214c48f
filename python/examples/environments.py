#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps environments in processes of their own, while another program looks at one of them, as a viewer would.

    python environments.py [--count 4] [--steps 200]

It needs Gymnasium. With Stable-Baselines3 use SharedVecEnv, which takes the place of SubprocVecEnv.
"""

import argparse
import multiprocessing

import gymnasium
import numpy
import tensorlease
from gymnasium import spaces
from tensorlease.gymnasium import SharedVectorEnv


class Ball(gymnasium.Env):
    """A bright ball that the actions push to the left and to the right."""

    observation_space = spaces.Box(0, 255, (240, 320, 3), numpy.uint8)
    action_space = spaces.Discrete(3)

    def picture(self):
        picture = numpy.zeros(self.observation_space.shape, numpy.uint8)
        picture[110:130, self.x - 10 : self.x + 10] = 255
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = int(self.np_random.integers(100, 220))
        return self.picture(), {}

    def step(self, action):
        self.x += 8 * (int(action) - 1)
        over = not 20 < self.x < 300
        return self.picture(), float(not over), over, False, {}


def view(name, begun, seen):
    """Look at the newest picture again and again. This may be any program of this user."""
    with tensorlease.connect() as client, client.watch(name, timeout=30) as watch:
        for frame in watch:
            seen.value += 1
            where = frame.numpy()[120, :, 0].argmax()  # the shared memory, not copied
            assert where > 0
            begun.set()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4, help="environments")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    environments = SharedVectorEnv([Ball] * options.count, name="example/balls", context="spawn")
    environments.reset(seed=1)
    context = multiprocessing.get_context("spawn")
    begun, seen = context.Event(), context.Value("i", 0)
    viewer = context.Process(target=view, args=("example/balls/0", begun, seen), daemon=True)
    viewer.start()
    begun.wait(60)
    rewards = 0.0
    for _ in range(options.steps):
        _, reward, _, _, _ = environments.step(environments.action_space.sample())
        rewards += reward.sum()
    viewer.terminate()
    viewer.join()
    environments.close()
    print(f"{options.steps} steps of {options.count} environments, reward {rewards:.0f}; the viewer saw {seen.value} pictures")


if __name__ == "__main__":
    main()
