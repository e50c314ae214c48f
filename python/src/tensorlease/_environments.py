# SPDX-License-Identifier: Apache-2.0
"""What the vectors of environments have in common: pipes to workers, on which no observation goes.

Each worker publishes the observation of its environment i as NAME/i, or its parts as NAME/i/KEY, in a ring, so that no
step asks the daemon. What it sends says where the observation lies. Each tensor has a mark, 8 bytes that tell this vector
from others and 8 that count its observations, so that the trainer never takes one for another. What cannot be published,
or got, goes over the pipe instead.
"""

import contextlib
import multiprocessing.util
import os
import select
import signal
import struct
import sys
import time
import traceback
import warnings
from typing import NamedTuple

import numpy

from ._ref import client_for
from ._errors import Error

_SLOTS = 4  # of a ring: what is got, what is written, and two that viewers hold
_LOOK_MS = 1000  # between looks whether the process at the other end is still there
_LEAVE = 10.0  # seconds for a step and for closing an environment at the end
_MARK = struct.Struct("<8sQ")
_ANSWERS = frozenset(("step", "reset", "reset-noop"))  # commands whose answers begin with an observation
_AGAIN = "observation"  # a command: send the last one over the pipe


class _At(NamedTuple):
    """Where a part of an observation lies."""

    path: str
    mark: bytes


class _Observation(NamedTuple):
    """What is sent in the place of an observation."""

    tree: object  # the observation, or the dict or tuple, with an _At for each part that was published
    failure: str  # why something was not


class _Failed(NamedTuple):
    """The last thing that is sent by a worker whose environment raised."""

    what: str
    trace: str


class _AnothersError(Exception):
    """The name means what somebody else has published."""


def client_of(client):
    if client is not None:
        return client
    socket, namespace = os.environ.get("TENSORLEASE_SOCKET"), os.environ.get("TENSORLEASE_NAMESPACE")
    return client_for(socket or None, namespace, None, 10.0)


def name_of(name):
    if name is None:
        return f"environments/{os.urandom(6).hex()}"
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a str, below which the observations are published, not {name!r}")
    return name.removesuffix("/")


def _parts(value, change, path, depth):
    """Return value with each part x of it, a dict or tuple in up to so many levels, replaced by change(x, its path)."""
    if depth and type(value) is dict:
        return {key: _parts(part, change, f"{path}/{key}", depth - 1) for key, part in value.items()}
    if depth and type(value) is tuple:
        return tuple(_parts(part, change, f"{path}/{i}", depth - 1) for i, part in enumerate(value))
    return change(value, path)


# ---- In a worker ----


class WorkerEnd:
    """A worker's end of its pipe. Where a pipe is expected it can be given."""

    def __init__(self, pipe, client, name, run, nested):
        self.pipe, self.client, self.name, self.run, self.nested = pipe, client, name, run, nested
        self.parent, self.poller = os.getppid(), select.poll()
        self.poller.register(pipe, select.POLLIN)
        self.command = self.last = None
        self.number, self.failure, self.paths = 0, "", set()

    def recv(self):
        while True:
            while not self.poller.poll(_LOOK_MS):
                if os.getppid() != self.parent:  # siblings made by fork() may have the pipe's other end
                    raise EOFError
            message = self.pipe.recv()
            if message != _AGAIN:
                self.command = message[0]
                return message
            self.pipe.send(self.last)

    def send(self, answer):
        if self.command in _ANSWERS and not (self.nested and not answer[1]):
            head, rest = answer[0], answer[1:]
            if self.nested:
                answer = ((self.published(head[0]), *head[1:]), *rest)
            else:
                answer = (self.published(head), *rest)
        self.pipe.send(answer)

    def close(self):
        self.pipe.close()

    def published(self, observation):
        self.last, self.failure = observation, ""
        self.number += 1
        self.mark = _MARK.pack(self.run, self.number)
        return _Observation(_parts(observation, self.put, self.name, 9 if self.nested else 1), self.failure)

    def put(self, value, path):
        if type(value) not in (numpy.ndarray, int, float, bool) and not isinstance(value, numpy.generic):
            return value
        array = numpy.asarray(value)
        if array.dtype.kind not in "biufc":
            return value
        try:
            self.client.put(path, array, metadata=self.mark, ring=_SLOTS, wait=False)
        except (Error, BufferError, TypeError, ValueError) as error:
            self.failure = f"{type(error).__name__}: {error}"
            return value
        self.paths.add(path)
        return _At(path, self.mark)

    def forget(self):
        """Delete what this worker has published. Nobody else may be there who could."""
        for path in self.paths:
            with contextlib.suppress(Error):
                _forget(self.client, self.client.stat(path), self.run)


def _forget(client, info, run):
    if info.metadata[:8] == run:
        client.delete(info.name, version=info.version, missing_ok=True)


def _terminated(*_):
    sys.exit(128 + signal.SIGTERM)


def work(pipe, others, given, run):
    """Let run(end) serve an environment. others: pipes that fork() gave us. given: further arguments of the end."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, lambda *_: None)  # it is for the trainer, which ends us when it wants to
    signal.signal(signal.SIGTERM, _terminated)
    end = WorkerEnd(pipe, *given)
    try:
        run(end)
    except Exception as error:
        with contextlib.suppress(OSError):  # the trainer may have ended, and that be the error
            pipe.send(_Failed(f"{type(error).__name__}: {error}", traceback.format_exc()))
        sys.exit(1)
    finally:
        end.forget()


# ---- In the trainer ----


class TrainerEnd:
    """The trainer's end of the pipe to a worker."""

    def __init__(self, pipe, process, index, client, nested, copies):
        self.pipe, self.process, self.index, self.client = pipe, process, index, client
        self.nested, self.copies = nested, copies
        self.poller = select.poll()
        self.poller.register(pipe, select.POLLIN)
        self.owed = 0  # answers that nobody has read yet
        self.warned = set()

    def __repr__(self):
        return f"environment {self.index} (process {self.process.pid})"

    @property
    def closed(self):
        return self.pipe.closed

    def close(self):
        self.pipe.close()

    def poll(self, timeout=0.0):
        return self.pipe.poll(timeout)

    def send(self, message):
        while self.owed:  # who was interrupted did not read them
            self.receive()
            self.owed -= 1
        try:
            self.pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self.gone() from None
        self.owed += 1

    def recv(self):
        answer = self.receive()
        self.owed -= 1
        if type(answer) is not tuple or not answer:
            return answer
        head = answer[0]
        if type(head) is _Observation:
            return (self.observation(head), *answer[1:])
        if self.nested and type(head) is tuple and head and type(head[0]) is _Observation:
            return ((self.observation(head[0]), *head[1:]), *answer[1:])
        return answer

    def receive(self):
        try:
            while not self.poller.poll(_LOOK_MS):
                if not self.process.is_alive() and not self.poller.poll(0):
                    raise EOFError
            answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self.gone() from None
        if type(answer) is _Failed:
            raise RuntimeError(f"{self} raised {answer.what}\n\n{answer.trace}")
        return answer

    def gone(self):
        """Return the error that says what has become of the worker."""
        self.process.join(_LEAVE)
        code = self.process.exitcode
        if code is None:
            return RuntimeError(f"{self} has closed its pipe")
        if code < 0:
            return RuntimeError(f"{self} was killed by {signal.Signals(-code).name}")
        return RuntimeError(f"{self} has ended with exit status {code}")

    def observation(self, sent):
        if sent.failure:
            self.warn(f"it cannot be published: {sent.failure}")
        try:
            return _parts(sent.tree, self.get, "", 9 if self.nested else 1)
        except _AnothersError as error:
            self.warn(f"another program publishes as {error}, too: choose another name")
        except Error:  # the daemon has ended, or somebody has deleted the name
            pass
        self.pipe.send(_AGAIN)
        return self.receive()

    def get(self, part, _):
        if type(part) is not _At:
            return part
        tensor = self.client.get(part.path)
        if tensor.metadata != part.mark:
            raise _AnothersError(part.path)
        array = tensor.numpy()
        return array.copy() if self.copies else array

    def warn(self, why):
        kind = why.partition(":")[0]
        if kind not in self.warned:
            self.warned.add(kind)
            warnings.warn(f"an observation of {self} goes over its pipe, which takes longer: {why}", stacklevel=6)

    def end(self, deadline):
        """Wait for the worker, which was told to end, and end it if it does not."""
        while self.process.is_alive() and time.monotonic() < deadline:
            try:
                if self.pipe.closed or self.poller.poll(50):
                    self.pipe.recv_bytes()  # a worker that sends does not read
            except (EOFError, OSError):
                self.process.join(max(0.0, deadline - time.monotonic()))
        for stop in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                stop()
                self.process.join(2.0)
        self.pipe.close()


def _end_all(client, name, run, ends):
    for end in ends:
        with contextlib.suppress(OSError):
            end.pipe.send(("close", None))
    deadline = time.monotonic() + _LEAVE
    for end in ends:
        end.end(deadline)
    with contextlib.suppress(Error, ValueError):  # a client that was closed before
        for info in client.list(name):  # of workers that were killed
            _forget(client, info, run)


def ends_with(vector, client, name, run, ends):
    """Return a function that ends the workers, at the latest when the vector is collected or the process ends."""
    return multiprocessing.util.Finalize(vector, _end_all, (client, name, run, ends), exitpriority=10)
