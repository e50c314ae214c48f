# SPDX-License-Identifier: Apache-2.0
"""An actor and rollout workers for verl: its own classes, with a few weights in place of a model and of a server."""

import os

import torch
from verl.checkpoint_engine import CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.rollout import BaseRollout, RolloutReplica

NAMES = [f"layers.{number}.weight" for number in range(4)]


def config_of(**options):
    engine = CheckpointEngineConfig(
        backend="tensorlease", engine_kwargs={"tensorlease": options}, custom_backend_module="tensorlease_verl"
    )
    return RolloutConfig(name="vllm", checkpoint_engine=engine)


class Actor(Worker):
    """Its weights are sums over all ranks, as whole weights of sharded ones are."""

    def __init__(self, config):
        super().__init__()
        import_external_libs(config.custom_backend_module)
        initialize_global_process_group_ray(backend="cpu:gloo")
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend, is_master=self.rank == 0, bucket_size=1 << 20, **config.engine_kwargs[config.backend]
        )
        self.fails_at = None

    def _weights(self, value):
        buffer = torch.zeros(64, dtype=torch.bfloat16)  # one for all weights
        for number, name in enumerate(NAMES):
            if number == self.fails_at:
                os._exit(9)
            part = torch.full((64,), float(value + number))
            torch.distributed.all_reduce(part)
            yield name, buffer.copy_(part).view(8, 8).t()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps=None, mode="auto"):
        await self.checkpoint_engine.send_weights(self._weights(global_steps), global_steps=global_steps)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method, *args, **kwargs):
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def die_at(self, number):
        self.fails_at = number


class Adapter(BaseRollout):
    """In the place of what brings weights to a server: it keeps the tensors themselves."""

    def __init__(self):
        self.replica_rank, self.is_leader_rank, self.received = 0, True, {}

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, wire_format="named_tensors", **kwargs):
        assert wire_format == "named_tensors"
        self.received = {name: tensor async for name, tensor in weights}


class Rollout(CheckpointEngineWorker):
    def __init__(self, rollout_config, model_config):
        super().__init__(rollout_config, model_config, Adapter())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def values(self):
        """What is in each weight, if it is one number."""
        found = {name: float(one.unique()) for name, one in self.server_adapter.received.items()}
        kinds = {(one.dtype, tuple(one.shape)) for one in self.server_adapter.received.values()}
        return found, kinds, os.getpid()


class Replica(RolloutReplica):
    """verl's, without a server."""

    async def launch_servers(self):
        pass
