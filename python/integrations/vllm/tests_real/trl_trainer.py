# SPDX-License-Identifier: Apache-2.0
"""A training with TRL's AsyncGRPOTrainer, on the CPU, whose weights a server of vLLM gets by tensorlease.

trl_trainer.py FOLDER ADDRESS URL OUTPUT trains the model of FOLDER for some steps, and saves it to OUTPUT. With a fifth
argument it starts the second update, says so, and stays there until it is killed.
"""

import signal
import sys
from types import SimpleNamespace

STEPS = 2
PROMPTS = [f"w{number} w{number + 1}" for number in range(10, 18)]


def reward(completion_ids, **_):
    """Like tokens of small numbers."""
    return [-sum(tokens) / max(1, len(tokens)) for tokens in completion_ids]


def attend(query, key, value, ends_q, ends_k, _longest_q, _longest_k, softmax_scale, causal, window_size):
    """Compute what the kernel for GPUs does that TRL uses: causal attention of each part of a row."""
    import torch

    assert causal and window_size == (-1, -1)
    found = []
    for part in range(len(ends_q) - 1):
        q = query[ends_q[part] : ends_q[part + 1]].transpose(0, 1)
        k, v = (one[ends_k[part] : ends_k[part + 1]].transpose(0, 1) for one in (key, value))
        rows, columns = q.shape[1], k.shape[1]
        seen = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        attention = torch.nn.functional.scaled_dot_product_attention
        found.append(attention(q, k, v, seen, scale=softmax_scale, enable_gqa=True).transpose(0, 1))
    return torch.cat(found)


def patch_for_the_cpu():
    """TRL asks CUDA for the name of the GPU, and fetches a kernel for it."""
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    async_grpo_trainer.get_peak_flops_per_device = lambda accelerator, dtype: None
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attend)


def stay_in_the_second_update(server):
    start, updates = server.start_weight_update, []

    def started(**options):
        start(**options)
        updates.append(options)
        if len(updates) == 2:
            print("reached started", flush=True)
            signal.pause()

    server.start_weight_update = started


def main(folder, address, url, output, stay=None):
    from datasets import Dataset
    from tensorlease_vllm.trl import TensorleaseWeightTransfer
    from transformers import AutoTokenizer
    from trl.chat_template_utils import qwen3_chat_template
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    patch_for_the_cpu()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = qwen3_chat_template  # one that TRL knows
    transfer = TensorleaseWeightTransfer(url, "policy", address=address)
    if stay:
        stay_in_the_second_update(transfer._server)
    trainer = AsyncGRPOTrainer(
        model=folder,
        reward_funcs=reward,
        args=AsyncGRPOConfig(
            output,
            max_steps=STEPS,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=1,
            num_generations=2,
            max_completion_length=8,
            learning_rate=1e-2,
            weight_sync_steps=1,
            dtype="float32",
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            vllm_server_base_url=url,
            report_to="none",
            save_strategy="no",
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in PROMPTS]),
        processing_class=tokenizer,
        weight_transfer=transfer,
    )
    trainer.train()
    trainer.save_model(output)
    print(f"updates {trainer.model_version}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
