# SPDX-License-Identifier: Apache-2.0
"""SharedVecEnv: Stable-Baselines3's SubprocVecEnv, with the observations in shared memory under names."""

import functools
import multiprocessing
import os
import types

import numpy
from gymnasium import spaces
from stable_baselines3.common.vec_env import CloudpickleWrapper, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.subproc_vec_env import _worker

from ._environments import TrainerEnd, client_of, ends_with, name_of, work


def _serve(env_fn, end):
    _worker(end, types.SimpleNamespace(close=lambda: None), env_fn)


def _run(pipe, others, given, env_fn):
    work(pipe, others, given, functools.partial(_serve, env_fn))


class SharedVecEnv(SubprocVecEnv):
    """Stable-Baselines3's SubprocVecEnv, with the observations in shared memory under names.

    Each environment runs in a process of its own. SubprocVecEnv pickles each observation and sends it through a pipe.
    Here the worker copies it into shared memory once, and step() and reset() copy it from there into the array that they
    return. Everything else is as in SubprocVecEnv, whose code serves the environments and whose methods these are.

    The observation of environment i is called NAME/i. The parts of a Dict are called NAME/i/KEY, those of a Tuple NAME/i/0
    and so on. Any process can get() or watch() them, without slowing the environments. The metadata of a tensor are 8 bytes, the
    same for all tensors of this object, and a little-endian uint64 that counts the observations of its environment:
    parts of one observation have the same.

    env_fns: a function for each environment, which makes it.
    start_method: of the processes: "forkserver", which None means, "spawn" or "fork".
    name: NAME. None: one that nobody else has, found in the attribute `name`.
    client: the Client whose daemon has the memory. None: that of connect(), one for all in this process.
    copy: False: step() returns one of two arrays in turn, so that an observation is valid until the second step after
        it. That is enough for the algorithms of Stable-Baselines3. True: each has an array of its own.

    An observation that is no array of numbers, or for which the daemon has no space, goes through the pipe, with a warning
    in the latter case. So does one after the daemon was restarted. What is in infos goes through the pipe too, and so
    does its "terminal_observation".
    RuntimeError: a worker was killed, or has ended; its text says which, and what its environment raised. close() works
    then. If the trainer ends, in whichever way, its workers end and delete the names.
    """

    def __init__(self, env_fns, start_method=None, *, name=None, client=None, copy=True):
        self.waiting = self.closed = False
        self.name, self.client = name_of(name), client_of(client)
        self._turns = None if copy else [{}, {}]
        context = multiprocessing.get_context(start_method or "forkserver")
        run = os.urandom(8)
        self.remotes = []
        self._end = ends_with(self, self.client, self.name, run, self.remotes)
        try:
            for index, env_fn in enumerate(env_fns):
                ours, its = context.Pipe()
                others = [end.pipe for end in self.remotes] + [ours] if context.get_start_method() == "fork" else []
                given = self.client, f"{self.name}/{index}", run, False
                arguments = its, others, given, CloudpickleWrapper(env_fn)
                process = context.Process(target=_run, args=arguments, daemon=True, name=f"SharedVecEnv {index}")
                with its:
                    process.start()
                self.remotes.append(TrainerEnd(ours, process, index, self.client, False, False))
            self.processes = [end.process for end in self.remotes]
            self.remotes[0].send(("get_spaces", None))
            VecEnv.__init__(self, len(self.remotes), *self.remotes[0].recv())
        except BaseException:
            self._end()
            raise

    def step_wait(self):
        if self._turns is None:
            return super().step_wait()
        results = [end.recv() for end in self.remotes]
        self.waiting = False
        observations, rewards, dones, infos, self.reset_infos = zip(*results, strict=True)
        return self._stacked(observations), numpy.stack(rewards), numpy.stack(dones), infos

    def _stacked(self, observations):
        """Return them in one array for each part, one that was returned the second last time."""
        space = self.observation_space
        self._turns.reverse()
        if isinstance(space, spaces.Dict):
            return {key: self._stack(key, [one[key] for one in observations]) for key in space.spaces}
        if isinstance(space, spaces.Tuple):
            return tuple(self._stack(i, [one[i] for one in observations]) for i in range(len(space.spaces)))
        return self._stack(None, observations)

    def _stack(self, key, arrays):
        out = self._turns[0].get(key)
        arrays = [numpy.asarray(array) for array in arrays]
        if out is None or any(array.shape != out.shape[1:] or array.dtype != out.dtype for array in arrays):
            out = self._turns[0][key] = numpy.stack(arrays)
            return out
        return numpy.stack(arrays, out=out)

    def close(self):
        """End the workers and delete the names. Environments have ten seconds to finish a step and to close."""
        self._end()
        self.closed = True
