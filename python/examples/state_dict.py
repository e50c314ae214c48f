#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer publishes the state_dict of a PyTorch model in one step, and workers use it without a copy.

python state_dict.py [--blocks 24] [--workers 2] [--save model.safetensors]
"""

import argparse
import multiprocessing
import time

import torch

import tensorlease

tensorlease.explain_faults()  # a library that writes to read-only memory is told apart from other crashes

PREFIX = "state_dict_example"


def make_model(blocks):
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(blocks)))
    return model.to(torch.bfloat16).eval()


def work(client, blocks, results):
    model = make_model(blocks)
    tensors = client.get_many(prefix=f"{PREFIX}/", timeout=60)
    state = {name: tensor.torch() for name, tensor in tensors.items()}
    model.load_state_dict(state, assign=True)  # the parameters now are the shared memory, copy-on-write
    with torch.inference_mode():
        results.put(float(model(torch.ones(1, 64, dtype=torch.bfloat16)).sum()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save", help="also write the model to this file")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tensorlease.connect() as client:
        if client.list(f"{PREFIX}/"):
            raise SystemExit(f"{PREFIX}/ is there already: `tensorlease rm` it, or use another daemon")
        workers = [context.Process(target=work, args=(client, options.blocks, results)) for _ in range(options.workers)]
        for worker in workers:
            worker.start()
        state = make_model(options.blocks).state_dict()
        start = time.perf_counter()
        client.put_many(state, prefix=f"{PREFIX}/")
        milliseconds = (time.perf_counter() - start) * 1e3
        print(f"{len(state)} tensors, {sum(t.nbytes for t in state.values())} bytes, put in {milliseconds:.1f} ms")
        answers = [results.get(timeout=100) for _ in workers]
        for worker in workers:
            worker.join()
        print(f"{len(answers)} workers answer {answers[0]}")
        assert len(set(answers)) == 1
        if options.save:
            print(f"{len(client.save(PREFIX, options.save))} tensors saved to {options.save}")
        for name in state:
            client.delete(f"{PREFIX}/{name}")


if __name__ == "__main__":
    main()
