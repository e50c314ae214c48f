# SPDX-License-Identifier: Apache-2.0
"""A trainer that comes to a certain point of an update, says so, and stays there until it is killed.

dying_trainer.py FOLDER ADDRESS URL POINT, with POINT one of POINTS
"""

import signal
import sys

POINTS = ("iterating", "published", "started", "loaded")


def main(folder, address, url, point):
    from tensorlease_vllm.trainer import TensorleaseTrainerInitInfo
    from transformers import AutoModelForCausalLM
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory

    def reach(here):
        if here == point:
            print(f"reached {here}", flush=True)
            signal.pause()

    class Source(ModuleSource):
        def __iter__(self):
            for number, item in enumerate(super().__iter__()):
                if number == 2:
                    reach("iterating")
                yield item

    class Client(HTTPVLLMWeightSyncClient):
        def start_weight_update(self):
            reach("published")
            super().start_weight_update()
            reach("started")

        def finish_weight_update(self, weight_version=None):
            reach("loaded")
            super().finish_weight_update(weight_version)

    source = Source(AutoModelForCausalLM.from_pretrained(folder))
    info = TensorleaseTrainerInitInfo(prefix="policy", rank=0, address=address)
    WeightTransferTrainerFactory.trainer_init(info, client=Client(url), source=source).send_weights()


if __name__ == "__main__":
    main(*sys.argv[1:])
