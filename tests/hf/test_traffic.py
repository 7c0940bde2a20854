"""The bytes that `show-topology` says each rank sends, compared with those of torch's collective operations in an
update of a tiny model on two ranks."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from meshctl.recipe.load import load
from meshctl.recipe.rules.memory import memory_of
from meshctl.topology.traffic import EXCHANGE, GATHER, REDUCE, SCATTER
from tests.hf import parity
from tests.hf.parity import Case
from tests.hf.random_layouts import arguments_of, recipe_of
from tests.runtime import worlds

OPERATIONS = {
    "c10d._allgather_base_": (GATHER, 1, 1.0),
    "_c10d_functional.all_gather_into_tensor": (GATHER, 0, 1.0),
    "c10d._reduce_scatter_base_": (SCATTER, 1, 0.5),
    "_c10d_functional.reduce_scatter_tensor": (SCATTER, 0, 0.5),
    "c10d.allreduce_": (REDUCE, 0, 1.0),
    "_c10d_functional.all_reduce": (REDUCE, 0, 1.0),
    "c10d.alltoall_base_": (EXCHANGE, 1, 0.5),
    "_c10d_functional.all_to_all_single": (EXCHANGE, 0, 0.5),
}
"""Operation of torch -> its name here, the number of the argument that is sent, and the part of it that one of two
ranks sends to the other one."""
LIKE = 0.05
"""The largest relative difference. A layer of the tiny model is small beside losses, metrics and the head."""
LAYOUTS: dict[str, tuple[dict[str, int], str]] = {
    "fsdp 2": ({"fsdp": 2}, "llama"),
    "fsdp 2 tied": ({"fsdp": 2}, "llama_tied"),
    "dp 2": ({"dp": 2}, "llama"),
    "tp 2": ({"tp": 2}, "llama"),
    "tp 2 experts": ({"tp": 2}, "qwen3_moe"),
    "sequence 2": ({"tp": 2, "sequence_parallel": True}, "llama"),
    "cp 2": ({"cp": 2}, "llama"),
    "ulysses 2": ({"fsdp": 2, "ulysses": 2}, "llama"),
    "ep 2": ({"fsdp": 2, "ep": 2}, "qwen3_moe"),
}
FOLDER = Path()
"""The folder of the counted bytes, set before the world is forked."""


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank sends in each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).removesuffix(".default")
        if name in OPERATIONS:
            operation, sent, part = OPERATIONS[name]
            self.bytes[operation] += round(_size(args[sent]) * part)
        return function(*args, **(kwargs or {}))


def _size(value: Any) -> int:
    return value.nbytes if isinstance(value, Tensor) else sum(map(_size, value))


def _check(number: int, sizes: dict[str, int], model: str) -> worlds.Check:
    def check(rank: int) -> None:
        made = parity.component(Case(model), sizes, parity.SINGLE)
        made.update(parity.share_of(made, 1, False))
        share = parity.share_of(made, 2, False)
        with Sent() as sent:
            made.update(share)
        tokens = len(share) * int(share["input_ids"].lengths.max())
        if rank == 0:
            (FOLDER / f"{number}.yaml").write_text(yaml.safe_dump({"tokens": tokens, **sent.bytes}))

    check.__name__ = f"check_{number}"
    return check


def shown(case: Case, sizes: dict[str, int], tokens: int, folder: Path) -> Counter[str]:
    """Returns the bytes of each operation in a micro-batch with so many tokens, as `show-topology` has them."""
    facts = load(recipe_of(arguments_of(case), sizes, 2, folder), [], folder, environ={}).facts
    assert facts
    [actor] = [one for one in memory_of(facts).components if one.component == "actor"]
    assert not actor.unknown
    found: Counter[str] = Counter()
    for move in actor.moves:
        found[move.operation] += round(move.bytes * (tokens if move.per_token else 1))
    return found


@pytest.mark.slow_suite
def test_the_shown_bytes_are_those_that_torch_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    checks = [_check(number, *layout) for number, layout in enumerate(LAYOUTS.values())]
    with tempfile.TemporaryDirectory() as folder:
        results = worlds.run(2, checks, Path(folder))
    assert set(results.values()) == {worlds.PASSED}
    wrong = {}
    for number, (name, (sizes, model)) in enumerate(LAYOUTS.items()):
        sent = yaml.safe_load((tmp_path / f"{number}.yaml").read_text())
        expected = shown(Case(model), sizes, sent.pop("tokens"), tmp_path)
        largest = max(sent.values())
        for operation in sent.keys() | expected.keys():
            difference = abs(sent.get(operation, 0) - expected[operation])
            if difference > LIKE * largest:
                wrong[name, operation] = sent.get(operation, 0), expected[operation]
    assert wrong == {}, wrong
