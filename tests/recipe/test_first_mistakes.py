"""Mistakes of a first recipe: each is one error at its place, with help that names what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.recipe.load import load

RECIPE = """\
name: first
groups:
  data: {ranks: 1, device_type: cpu}
  train: {ranks: 2, device_type: cpu}
components:
  source: {_target_: parts.Source, group: data}
  actor: {_target_: parts.Actor, group: train}
pipeline:
  batch: {call: source.next, samples: 8}
  metrics: {call: actor.update, in: batch}
run: {steps: 2}
"""
PARTS = """\
from meshctl import Batch, Component, endpoint


class Source(Component):
    def __init__(self, path: str = "", size: int | None = 3) -> None: ...

    @endpoint
    def next(self, samples: range) -> Batch: ...


class Actor(Component):
    def __init__(self, lr: float = 0.1) -> None: ...

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]: ...
"""
SOURCE, ACTOR = "group: data}", "group: train}"
STEPS, CPU = "steps: 2", "ranks: 2, device_type: cpu"
CASES = {
    "a full-width colon": ("name: first", "name\uff1a first", "MC003", 1, "write `:`"),
    "a ' in single quotes": ("name: first", "name: 'don't'", "MC003", 1, "write `''` for a ' in single quotes"),
    "a glob": (SOURCE, "group: data, args: {path: *.jsonl}}", "MC003", 6, ""),
    "an anchor that is not there": (CPU, "<<: *cpus, ranks: 2", "MC003", 4, "write `&cpus` before a value above, or quote a text that begins with `*`"),
    "Python's None": (STEPS, "steps: None", "MC102", 11, "leave the key out for no value"),
    "restarts without a number": (STEPS, "steps: 2, restarts: true", "MC102", 11, ""),
    "the folder of the run": (STEPS, 'steps: 2, dir: "${run_dir}/x"', "MC212", 11, "write {run_dir}, without `$`"),
    "an engine by a key": ("steps: 2}", "steps: 2}\nengine: {type: slurm}", "MC101", 12, "write `engine: slurm`"),
    "a Cyrillic letter in a call": ("actor.update", "\u0430ctor.update", "MC511", 10, "U+0430"),
    "a Cyrillic letter in a group": (ACTOR, "group: tr\u0430in}", "MC500", 7, "U+0430"),
    "an assignment in env": ("ranks: 2,", "ranks: 2, env: [A=1],", "MC106", 4, "write {A: 1}"),
    "names of nodes": ("name: first", "name: first\ncluster: {nodes: [a, b]}", "MC102", 2, "write 2; names of hosts"),
    "a component in `in`": ("in: batch", "in: source", "MC530", 10, "available: `batch`"),
    "a call in `in`": ("in: batch", "in: source.next", "MC530", 10, "available: `batch`"),
    "a layout by its name": (ACTOR, "group: train, parallel: fsdp}", "MC402", 7, "write sizes: {fsdp_size: 2}"),
    "gpus of a cluster": ("name: first", "name: first\ncluster: {gpus_per_node: 8}", "MC101", 2, "did you mean `devices_per_node`?"),
}  # fmt: skip


def errors(folder: Path, recipe: str, parts: str = PARTS, *overrides: str) -> list[tuple[str, int, str]]:
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    (folder / "parts.py").write_text(parts)
    found = load("recipe.yaml", overrides, folder, environ={}).report.errors
    return [(one.code, one.primary.line if one.primary else 0, one.help) for one in found]


def test_the_recipe_is_right(tmp_path: Path) -> None:
    assert not errors(tmp_path, RECIPE)


@pytest.mark.parametrize("name", CASES)
def test_each_is_one_error_with_help(name: str, tmp_path: Path) -> None:
    old, new, code, line, help = CASES[name]
    assert old in RECIPE
    [(found, at, advice)] = errors(tmp_path, RECIPE.replace(old, new))
    assert (found, at) == (code, line) and help in advice


@pytest.mark.parametrize(
    ("override", "help"),
    [
        ('groups={"data": {"ranks": 1}}', "write KEY={KEY: VALUE}"),
        ("groups.data=null", "to delete it, write ~groups.data"),
    ],
)
def test_overrides(override: str, help: str, tmp_path: Path) -> None:
    [(_, _, advice)] = errors(tmp_path, RECIPE, PARTS, override)
    assert advice == help


def test_a_device_type_that_was_detected_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("ranks: 2, device_type: cpu", "ranks: [0, 1]"))
    [error] = load("recipe.yaml", [], tmp_path, environ={}, detect=lambda: "cpu").report.errors
    assert [span.label for span in error.seconds] == ["`device_type` is not set, and this machine's is cpu"]
    assert error.code == "MC302" and error.help.startswith(
        "`device_type` is not set: write the type of the machine"
    )


def test_a_file_that_is_not_python_is_one_error(tmp_path: Path) -> None:
    broken = PARTS.replace("def next(self,", "def next(self,,")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "parts.py").write_text(broken)
    [error] = load("recipe.yaml", [], tmp_path, environ={}).report.errors
    place = f"line 8 of `{tmp_path / 'parts.py'}` is not valid Python: invalid syntax"
    assert error.message == f"`parts.Source` cannot be imported: {place}"


def test_other_files_and_encodings(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "wide.yaml").write_bytes(RECIPE.encode("utf-16"))
    messages = {
        "wide.yaml": "`wide.yaml` is UTF-16, not UTF-8",
        "elsewhere.yaml": "recipe `elsewhere.yaml` does not exist",
    }
    for name, message in messages.items():
        [error] = load(name, [], tmp_path, environ={}).report.errors
        assert error.message == message
    assert error.help == f"the name is relative to the working directory, `{tmp_path}`"


MODEL = "parts.Actor, group: train"
READY = "meshctl.hf.Model, group: train, args: {{model: {{model_type: llama}}, {}}}"


@pytest.mark.parametrize(
    ("argument", "code", "help"),
    [
        ("learning_rate: 1", "MC505", "write `lr`"),
        ("per_device_train_batch_size: 1", "MC505", "write `micro_batch`"),
        ("gradient_accumulation_steps: 1", "MC505", "write `micro_batch`"),
        ("mixed_precision: bf16", "MC505", "write `compute_dtype`"),
        ("clip_ratio: 0.2", "MC505", "write `loss_options: {clip: 0.2}`"),
        ("dtype: torch.float32", "MC453", "write `float32`"),
        ("lora: true", "MC508", "write `lora: {r: 16, alpha: 32}`"),
        ("schedule: cosine", "MC508", "write `schedule: {name: cosine, warmup: 10}`"),
    ],
)
def test_an_argument_of_another_system(tmp_path: Path, argument: str, code: str, help: str) -> None:
    found = errors(tmp_path, RECIPE.replace(MODEL, READY.format(argument)))
    assert [(one, line) for one, line, _ in found] == [(code, 7)] and help in found[0][2]


def test_groups_that_share_the_devices_of_each_other_are_one_error(tmp_path: Path) -> None:
    groups = "".join(
        f"  {a}: {{ranks: 1, device_type: cuda, colocate: {b}}}\n" for a, b in ("xy", "yz", "zx")
    )
    found = errors(tmp_path, RECIPE.replace("groups:\n", f"groups:\n{groups}"))
    assert [one for one in found if one[0] == "MC305"] == [("MC305", 3, "remove one `colocate`")]


def test_a_sync_that_is_turned_round(tmp_path: Path) -> None:
    parts = f"{PARTS}\n    def weights(self): ...\n\nclass Reader(Source):\n    def load_weights(self, stream): ...\n"
    recipe = RECIPE.replace("parts.Source", "parts.Reader")
    recipe = recipe.replace("run:", "  publish: {sync: source, to: actor}\nrun:")
    found = errors(tmp_path, recipe, parts)
    assert set(found) == {("MC553", 11, "turn it round: {sync: actor, to: source}")}
