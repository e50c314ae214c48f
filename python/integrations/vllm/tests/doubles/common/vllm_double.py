# SPDX-License-Identifier: Apache-2.0
"""What the doubles of vLLM's versions have in common. They have the interfaces that the plug-in uses, and no more.

The doubles were written for these tests. They have the names, arguments and errors of the released versions, and no
code of them.
"""

import importlib
from abc import ABC, abstractmethod

calls = []  # what was asked of vLLM, in order


class Factory:
    """Makes engines of classes that are imported when they are needed. Each subclass has a table of its own."""

    def __init_subclass__(cls):
        cls.known = {}

    @classmethod
    def register_engine(cls, name, module_path_or_cls, class_name=None):
        if name in cls.known:
            raise ValueError(f"{name} is registered already")
        cls.known[name] = (module_path_or_cls, class_name)

    @classmethod
    def find(cls, name):
        if name not in cls.known:
            raise ValueError(f"no backend {name}")
        module, class_name = cls.known[name]
        return getattr(importlib.import_module(module), class_name) if class_name else module


class EngineFactory(Factory):
    @classmethod
    def create_engine(cls, config, vllm_config, device, model):
        return cls.find(config.backend)(config, vllm_config, device, model)


class Engine(ABC):
    """The worker's engine, as both versions have it."""

    def __init__(self, config, vllm_config, device, model):
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.parallel_config, self.model_config = vllm_config.parallel_config, vllm_config.model_config

    def __class_getitem__(cls, parameters):
        return cls

    def parse_init_info(self, init_dict):
        return self._parse(self.init_info_cls, init_dict)

    def parse_update_info(self, update_dict):
        return self._parse(self.update_info_cls, update_dict)

    @staticmethod
    def _parse(kind, fields):
        try:
            return kind(**fields)
        except TypeError as error:
            raise ValueError(str(error)) from error

    def update_weights(self, update_info):
        self.receive_weights(self.parse_update_info(update_info))

    @abstractmethod
    def init_transfer_engine(self, init_info): ...

    @abstractmethod
    def start_weight_update(self): ...

    @abstractmethod
    def finish_weight_update(self): ...

    @abstractmethod
    def receive_weights(self, update_info): ...

    @abstractmethod
    def shutdown(self): ...


# ---- Loading ----

loaders = {}


class BaseModelLoader(ABC):
    def __init__(self, load_config):
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config): ...

    @abstractmethod
    def load_weights(self, model, model_config): ...


def register_model_loader(load_format):
    def register(loader):
        assert load_format not in loaders, "vLLM would warn of that"
        assert issubclass(loader, BaseModelLoader)
        loaders[load_format] = loader
        return loader

    return register


def get_model_loader(load_config):
    return loaders[load_config.load_format](load_config)


# ---- Layerwise reload ----


# In between vLLM has its parameters on the device "meta", and a request ends the server.


def initialize_layerwise_reload(model):
    calls.append("initialize")
    model.reloads = True


def finalize_layerwise_reload(model, model_config):
    assert model_config is not None and model.reloads
    calls.append("finalize")
    model.reloads = False
