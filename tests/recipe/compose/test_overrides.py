"""Overrides on the command line: their spans, errors with help, and no exception for any text."""

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.compose.overrides import MAX_OVERRIDES, parse
from meshctl.recipe.load import load
from tests.paths import RECIPE_GOLDEN as GOLDEN


def found(*overrides: str) -> list[Diagnostic]:
    return list(load("base_of_all.yaml", overrides, GOLDEN, environ={}).report.diagnostics)


def marked(override: str) -> str:
    """Returns the part of an override that its diagnostic marks."""
    one, *more = found(override)
    assert not more and one.primary is not None and one.primary.file == "override 1"
    return override[one.primary.column - 1 : one.primary.column - 1 + one.primary.width]


@pytest.mark.parametrize(
    ("override", "piece"),
    [
        ("components.acter.group=train", "acter"),
        ("groups.train.rank=8", "rank"),
        ("+name=again", "name"),
        ("++seed=x", "x"),
        ("seed= x", "x"),
        ("~pipeline.batsh", "batsh"),
        ("components.actor.parallel={tp_size: 3}", "3"),
        ("components.actor.parallel={fsdp_size: 2, tp_sizes: 2}", "tp_sizes"),
        ("components.sampler.parallel.dp_sizes=2", "dp_sizes"),
        ("run.stepz=3", "stepz"),
        ("run.checkpoint.evry=3", "evry"),
        ("components.actor.parallel.tp_size='3'", "'3'"),
        ("layout@components.actor.parallel=nope", "nope"),
        ("pipeline.batch.samples=1,2", "1,2"),
        ("pipeline.batch.samples=range(1,3)", "range(1,3)"),
        ("name=choice(a,b)", "choice(a,b)"),
        ("groups.train[0]=1", "["),
    ],
)
def test_the_smallest_wrong_piece_is_marked(override: str, piece: str) -> None:
    assert marked(override) == piece


@pytest.mark.parametrize(
    ("override", "help"),
    [
        ("--seed=3", "overrides are written without dashes: KEY=VALUE"),
        ("seed", "write KEY=VALUE to change a value, +KEY=VALUE to add a key, ~KEY to delete one"),
        ("other.yaml", "write KEY=VALUE to change a value, +KEY=VALUE to add a key, ~KEY to delete one"),
        ("groups.train[0]=1", "write the index of a list item after a dot: key.0=value"),
        ("vars.x=1", "to add it, write +vars.x=1"),
        ("+seed=3", ""),
        ("run.stepz=3", "did you mean `run.steps`?"),
        ("run.checkpoint.evry=3", "did you mean `run.checkpoint.every`?"),
        ("components.actor.tensor_parallel_size=2", "write components.actor.parallel.tp_size=2"),
        ("steps=3", "write run.steps=3"),
        ("lr=3", "values of your own go under `vars`: +vars.lr=3"),
        ("components.sampler.parallel.dp_sizes=2", "did you mean `components.sampler.parallel.dp_size`?"),
        ("cluster.devices_per_node.cudaa=3", "did you mean `cluster.devices_per_node.cuda`?"),
        ("components.sampler.args.max_token=1", "did you mean `components.sampler.args.max_new_tokens`?"),
    ],
)  # fmt: skip
def test_a_refusal_suggests_what_would_work(override: str, help: str) -> None:
    assert [one.help for one in found(override)] == ([help] if help else [])


def test_too_many_are_refused_at_once() -> None:
    overrides, wrong = parse(["seed=1"] * (MAX_OVERRIDES + 1))
    assert overrides == [] and [one.code for one in wrong] == ["MC206"]


def test_brackets_without_end_are_refused() -> None:
    (one,) = found("+vars.x=" + "[" * 65 + "]" * 65)
    assert one.message == "this is not a valid override: its value is nested deeper than 64 levels"


@pytest.mark.parametrize(
    "overrides",
    [
        ["defaults=[x]"],
        ["~groups", "~components", "~pipeline"],
        ["groups=3", "components=[]", "pipeline=null"],
        ["layout@_global_=hsdp"],
        ["+layout@components=hsdp", "layout=[hsdp,dp]"],
        ["=", "", "~", "+"],
    ],
)
def test_odd_overrides_raise_nothing(overrides: list[str]) -> None:
    assert all(one.message and one.code.startswith("MC") for one in found(*overrides))
