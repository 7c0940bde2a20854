"""One root cause gives one diagnostic: a mistake in a correct recipe that many values depend on."""

from __future__ import annotations

import pytest

from meshctl.recipe.load import load
from tests.recipe.mutations.correct_recipes import FOLDER

TRAINER_ARGS = """    args:
      model:
        model_type: qwen3
        vocab_size: 260
        hidden_size: 128
        num_hidden_layers: 2
        num_attention_heads: 4
        num_key_value_heads: 2
        head_dim: 32
      loss: dpo
      loss_options: {beta: 0.1}
      lr: 0.0001
      schedule: {name: cosine, warmup: 10, steps: "${run.steps}"}
"""
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

CASES = {
    "ranks of two components": (
        "blocks.yaml",
        ("    ranks: 8\n", "    ranks: 5\n"),
        "group `train` has 5 ranks, which do not fit the sizes of `sampler` and `actor`",
        "write 8, which fits all of them",
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
    "a number with separators in brackets": (
        "compact.yaml",
        ("prompts.next, samples: 64", "prompts.next, samples: 2,048"),
        "a stage with `call` has no key `048`",
        "write 2048, without separators",
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
    "a sync that is indented into a block": (
        "blocks.yaml",
        ("  publish: {sync", "    publish: {sync"),
        "a block has no key `publish`",
        "it looks like a stage, which goes under `pipeline`: indent it less, beside `eval`",
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
    "the run, indented into the pipeline": (
        "compact.yaml",
        ("\nrun: {steps", "\n  run: {steps"),
        "`run` is a key of a recipe, not a stage",
        "it goes at the top of the recipe: indent it less",
    ),
    "a mapping in brackets without a space before it": (
        "models.yaml",
        ("loss_options: {beta", "loss_options:{beta"),
        "a space is missing after the `:`",
        "write `loss_options: {...`, with a space",
    ),
    "a no-break space in a defaults list": (
        "compact.yaml",
        ("critic.parallel: fsdp_tp", "critic.parallel:\u00a0fsdp_tp"),
        "config `layout` does not exist",
        "it contains the character U+00A0",
    ),
    "arguments that are not indented below `args`": (
        "models.yaml",
        (TRAINER_ARGS, TRAINER_ARGS.replace("\n  ", "\n")),
        "`args` must be a mapping, but it has no value",
        "indent the keys below it",
    ),
    "arguments in the place of a component": (
        "models.yaml",
        (TRAINER_ARGS, TRAINER_ARGS[2:].replace("\n  ", "\n")),
        "`args` is a key of a component, not a name",
        "it goes under `components.trainer`: indent it as the keys there",
    ),
    "a first stage that is not indented below `stages`": (
        "blocks.yaml",
        (
            "      values:\n        call: actor.values\n        in: rollouts\n",
            "    values:\n      call: actor.values\n      in: rollouts\n",
        ),
        "`stages` must be a mapping, but it has no value",
        "indent the keys below it",
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
        (
            PROGRAM,
            PROGRAM.replace("    device_type: cuda\n", "").replace(
                "grace: 20\n", "grace: 20\n  device_type: cuda\n"
            ),
        ),
        "`run` has no key `device_type`",
        "it is a key of a group",
    ),
    "a program in the run": (
        "programs.yaml",
        (
            PROGRAM,
            PROGRAM.replace("    program: {module: json.tool}\n", "").replace(
                "grace: 20\n", "grace: 20\n  program: {module: json.tool}\n"
            ),
        ),
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
    file, (old, new), message, help = CASES[name]
    text = (FOLDER / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    held = {str((FOLDER / file).resolve()): text.replace(old, new).encode()}
    errors = load(file, [], FOLDER, environ={"HOME": "/"}, held=held).report.errors
    assert [(one.message, one.help.startswith(help)) for one in errors] == [(message, True)]


@pytest.mark.parametrize(
    ("old", "new", "override", "help"),
    [
        ("lr: 0.0002", "lr: ${vars.lr}", "vars.lr=4", "to add it, write +vars.lr=4"),
        ("minibatch: 128", "minibatch: ???", "vars.minibatches=4", "did you mean `vars.minibatch`?"),
    ],
)
def test_an_unknown_variable_is_reported_only_at_the_override(
    old: str, new: str, override: str, help: str
) -> None:
    text = (FOLDER / "blocks.yaml").read_text(encoding="utf-8")
    assert text.count(old) == 1
    held = {str((FOLDER / "blocks.yaml").resolve()): text.replace(old, new).encode()}
    errors = load("blocks.yaml", [override], FOLDER, environ={}, held=held).report.errors
    assert [(one.code, one.help) for one in errors] == [("MC203", help)]


def test_on_needs_no_quotes_before_a_list() -> None:
    text = (FOLDER / "blocks.yaml").read_text(encoding="utf-8").replace("on: eval.exam.loss", "on: [a.b]")
    held = {str((FOLDER / "blocks.yaml").resolve()): text.encode()}
    errors = load("blocks.yaml", [], FOLDER, environ={}, held=held).report.errors
    assert {one.message for one in errors} == {"`on` must be text, not a list"}


def test_a_missing_key_is_reported_in_the_recipe_and_not_in_the_layout_that_it_includes() -> None:
    text = (FOLDER / "compact.yaml").read_text(encoding="utf-8")
    held = {
        str((FOLDER / "compact.yaml").resolve()): text.replace(
            "critic: {_target_: parts.Actor,", "critic: {"
        ).encode()
    }
    [error] = load("compact.yaml", [], FOLDER, environ={}, held=held).report.errors
    assert error.code == "MC103" and error.primary is not None
    assert (error.primary.file, error.primary.width) == ("compact.yaml", len("critic"))


def test_an_empty_list_of_metrics_has_no_value() -> None:
    [error] = load("blocks.yaml", ["run.show="], FOLDER, environ={}).report.errors
    assert error.message == "`show` must be a list of texts, but it has no value"


PROGRAM_OF_RUN = """
groups:
  server: {ranks: 2, device_type: cpu, service: true, args: [--port, 8000]}
  train: {ranks: 2, device_type: cpu, program: {module: json.tool}}
run:
  program: serve.py
"""
GROUPS_IN_PIPELINE = """
groups:
components:
  source: {_target_: parts.Prompts, group: train, args: {path: x}}
pipeline:
  train: {ranks: 4, device_type: cpu}
  batch: {call: source.next, samples: 8}
run: {steps: 1}
"""
COMPONENT_OUTSIDE_COMPONENTS = """
groups:
  train: {ranks: 4, device_type: cpu}
components:
  source: {_target_: parts.Prompts, group: train, args: {path: x}}
trainer:
  _target_: parts.Actor
  group: train
pipeline:
  batch: {call: source.next, samples: 8}
  metrics: {call: trainer.update, in: batch}
run:
  - steps: 1
  - show: [metrics.loss]
"""


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (PROGRAM_OF_RUN, [("`run` has no key `program`", "it goes under `groups.server`")]),
        (GROUPS_IN_PIPELINE, [("`train` is a group, not a stage", "it goes under `groups`")]),
        (
            COMPONENT_OUTSIDE_COMPONENTS,
            [
                (
                    "a recipe has no key `trainer`",
                    "it looks like a component, which goes under `components`",
                ),
                (
                    "`run` must be a mapping, not a list",
                    "write `steps:` without the `-`, and the others likewise",
                ),
            ],
        ),
    ],
)
def test_what_is_in_a_wrong_place_is_reported_only_there(
    recipe: str, expected: list[tuple[str, str]]
) -> None:
    held = {str((FOLDER / "moved.yaml").resolve()): recipe.encode()}
    errors = load("moved.yaml", [], FOLDER, environ={}, held=held).report.errors
    assert [(one.message, one.help) for one in errors] == expected
