# SPDX-License-Identifier: Apache-2.0
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from vllm_double import Engine


@dataclass
class WeightTransferInitInfo(ABC): ...  # noqa: B024


@dataclass
class WeightTransferUpdateInfo(ABC): ...  # noqa: B024


@dataclass
class TrainerInitInfo:
    backend: ClassVar[str]
    rank: int = field(kw_only=True)

    def __init_subclass__(cls):
        if not getattr(cls, "backend", None):
            raise TypeError(f"{cls.__name__} has no backend")

    @property
    def is_sender(self):
        return self.rank == 0


class WeightTransferEngine(Engine):
    def __init__(self, config, vllm_config, device, model):
        super().__init__(config, vllm_config, device, model)
        self._default = (self.model, self.model_config)

    def set_weight_update_target(self, model, model_config):
        self.model, self.model_config = model, model_config

    def reset_weight_update_target(self):
        self.model, self.model_config = self._default


class TrainerWeightTransferEngine(ABC):
    def __init__(self, *, client, source=None, is_sender=True, rank=0):
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank

    def __class_getitem__(cls, parameters):
        return cls

    @classmethod
    @abstractmethod
    def trainer_init(cls, init_info, *, client, source=None): ...

    @abstractmethod
    def send_weights(self): ...

    def shutdown(self):
        pass


class WeightSource(ABC):
    @property
    @abstractmethod
    def metadata(self): ...

    def owned_names(self, rank):
        return [one.name for one in self.metadata if one.owners is None or rank in one.owners]

    def implements_iter_full(self):
        return type(self).iter_full is not WeightSource.iter_full

    def iter_full(self):
        raise NotImplementedError
