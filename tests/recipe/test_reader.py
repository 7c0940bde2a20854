"""Reading a composed tree as a `Recipe`: values have their types, and each error is reported once."""

from pathlib import Path

import pytest

from meshctl.recipe import model
from meshctl.recipe.compose.yaml_reader import read as read_text
from meshctl.recipe.compose.yaml_scalars import dump
from meshctl.recipe.load import load
from meshctl.recipe.reader import Read, read
from meshctl.run.settings import Checkpoint, Run

GOLDEN = Path(__file__).parent / "golden"

WHOLE = """
name: all
seed: 3
cluster: {nodes: 2, devices_per_node: 8}
groups:
  a: {ranks: 4, device_type: GPU, gpus_per_worker: 2, visible_devices: "8,9", env: {A: 1, B: "x", C: 1e3}}
  b: {ranks: [4, 6], device_type: npu, colocate: a, env: [PATH, HOME]}
  c: {ranks: 1, device_type: cpu, program: {module: torchtitan.train}, args: [--lr, 1e-3, -n, 010], cwd: x, python: py, service: true}
components:
  x: {_target_: m.X, group: a, parallel: {fsdp_size: auto, tp_size: 2, order: [pp, dp, fsdp, tp, cp]}, args: {k: [1, {a: 2}]}, frozen: true}
  y: {_target_: m.Y, group: a, parallel: x}
  z: {_target_: m.Z, group: a, parallel: {pp_size: 2, ep_size: 2, etp_size: auto, ep_fsdp_size: 4, vpp_size: 3, sequence_parallel: true}}
pipeline:
  source: {call: x.next, samples: 8, sample_bytes: 4096, every: 2, when: start}
  one: {call: y.f, in: source, dispatch: slice, execute: peer, collect: sum}
  two: {call: y.f, in: [source, one], dispatch: {balance: tokens, allow_empty: true, split_groups: true, equal_counts: true}, after: one}
  three: {call: y.f, in: {a: source, b: {from: one, dispatch: all}, c: {from: [one, two], dispatch: {home: source}}}, after: [one, two]}
  sync: {sync: x, to: y, every: 4, max_staleness: 5, checksum: true}
  part: {sync: x.adapter, to: y}
run: {steps: 10, epochs: 2, dir: out, checkpoint: {every: 5, keep: 1}, grace: 2.5, patience: 90, show: [one.loss]}
"""


def reading(text: str) -> Read:
    tree = read_text(text.encode(), "x.yaml").tree
    assert tree is not None
    return read(tree, "stem")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a: source,", "a: [],", "`a` is empty"),
        ("{from: one, dispatch: all}", "{from: [], dispatch: all}", "`from` is empty"),
        ("devices_per_node: 8}", "devices_per_node: {}}", "`devices_per_node` is empty"),
        ("env: [PATH, HOME]", 'env: [PATH, ""]', "the name of an environment variable is empty"),
    ],
)
def test_what_is_empty_is_reported(old: str, new: str, message: str) -> None:
    assert WHOLE.count(old) == 1
    assert [found.message for found in reading(WHOLE.replace(old, new)).found] == [message]


def test_everything_a_recipe_can_state_arrives() -> None:
    result = reading(WHOLE)
    assert [found.message for found in result.found] == []
    recipe, words = result.recipe, model.DispatchWords
    assert (recipe.name, recipe.seed, recipe.cluster) == ("all", 3, model.Cluster(2, 8))
    assert recipe.groups["a"] == model.DeviceGroup(
        "a", 4, "cuda", 2, ("8", "9"), (("A", "1"), ("B", "x"), ("C", "1e3"))
    )
    assert recipe.groups["b"] == model.DeviceGroup(
        "b", (4, 6), "npu", env=(("PATH", None), ("HOME", None)), colocate="a"
    )
    assert recipe.groups["c"].program == model.Program(
        "", "torchtitan.train", ("--lr", "1e-3", "-n", "010"), "x", service=True
    )
    assert recipe.groups["c"].python == "py"
    sizes = model.Sizes((("fsdp_size", "auto"), ("tp_size", 2)), ("pp", "dp", "fsdp", "tp", "cp"))
    assert recipe.components["x"] == model.Component("x", "m.X", "a", sizes, {"k": [1, {"a": 2}]}, True)
    assert recipe.components["y"].parallel == "x"
    experts = (("pp_size", 2), ("ep_size", 2), ("etp_size", "auto"), ("ep_fsdp_size", 4), ("vpp_size", 3))
    assert recipe.components["z"].parallel == model.Sizes(experts, (), True)
    stages = recipe.pipeline
    assert stages["source"] == model.Stage(
        "source", "call", "x", "next", samples=8, sample_bytes=4096, every=2, when="start"
    )
    one, two = stages["one"], stages["two"]
    assert (one.dispatch, one.execute, one.collect) == (words("slice"), "peer", "sum")
    assert two.inputs == (model.Input(("source", "one")),) and two.after == ("one",)
    assert two.dispatch == words(None, "tokens", "", True, True, True)
    assert stages["three"].inputs == (
        model.Input(("source",), "a"),
        model.Input(("one",), "b", words("all")),
        model.Input(("one", "two"), "c", words(home="source")),
    )
    for name, kind, lag, checksum in (("sync", "weights", 2, True), ("part", "adapter", 0, None)):
        stage = stages[name]
        assert (stage.method, stage.to_method, stage.lag) == (kind, f"load_{kind}", lag)
        assert stage.checksum is checksum
    ends = {"steps": 10, "epochs": 2, "grace": 2.5, "patience": 90.0}
    assert recipe.run == Run(dir="out", checkpoint=Checkpoint(5, 1), show=("one.loss",), **ends)


def test_text_of_the_environment_is_read_as_what_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "groups: {a: {ranks: '${oc.env:N}', device_type: cpu, program: {module: timeit}}}\nrun: {grace: '${oc.env:G,1.5}'}\n"
    )
    loaded = load("r.yaml", [], tmp_path, environ={"N": "3"})
    assert not loaded.report.diagnostics
    assert (loaded.recipe.groups["a"].ranks, loaded.recipe.run.grace) == (3, 1.5)
    assert "${oc.env:N}" in loaded.composed
    wrong = load("r.yaml", [], tmp_path, environ={"N": "three"})
    assert [found.code for found in wrong.report.errors] == ["MC102"]


def test_a_recipe_reads_the_same_after_it_was_composed(tmp_path: Path) -> None:
    loaded = load("base_of_all.yaml", ["run.steps=3"], GOLDEN)
    (tmp_path / "recipe.yaml").write_text(loaded.composed)
    again = load("recipe.yaml", [], tmp_path, path=loaded.path)
    assert again.recipe == loaded.recipe and again.composed == loaded.composed
    assert dump({}) == "{}\n"


PLAIN = (
    "name: ..",
    "name: a/b",
    "groups: {a b: {ranks: 1}}",
    "groups: {'1': {ranks: 1}}",
    "groups: {agent-1: {ranks: 1}}",
)


@pytest.mark.parametrize("line", PLAIN)
def test_what_names_files_is_a_plain_name(line: str) -> None:
    assert "MC106" in [found.code for found in reading(line).found]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("80GB", 80 * 10**9),
        ("141GiB", 141 * 2**30),
        ("1.5 TB", 1_500_000_000_000),
        ("80gb", 80 * 10**9),
        ("85899345920", 80 * 2**30),
        *((text, None) for text in ("80", "80G", "1.5 t", "0", "-5", "9e20", "2000000GB", "[80GB]")),
    ],
)
def test_sizes_in_bytes_have_a_unit(written: str, expected: int | None) -> None:
    result = reading(f"cluster: {{device_memory: {written}}}\n")
    found = [(one.code, "such as 80GB or 141GiB" in one.message) for one in result.found]
    assert found == [("MC102", True)] * (expected is None)
    assert expected is None or result.recipe.cluster.device_memory == expected
