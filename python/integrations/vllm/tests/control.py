# SPDX-License-Identifier: Apache-2.0
"""The trainer's side: processes of workers, the client of their control plane, and a source of weights."""

import json
import multiprocessing
import os
from functools import cached_property
from types import SimpleNamespace

from limits import limit

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["torch"])  # which takes a second; vLLM's double is imported by each process


def _run(module, environment, *arguments):
    os.environ.clear()  # it is that of the server until now
    os.environ.update(environment)
    __import__(module).main(*arguments)


class Process:
    """A process that runs main() of a module, with a link to it."""

    def __init__(self, module, *arguments):
        self.link, theirs = _server.Pipe()
        self.process = _server.Process(target=_run, args=(module, dict(os.environ), theirs, *arguments))
        self.process.start()
        theirs.close()

    def kill(self):
        self.process.kill()
        self.process.join()

    def end(self):
        try:
            if self.process.is_alive():
                self.link.send("")
            self.process.join(limit(60))
            assert self.process.exitcode in (0, -9)
        finally:
            self.kill()
            self.link.close()


class Worker(Process):
    """Runs worker.py. Calling it asks for something."""

    def __init__(self):
        super().__init__("worker")

    def tell(self, call, argument=None):
        self.link.send(json.dumps([call, argument]))

    def answer(self):
        try:
            what, value = json.loads(self.link.recv())
        except EOFError:
            raise ConnectionError("the worker has ended") from None
        if what == "loading":  # it hangs in load_weights()
            self.kill()
            return self.answer()
        if what == "error":
            raise RuntimeError(value)
        return value

    def __call__(self, call, argument=None):
        self.tell(call, argument)
        return self.answer()


class Client:
    """As vLLM's clients of the control plane: it asks all workers at once, and each of them must answer."""

    def __init__(self, *workers):
        self.workers = workers
        self.before_update = lambda info: None

    def _ask(self, *call):
        for worker in self.workers:
            worker.tell(*call)
        failures = []
        for worker in self.workers:
            try:
                worker.answer()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def init_weight_transfer_engine(self, init_info):
        self._ask("init_weight_transfer_engine", init_info)

    def start_weight_update(self):
        self._ask("start_weight_update")

    def update_weights(self, update_info):
        self.before_update(update_info)
        self._ask("update_weights", update_info)

    def finish_weight_update(self, weight_version=None):
        self._ask("finish_weight_update")


def source_of(model, owners=None):
    """A WeightSource of vLLM 0.33 over a model, which counts how often it was iterated."""
    from vllm.distributed.weight_transfer import WeightSource

    class Source(WeightSource):
        rounds = 0

        @cached_property
        def metadata(self):
            return [SimpleNamespace(name=name, owners=owners) for name, _ in model.named_parameters()]

        def iter_full(self):
            yield from model.named_parameters()
            self.rounds += 1

    return Source()
