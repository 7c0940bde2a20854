"""Components of the run whose events are those of all checks."""

from __future__ import annotations

import torch

from meshctl import Batch, Component, endpoint
from meshctl.data.source import Source as Tokenized


class Source(Tokenized):
    """A source with a tokenizer that is downloaded and not loaded."""

    def __init__(self, tokenizer: str) -> None:
        self.tokenizer = tokenizer

    def setup(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __len__(self) -> int:
        return 1_000_000

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass

    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.tensor([float(sample) for sample in samples])})


class Trainer(Component):
    """A component whose two ranks log different numbers, and whose loss is not finite in step 2."""

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        self.collective("tp").all_reduce(batch["x"].sum())
        self.log({"drift": float(self.rank)})
        if self.rank:
            self.log({"own": 1.0})
        return {"loss": float("nan") if self.step == 2 else 1.0}
