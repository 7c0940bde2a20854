"""The classes of the recipes on the pages. The file is only read as text; importing it fails."""

import a_module_that_does_not_exist  # noqa: F401

from meshctl import Batch, Component, endpoint


class Trainer(Component):
    """Reads its own data."""

    @endpoint(collect="mean")
    def step(self, samples: range) -> dict[str, float] | None: ...


class Prompts(Component):
    @endpoint
    def next(self, samples: range) -> Batch | None: ...


class Sampler(Component):
    def __init__(self, max_new_tokens: int = 16) -> None: ...

    @endpoint
    def sample(self, batch: Batch) -> Batch: ...

    def load_weights(self, stream) -> None: ...


class Judge(Component):
    @endpoint
    def score(self, batch: Batch) -> Batch: ...

    @endpoint
    def compare(self, batch: Batch, other: Batch) -> Batch: ...


class Actor(Component):
    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]: ...

    def weights(self): ...

    def load_weights(self, stream) -> None: ...
