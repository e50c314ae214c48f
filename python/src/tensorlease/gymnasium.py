# SPDX-License-Identifier: Apache-2.0
"""For reinforcement learning: vectors of environments whose observations lie in shared memory under names.

SharedVecEnv is for Stable-Baselines3, which it needs, and SharedVectorEnv has the interface of Gymnasium itself.
"""

import functools
import os
import sys

import numpy
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import _async_worker
from gymnasium.vector.utils import create_empty_array

from . import _core
from ._environments import TrainerEnd, client_of, ends_with, name_of, work

__all__ = ["SharedVecEnv", "SharedVectorEnv"]


_core.modules()[__name__] = sys.modules[__name__]  # so that it is not imported twice


def __getattr__(name):
    if name != "SharedVecEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._vec_env import SharedVecEnv  # which needs Stable-Baselines3, and that PyTorch

    globals()[name] = SharedVecEnv
    return SharedVecEnv


def _serve(index, env_fn, more, end):
    _async_worker(index, env_fn, end, *more)


def _run(client, name, run, index, env_fn, pipe, parents, *more):
    """Serve an environment, as AsyncVectorEnv calls it."""
    given = client, f"{name}/{index}", run, True
    work(pipe, [], given, functools.partial(_serve, index, env_fn, (parents, *more)))


def _is_stacked(space):
    """Return whether Gymnasium copies all parts of such observations into arrays. Others it gives as they are."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces
        return all(map(_is_stacked, parts.values() if isinstance(space, spaces.Dict) else parts))
    return isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


class SharedVectorEnv(AsyncVectorEnv):
    """Gymnasium's AsyncVectorEnv, with the observations in shared memory under names.

    Names, metadata, name= and client= are as for SharedVecEnv. What becomes of workers and trainers is so too.
    copy: True: each observation has an array of its own. False: all are the same array, which the next step overwrites,
        as in AsyncVectorEnv. Either way it is filled from shared memory directly.
    options: those of AsyncVectorEnv but worker and shared_memory.
    """

    def __init__(self, env_fns, *, name=None, client=None, copy=True, **options):
        self.name, self.client, self._fresh, self._run = name_of(name), client_of(client), copy, os.urandom(8)
        self._ends = []
        self._end = ends_with(self, self.client, self.name, self._run, self._ends)
        worker = functools.partial(_run, self.client, self.name, self._run)
        try:
            super().__init__(env_fns, shared_memory=False, copy=False, worker=worker, **options)
        except BaseException:
            self._end()
            raise

    def _check_spaces(self):
        """The first that is sent to workers, when all were begun."""
        copies = not _is_stacked(self.single_observation_space)
        for index, (pipe, process) in enumerate(zip(self.parent_pipes, self.processes, strict=True)):
            self._ends.append(TrainerEnd(pipe, process, index, self.client, True, copies))
        self.parent_pipes = list(self._ends)
        super()._check_spaces()

    def _renew(self):
        if self._fresh:
            self.observations = create_empty_array(self.single_observation_space, self.num_envs, fn=numpy.empty)

    def reset_wait(self, timeout=None):
        self._renew()
        return super().reset_wait(timeout)

    def step_wait(self, timeout=None):
        self._renew()
        return super().step_wait(timeout)

    def close_extras(self, timeout=None, terminate=False):
        """End the workers and delete the names. Environments have ten seconds to finish a step and to close."""
        if terminate:
            for end in self._ends:
                end.process.terminate()
        self._end()
