"""Addition, learned: the components of `grpo_arithmetic.yaml` and `sft_arithmetic.yaml`.

model.py      a transformer that writes digits, and how problems become tokens
data.py       writes train.jsonl and exam.jsonl
sampler.py    Sampler: writes answers
judge.py      Judge: marks them
learner.py    Learner: a model, its optimizer and its sharding, for those that train
actor.py      Actor: learns from marks (GRPO)
trainer.py    Trainer: learns from written answers
"""

from arithmetic.actor import Actor
from arithmetic.judge import Judge
from arithmetic.sampler import Sampler
from arithmetic.trainer import Trainer

__all__ = ["Actor", "Judge", "Sampler", "Trainer"]
