"""Classes that declare their model, and a source. The file is only read as text."""

from meshctl import Batch, Component, endpoint
from meshctl.data.source import Source


class Texts(Source):
    def __init__(self, max_length: int) -> None: ...

    @endpoint
    def next(self, samples: range) -> Batch | None: ...


class Trainer(Component):
    MODEL = ("args.model", "args.config")

    def __init__(self, model: str | dict, config: dict | None = None) -> None: ...

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]: ...
