# SPDX-License-Identifier: Apache-2.0
from vllm.distributed.weight_transfer.base import WeightTransferEngine  # noqa: F401
from vllm_double import EngineFactory


class WeightTransferEngineFactory(EngineFactory): ...
