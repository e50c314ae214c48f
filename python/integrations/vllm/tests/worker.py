# SPDX-License-Identifier: Apache-2.0
"""A worker of vLLM as far as weights are concerned: a process that is told in JSON what to do.

It stands for vLLM's worker and for what passes its calls on, over HTTP for one. Each call is [name, argument], each
answer ["ok", value] or ["error", text].
"""

import json
import os
import signal
from types import SimpleNamespace

import tensorlease_vllm
import torch
import vllm_double

CONFIG = SimpleNamespace(parallel_config=SimpleNamespace(), model_config=SimpleNamespace(quantization=None))


class Model(torch.nn.Module):
    """A small model that loads weights as those of vLLM do: by copies into its own parameters."""

    def __init__(self, value=0.0, dtype=torch.bfloat16):
        super().__init__()
        self.embedding = torch.nn.Embedding(6, 4, dtype=dtype)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False, dtype=dtype) for _ in range(2))
        self.head = torch.nn.Linear(4, 6, bias=True, dtype=dtype)
        self.before_loading = lambda: None
        self.reloads = False
        for parameter in self.parameters():
            parameter.requires_grad_(False).fill_(value)

    def load_weights(self, weights):
        own, loaded = dict(self.named_parameters()), set()
        for name, tensor in weights:
            self.before_loading()
            if own[name].shape != tensor.shape or own[name].dtype != tensor.dtype:
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}")
            own[name].copy_(tensor)
            loaded.add(name)
        return loaded

    def values(self):
        """What is in each parameter, if it is one number."""
        return {name: float(one.unique()) for name, one in self.named_parameters()}


class Worker:
    def __init__(self, link):
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory

        self.model = Model()
        self.engine = WeightTransferEngineFactory.create_engine(
            SimpleNamespace(backend="tensorlease"), CONFIG, torch.device("cpu"), self.model
        )
        self.active, self.link = False, link

    # What vLLM's worker does

    def init_weight_transfer_engine(self, info):
        self.engine.init_transfer_engine(self.engine.parse_init_info(info))

    def shutdown_weight_transfer_engine(self, _=None):
        self.engine.shutdown()

    def start_weight_update(self, _=None):
        if self.active:
            raise RuntimeError("an update is active")
        self.engine.start_weight_update()
        self.active = True

    def update_weights(self, info):
        if not self.active:
            raise RuntimeError("no update is active")
        try:
            self.engine.update_weights(info)
        except BaseException:
            self.active = False
            raise

    def finish_weight_update(self, _=None):
        if not self.active:
            raise RuntimeError("no update is active")
        self.engine.finish_weight_update()
        self.active = False

    # What tests ask

    def load(self, config):
        """Load as a worker does that has just started."""
        from vllm.model_executor.model_loader import get_model_loader

        loader = get_model_loader(SimpleNamespace(load_format="tensorlease", model_loader_extra_config=config))
        loader.load_weights(self.model, CONFIG.model_config)

    def hang(self, _=None):
        """In the middle of the next load: say so, and stay there."""

        def stay():
            self.link.send('["loading", null]')
            signal.pause()

        self.model.before_loading = stay

    def request(self, _=None):
        """What somebody asks of the server. A model that is being reloaded ends it."""
        if self.model.reloads:
            os._exit(9)
        return self.model.values()

    def values(self, _=None):
        return self.model.values()

    def calls(self, _=None):
        found = list(vllm_double.calls)
        vllm_double.calls.clear()
        return found


def main(link):
    tensorlease_vllm.register()
    worker = Worker(link)
    for text in iter(link.recv, ""):
        call, argument = json.loads(text)
        try:
            answer = ["ok", getattr(worker, call)(argument)]
        except Exception as error:
            answer = ["error", f"{type(error).__name__}: {error}"]
        link.send(json.dumps(answer))
    worker.engine.shutdown()
