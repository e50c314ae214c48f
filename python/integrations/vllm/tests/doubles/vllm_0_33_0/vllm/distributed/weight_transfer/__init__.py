# SPDX-License-Identifier: Apache-2.0
from vllm.distributed.weight_transfer.base import (  # noqa: F401
    TrainerWeightTransferEngine,
    WeightSource,
    WeightTransferEngine,
)
from vllm_double import EngineFactory, Factory


class WeightTransferEngineFactory(EngineFactory): ...


class WeightTransferTrainerFactory(Factory):
    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        return cls.find(init_info.backend).trainer_init(init_info=init_info, client=client, source=source)
