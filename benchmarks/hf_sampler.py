"""The CPU time of `hf.Sampler.sample` for answers of equal lengths, to compare two commits.

    python benchmarks/against.py COMMIT hf_sampler

A small Qwen3 answers 8 prompts 8 times with 100 tokens each. The value is the median of the rounds in seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

from meshctl import Batch
from meshctl.hf import Sampler
from meshctl.runtime.batch.batch import Ragged

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    sampler = Sampler(CONFIG, tokenizer="byte", max_new_tokens=100, group_size=8)
    sampler.setup()
    sampler._end_tokens = lambda *given: []  # type: ignore[method-assign] # no answer ends before the others
    drawn = torch.randint(97, 123, (8, 16), generator=torch.Generator().manual_seed(0))
    batch, seconds = Batch({"prompt_ids": Ragged.of([*drawn])}), list[float]()
    sampler.sample(batch)
    for _ in range(rounds):
        begin = time.process_time()
        sampler.sample(batch)
        seconds.append(time.process_time() - begin)
    value = statistics.median(seconds)
    print(f"{value:.3f} s of CPU time for 64 answers of 100 tokens")
    print(json.dumps({"name": "hf_sampler", "value": round(value, 4), "goal": None, "ok": True}))


if __name__ == "__main__":
    main()
