"""Sweeps are expanded into the same jobs as by Hydra's own sweeper."""

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.recipe.compose.overrides import MAX_JOBS, CannotSweep, Job, expand
from tests.examples import examples

LAYOUTS = ["dp", "fsdp", "hsdp", "pp2_fsdp"]


def options(group: str) -> list[str]:
    return LAYOUTS if group == "layout" else []


def overrides(*texts: str) -> list[tuple[str, ...]]:
    return [job.overrides for job in expand(texts, options)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("seed=1,2", ["1", "2"]),
        ("seed=choice(1,2)", ["1", "2"]),
        ("seed=range(1,4)", ["1", "2", "3"]),
        ("seed=range(4,1,-2)", ["4", "2"]),
        ("seed=sort(3,1,2)", ["1", "2", "3"]),
        ("run.dir=a,'b c'", ["a", "'b c'"]),
        ("run.show=[a,b],[c]", ["[a,b]", "[c]"]),
        ("components.a.parallel={tp_size: 2},{dp_size: 4}", ["{tp_size:2}", "{dp_size:4}"]),
        ("layout@components.a.parallel=dp,fsdp", ["dp", "fsdp"]),
        ("+layout@components.a.parallel=dp,fsdp", ["dp", "fsdp"]),
        ("layout@components.a.parallel=glob(*)", LAYOUTS),
        ("layout@components.a.parallel=glob(*fsdp,exclude=pp*)", ["fsdp"]),
        ("layout@components.a.parallel=glob([d*,h*])", ["dp", "hsdp"]),
    ],
)
def test_a_sweep_has_these_values(text: str, values: list[str]) -> None:
    key = text.partition("=")[0]
    assert overrides(text) == [(f"{key}={value}",) for value in values]


@pytest.mark.parametrize("text", ["seed=1", "run.dir='a,b'", "run.show=[a,b]", "~seed", "seed=(", "--seed=1"])
def test_what_is_no_sweep_stays_as_it_is(text: str) -> None:
    assert expand([text], options) == [Job((text,), ())]


def test_jobs_are_the_product_and_name_what_differs() -> None:
    assert expand(["a=1,2", "b=3", "c=x,y"], options) == [
        Job(("a=1", "b=3", "c=x"), ("a=1", "c=x")),
        Job(("a=1", "b=3", "c=y"), ("a=1", "c=y")),
        Job(("a=2", "b=3", "c=x"), ("a=2", "c=x")),
        Job(("a=2", "b=3", "c=y"), ("a=2", "c=y")),
    ]
    assert expand([], options) == [Job((), ())]


VALUES = st.sampled_from(["1", "x", "1.5", "'q r'", "[1,2]", "{a: 1}", "true", "null"])
SWEEPS = st.builds(
    lambda key, values: f"{key}={','.join(values)}",
    st.sampled_from(["a", "b.c", "+d", "++e"]),
    st.lists(VALUES, min_size=1, max_size=3),
)


@settings(max_examples=examples(20, 60))
@given(st.lists(SWEEPS, max_size=3, unique_by=lambda text: text.partition("=")[0]))
def test_jobs_are_hydras(texts: list[str]) -> None:
    (theirs,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(texts), None)
    parser = OverridesParser.create()
    ours = overrides(*texts)
    assert len(ours) == len(theirs)
    for job, their_job in zip(ours, theirs, strict=True):
        for one, their in zip(job, their_job, strict=True):
            assert parser.parse_rule(one, "override").value() == parser.parse_rule(their, "override").value()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["layout@components.a.parallel=glob(x*)"], "`layout@components.a.parallel=glob(x*)` has no value"),
        (["other@a.b=glob(*)"], "`other@a.b=glob(*)` has no value"),
        ([f"seed=range({MAX_JOBS + 1})"], "the sweeps make more than 1,000 jobs"),
        (["seed=range(1000000000)"], "the sweeps make more than 1,000 jobs"),
        (["a=range(100)", "b=range(100)"], "the sweeps make more than 1,000 jobs"),
    ],
)
def test_what_cannot_be_swept(texts: list[str], message: str) -> None:
    with pytest.raises(CannotSweep) as error:
        expand(texts, options)
    assert str(error.value) == message
