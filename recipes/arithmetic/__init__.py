"""Addition, learned: the components of `grpo_arithmetic.yaml` and `sft_arithmetic.yaml`.

model.py      a transformer that writes digits, and how problems become tokens
data.py       writes train.jsonl and exam.jsonl
sampler.py    Sampler: writes answers
judge.py      Judge: scores answers
learner.py    Learner: a model, its optimizer and its sharding, the base class of Actor and Trainer
actor.py      Actor: learns from rewards (GRPO)
trainer.py    Trainer: learns from written answers
"""

from arithmetic.actor import Actor
from arithmetic.judge import Judge
from arithmetic.sampler import Sampler
from arithmetic.trainer import Trainer

__all__ = ["Actor", "Judge", "Sampler", "Trainer"]
