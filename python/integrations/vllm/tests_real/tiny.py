# SPDX-License-Identifier: Apache-2.0
"""A model of some kilobytes with a tokenizer, and what real vLLM answers that has read it from disk.

As a program: tiny.py OUTPUT FOLDER... writes the answers for each model.
"""

import json
import random
import sys
from pathlib import Path

WORDS = 256
TOKENS = 16  # of an answer
_random = random.Random(1)
# The second one fills two blocks of the prefix cache, which has 128 tokens in each.
PROMPTS = [[_random.randrange(3, WORDS) for _ in range(length)] for length in (5, 300)]


def make(folder, seed):
    """Make a model with weights of that seed. Large ones, so that answers depend on each of them."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=False,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    return folder


def answers(folder):
    from vllm import LLM, SamplingParams

    engine = LLM(folder, dtype="float32", enforce_eager=True, max_model_len=512, max_num_batched_tokens=2048)
    wanted = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    found = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], wanted, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in found]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps([answers(folder) for folder in sys.argv[2:]]))
