"""The classes of the recipes in this folder. The file is only read as text."""

from __future__ import annotations

from meshctl import Batch, Component, endpoint


class Prompts(Component):
    def __init__(self, path: str, seed: int = 0) -> None: ...

    def __len__(self) -> int: ...

    @endpoint
    def next(self, samples: range) -> Batch | None: ...


class Sampler(Component):
    def __init__(self, max_new_tokens: int = 16, temperature: float = 1.0) -> None: ...

    @endpoint
    def sample(self, batch: Batch) -> Batch: ...

    def load_weights(self, stream) -> None: ...


class Judge(Component):
    @endpoint
    def score(self, batch: Batch) -> Batch: ...

    @endpoint
    def compare(self, answers: Batch, references: Batch) -> Batch: ...


class Actor(Component):
    def __init__(self, lr: float = 1e-4, steps: int = 1) -> None: ...

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        return {"loss": 1.0, "entropy": 1.0}

    @endpoint
    def values(self, batch: Batch) -> Batch: ...

    def weights(self): ...

    def state_dict(self): ...

    def load_state_dict(self, state) -> None: ...

    def load_weights(self, stream) -> None: ...
