# SPDX-License-Identifier: Apache-2.0
"""A trainer that publishes a model full of sevens, says so, and never comes to the end of the update."""

import signal

from control import Client, source_of
from tensorlease_vllm.trainer import TensorleaseTrainerInitInfo
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from worker import Model


def main(link, keep):
    def stay(info):
        link.send(info["prefix"])
        signal.pause()

    client = Client()
    client.before_update = stay
    info = TensorleaseTrainerInitInfo(rank=0, prefix="policy", keep=keep)
    WeightTransferTrainerFactory.trainer_init(info, client=client, source=source_of(Model(7.0))).send_weights()
