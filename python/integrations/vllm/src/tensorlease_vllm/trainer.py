# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of the weight transfer backend "tensorlease", for vLLM 0.32 and 0.33."""

from dataclasses import dataclass
from typing import ClassVar

import tensorlease
from tensorlease._weights import published
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from . import NAME, register_trainer
from ._options import check


@dataclass
class TensorleaseTrainerInitInfo(TrainerInitInfo):
    """What WeightTransferTrainerFactory.trainer_init() takes.

    prefix: the weights are called PREFIX/NAME.
    address, namespace: as for tensorlease.connect(), for the trainer and for the workers. None: each of them takes its
        own default.
    timeout: seconds to wait for space, and with keep=False until nobody holds the weights.
    keep: True: publish copies, which stay after the update and after the trainer. False: publish tensors on GPUs where
        they lie, for the time of the update.
    rank: of this process; rank 0 publishes.
    """

    backend: ClassVar[str] = NAME
    prefix: str
    address: str | None = None
    namespace: str | None = None
    timeout: float = 60.0
    keep: bool = True

    def __post_init__(self):
        check("trainer's init_info", {key: value for key, value in vars(self).items() if key != "rank"})


def _names(source, rank):
    """Return the names of all parameters, and of those that a rank owns."""
    if hasattr(source, "owned_names"):  # vLLM 0.33
        return [one.name for one in source.metadata], source.owned_names(rank)
    names, held = [one.name for one in source.metadata()], source.held_names()
    return names, names if held is None else held


class TensorleaseTrainer(TrainerWeightTransferEngine[TensorleaseTrainerInitInfo]):
    """Publishes the weights of each step, and makes the workers load them."""

    init_info_cls = TensorleaseTrainerInitInfo
    _tensorlease = None

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        """Connect, and make the workers connect. Each rank calls this, and only rank 0 does it."""
        if source is None or not getattr(source, "implements_iter_full", lambda: True)():
            raise ValueError(f"source is {source!r}; it must be a WeightSource, with iter_full() where vLLM has that")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine.rank = init_info.rank  # vLLM 0.32 has no such argument
        engine._options = init_info
        if not engine.is_sender:
            return engine
        names, owned = _names(source, init_info.rank)
        if len(owned) != len(names):
            raise ValueError(
                f"rank {init_info.rank} owns {len(owned)} of {len(names)} parameters; it must own all of them, because "
                "it publishes them"
            )
        where = {"address": init_info.address, "namespace": init_info.namespace}
        engine._tensorlease = tensorlease.connect(where["address"], namespace=where["namespace"])
        try:
            client.init_weight_transfer_engine(where)
        except BaseException:
            engine.shutdown()
            raise
        return engine

    def send_weights(self):
        """Publish the weights, then start, make and finish an update. Each rank calls this."""
        weights = self.source.iter_full() if hasattr(self.source, "iter_full") else iter(self.source)  # vLLM 0.32
        if not self.is_sender:
            for _ in weights:
                pass  # each may take a collective operation of all ranks
            return
        options = self._options
        with published(self._tensorlease, options.prefix, weights, keep=options.keep, timeout=options.timeout) as info:
            self.client.start_weight_update()
            self.client.update_weights(info)
            self.client.finish_weight_update()

    def shutdown(self):
        """Disconnect. What was published with keep=True stays."""
        if self._tensorlease is not None:
            self._tensorlease.close()
            self._tensorlease = None


register_trainer()
