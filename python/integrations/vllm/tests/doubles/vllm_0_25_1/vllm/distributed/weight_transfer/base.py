# SPDX-License-Identifier: Apache-2.0
from abc import ABC, abstractmethod
from dataclasses import dataclass

from vllm_double import Engine


@dataclass
class WeightTransferInitInfo(ABC): ...  # noqa: B024


@dataclass
class WeightTransferUpdateInfo(ABC): ...  # noqa: B024


class WeightTransferEngine(Engine):
    @staticmethod
    @abstractmethod
    def trainer_send_weights(iterator, trainer_args): ...
