"""Classes that declare their model and the length of their sequences. The file is only read as text."""

from meshctl import Batch, Component, endpoint


class Texts(Component):
    SEQUENCE_LENGTH = "args.max_length"

    def __init__(self, max_length: int) -> None: ...

    @endpoint
    def next(self, samples: range) -> Batch | None: ...


class Trainer(Component):
    MODEL = ("args.model", "args.config")

    def __init__(self, model: str | dict, config: dict | None = None) -> None: ...

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]: ...
