"""The classes of the recipes in this folder. The file is only read as text; importing it fails."""

import a_module_that_does_not_exist

from meshctl import Batch, Component, endpoint

MODE = "all"


class Prompts(Component):
    def __init__(self, path: str = "problems.txt") -> None:
        a_module_that_does_not_exist.read(path)

    @endpoint
    def next(self, samples: range) -> Batch | None: ...


class Sampler(Component):
    def __init__(self, max_new_tokens: int, temperature: float = 1.0) -> None: ...

    @endpoint(dispatch="slice_dp", collect="flatten")
    def sample(self, batch: Batch) -> Batch: ...

    def load_weights(self, stream) -> None: ...


class Judge(Component):
    @endpoint
    def score(self, batch: Batch) -> Batch: ...

    @endpoint
    def compare(self, batch: Batch, other: Batch) -> Batch: ...

    def warm_up(self) -> None: ...


class Actor(Component):
    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]: ...

    @endpoint(dispatch=MODE)
    def look(self, batch: Batch) -> Batch: ...

    @endpoint(collect="flaten")
    def odd(self, batch: Batch) -> Batch: ...

    def weights(self): ...


class Critic(Actor):
    pass


class Plain:
    def run(self) -> None: ...
