"""One root cause gives one diagnostic: a mistake in a correct recipe that many values depend on."""

from __future__ import annotations

import pytest

from meshctl.recipe.load import load
from tests.recipe.correct_recipes import FOLDER, TEXTS, errors_of

PROGRAM = """    ranks: 6
    device_type: cuda
    program: {module: json.tool}
    args:
      - --job.config_file
      - train.toml
    env: {HF_HOME: /cache, LEVEL: info}
    visible_devices: "2,3,4,5,6,7"

run:
  dir: runs
  grace: 20
"""


def moved_to_the_run(line: str) -> str:
    return PROGRAM.replace(f"    {line}\n", "").replace("grace: 20\n", f"grace: 20\n  {line}\n")


CASES = {
    "ranks of two components": (
        "blocks.yaml",
        ("    ranks: 8\n", "    ranks: 5\n"),
        "`dp_size` 8 does not fit the 5 ranks of group `train`",
        "nearest that fit",
    ),
    "more ranks than devices, which also fit no layout": (
        "compact.yaml",
        ("train: {ranks: 8,", "train: {ranks: 31,"),
        "group `train` needs 31 devices, but 8 of the cluster's 16 are free (`rollout` has 8)",
        "all groups together need 39: write ",
    ),
    "samples whose groups are shared later": (
        "compact.yaml",
        ("prompts.next, samples: 64", "prompts.next, samples: 1"),
        "stage `batch` produces 1 sample, too few for the shares of `prompts`, `sampler` and `critic`",
        "produce at least 4, or write `dispatch: {allow_empty: true}`",
    ),
    "a cluster that is too small for two groups": (
        "compact.yaml",
        ("devices_per_node: 8}", "devices_per_node: 2}"),
        "group `rollout` needs device 4, but the cluster has 4, numbered from 0 to 3",
        "all groups together need 16: write `cluster.nodes: 8` or `cluster.devices_per_node: 8`, or remove `cluster`",
    ),
    "a component that does not exist, and its group": (
        "compact.yaml",
        ("  teacher: {", "  other_name: {"),
        "component `teacher` does not exist",
        "available: ",
    ),
    "a class in place of a component": (
        "compact.yaml",
        ("{call: teacher.score,", "{call: parts.Sampler,"),
        "`parts.Sampler` does not have the form COMPONENT.METHOD",
        "write `sampler.sample`",
    ),
    "a component whose name is a key of components": (
        "experts.yaml",
        ("  model:\n    _target_:", "  model:\n    _targte_:"),
        "a component has no key `_targte_`",
        "did you mean `_target_`?",
    ),
    "a reference into a section whose name is misspelt": (
        "experts.yaml",
        ("run:\n  steps", "rnu:\n  steps"),
        "a recipe has no key `rnu`",
        "did you mean `run`?",
    ),
    "an alias of nothing below a key that YAML 1.1 reads as a boolean": (
        "blocks.yaml",
        ("    on: eval.exam.loss\n", "    on: *shared\n"),
        "anchor `shared` of this alias does not exist",
        "",
    ),
    "a data file beside another one": (
        "models.yaml",
        ("path: pairs.jsonl", "path: pars.jsonl"),
        "file `pars.jsonl` does not exist",
        "did you mean `pairs.jsonl`?",
    ),
    "more ranks than the group whose devices are shared, which also fit no layout": (
        "compact.yaml",
        ("twin: {ranks: 8,", "twin: {ranks: 31,"),
        "group `twin` shares 31 devices with `rollout`, which has 8",
        "write at most 8",
    ),
    "a stage that takes itself and sends its samples to an earlier one": (
        "compact.yaml",
        ("metrics: {call: actor.update, in: joined,", "metrics: {call: actor.update, in: metrics,"),
        "stage `metrics` takes its own value",
        "a stage runs after those that it takes",
    ),
    "arguments of a component in its group": (
        "blocks.yaml",
        (
            "    device_type: cuda\ncomponents:\n  prompts: {_target_: parts.Prompts, group: train, args: {path: train.jsonl}}",
            "    device_type: cuda\n    args: {path: train.jsonl}\ncomponents:\n  prompts: {_target_: parts.Prompts, group: train}",
        ),
        "`args` is for a program, and this group has no `program`",
        "add `program:`, or move `args` to a component",
    ),
    "a device type in the run": (
        "programs.yaml",
        (PROGRAM, moved_to_the_run("device_type: cuda")),
        "`run` has no key `device_type`",
        "it is a key of a group",
    ),
    "a program in the run": (
        "programs.yaml",
        (PROGRAM, moved_to_the_run("program: {module: json.tool}")),
        "`run` has no key `program`",
        "it ",
    ),
    "a word in place of the run, into which a reference points": (
        "models.yaml",
        ("run:\n  steps: 100\n  show: [metrics.loss]\n", "run: none\n"),
        "`run` must be a mapping, not the text `none`",
        "",
    ),
    "a key of a program": (
        "programs.yaml",
        ("{module: json.tool}", "{script: train.py}"),
        "`program` has no key `script`",
        "its key is `module`",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_mistake_is_one_error(name: str) -> None:
    file, change, message, help = CASES[name]
    assert TEXTS[file].count(change[0]) == 1
    errors = errors_of(file, change)
    assert [(one.message, one.help.startswith(help)) for one in errors] == [(message, True)]


def test_on_needs_no_quotes_before_a_list() -> None:
    errors = errors_of("blocks.yaml", ("on: eval.exam.loss", "on: [a.b]"))
    assert {one.message for one in errors} == {"`on` must be text, not a list"}


def test_a_missing_key_is_reported_in_the_recipe_and_not_in_the_layout_that_it_includes() -> None:
    [error] = errors_of("compact.yaml", ("critic: {_target_: parts.Actor,", "critic: {"))
    assert error.code == "MC103" and error.primary is not None
    assert (error.primary.file, error.primary.width) == ("compact.yaml", len("critic"))


def test_an_empty_list_of_metrics_has_no_value() -> None:
    [error] = load("blocks.yaml", ["run.show="], FOLDER, environ={}).report.errors
    assert error.message == "`show` must be a list of texts, but it has no value"


def test_a_name_that_is_missing_is_reported_once() -> None:
    [error] = errors_of("grpo.yaml", ("group: rollout", "group: inference"))
    assert error.code == "MC500" and {span.label for span in error.seconds} == {"and here"}
    assert error.help == "available: `rollout`, `train` and `judge`"


@pytest.mark.parametrize("written", ["[batch rollouts]", "batch rollouts"])
def test_names_without_a_comma_between_them(written: str) -> None:
    [error] = errors_of("grpo.yaml", ("in: rollouts", f"in: {written}"))
    help = "write `,` between the names of the stages: [batch, rollouts]"
    assert (error.code, error.help, error.fixes) == ("MC530", help, ())
