"""`meshctl init`: its output, the files it writes, and the names they have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshctl.cli import init as command
from meshctl.cli.app import app
from meshctl.cli.init import FILE, MODELINE, Options, init, schema_text
from meshctl.cli.load import plan_of
from meshctl.package import install_command
from meshctl.recipe.fields import schema
from tests.cli.init.conftest import names, validated
from tests.paths import RECIPES

NEXT = """\

next:
  meshctl validate jobs/first.yaml
  meshctl show-topology jobs/first.yaml
  meshctl launch jobs/first.yaml
"""


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            "grpo",
            "wrote jobs/first.yaml          3 workers: rollout, train, judge\n"
            "wrote jobs/first.py            its classes, to edit\n"
            "wrote jobs/recipe.schema.json  the keys of recipes, for editors\n",
        ),
        (
            "sft",
            "wrote jobs/first.yaml          2 workers: train\n"
            "wrote jobs/rot13/chats.jsonl   its data\n"
            "wrote jobs/recipe.schema.json  the keys of recipes, for editors\n",
        ),
    ],
)
def test_what_is_printed_and_written(
    kind: str, lines: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("jobs/first", Options(kind)) == 0
    assert capsys.readouterr() == (lines + NEXT, "")
    assert {*here.rglob("*.*")} == {here / line.split()[1] for line in lines.splitlines()}
    text = (here / "jobs" / "first.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=recipe.schema.json\n")
    assert json.loads((here / "jobs" / "recipe.schema.json").read_text()) == schema()
    if kind == "sft":
        shipped = (RECIPES / "sft.yaml").read_text().replace("recipes/sft.yaml", "jobs/first.yaml")
        assert text.splitlines()[1:] == shipped.replace("name: sft", "name: first").splitlines()
        data = here / "jobs" / "rot13" / "chats.jsonl"
        assert data.read_bytes() == (RECIPES / "rot13" / "chats.jsonl").read_bytes()


def test_data_of_the_user_stay(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("first", Options("dpo")) == 0
    (here / "rot13" / "pairs.jsonl").write_text("mine")
    assert init("second", Options("reward_model")) == 0
    assert init("first", Options("dpo", force=True)) == 0
    assert (here / "rot13" / "pairs.jsonl").read_text() == "mine"
    assert names(here) == {"first.yaml", "second.yaml", "rot13/pairs.jsonl"}


def test_other_devices_are_a_scale_of_their_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("laptop", Options("sft_lora", "cuda", 64, "hsdp")) == 0
    output = capsys.readouterr().out
    assert "wrote conf/scale/laptop_devices.yaml  its devices and its model\n" in output
    assert "\nIt needs 64 cuda devices, but this machine has no accelerator: launch it on a machine" in output
    assert (here / "conf" / "scale" / "laptop_devices.yaml").read_text() == (
        "# @package _global_\n"
        "# The tiny model of the scale `laptop` on other devices. With `node8` in its place it is Qwen3-8B.\n"
        "defaults:\n  - laptop\n  - _self_\n\n"
        "groups:\n  train: {ranks: 64, device_type: cuda}\nvars: {samples: 64}\n"
    )
    assert "make" not in (here / "laptop.yaml").read_text()
    train = validated("laptop.yaml").plan.group("train")
    assert (train.device_type, train.workers) == ("cuda", 64)
    assert plan_of("laptop.yaml", ["scale=laptop"]).plan.group("train").workers == 2


def test_missing_libraries_are_reported_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "missing_libraries", lambda extra: ("peft", "datasets"))
    assert init("first", Options("sft")) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"It needs `peft` and `datasets`, not installed here: {install_command('hf')}"


def test_the_devices_are_those_that_the_environment_leaves(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(here)
    monkeypatch.setattr("meshctl.engines.checks.device_files.ROOT", here)
    monkeypatch.setattr("meshctl.recipe.load.detected", lambda: "cuda")
    (here / "dev").mkdir()
    for number in range(6):
        (here / "dev" / f"nvidia{number}").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert init("r", Options()) == 0
    train = plan_of("r.yaml", []).plan.group("train")
    assert (train.device_type, train.workers) == ("cuda", 6)
    for value, found in (("2,3", ("cuda", 2)), ("", ("cpu", 0))):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert command.machine() == found


def test_ones_own_script_is_named_and_not_written(here: Path) -> None:
    (here / "my train.py").write_text("print('mine')\n")
    assert init("jobs/mine", Options(script="my train.py", ranks=3)) == 0
    assert names(here) == {"my train.py", "jobs/mine.yaml"}
    program = validated("jobs/mine.yaml").plan.group("train").program
    assert program is not None and program.argv == ("../my train.py",)


@pytest.mark.parametrize("there", ["first.yaml", "first.py"])
def test_nothing_is_written_over(there: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / there).write_text("mine")
    assert init("first", Options("train")) == 2
    error = f"`{there}` already exists: choose another NAME, or use `--force` to overwrite it"
    assert capsys.readouterr() == ("", f"error: {error}\n")
    assert names(here) == {there} and (here / there).read_text() == "mine"
    assert init("first", Options("train", force=True)) == 0 and "mine" not in (here / there).read_text()
    (here / there).unlink()
    (here / there).mkdir()
    assert init("first", Options("train", force=True)) == 2, "a folder in the way is not forced"


def test_one_schema_serves_all_recipes_of_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = here / "recipe.schema.json"
    assert init("first", Options()) == 0 and "wrote recipe.schema.json " in capsys.readouterr().out
    assert init("日本", Options()) == 0
    first = "wrote 日本.yaml  2 workers: train\nwrote job___.py  its classes, to edit\n\n"
    assert capsys.readouterr().out.startswith(first)
    file.write_text(json.dumps({"title": schema()["title"]}))  # of another version
    assert init("second", Options()) == 0 and json.loads(file.read_text()) == schema()
    file.write_text("[]")  # somebody else's
    assert init("third", Options()) == 0 and file.read_text() == "[]"


def test_all_files_are_written_or_none(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, text: str) -> None:
        if path.suffix == ".py":
            raise OSError(28, "No space left on device", str(path))
        path.write_text(text)

    (here / "file").touch()
    for name, why in (
        ("file/first", "`file` cannot be written to: not a directory"),
        (f"{'x' * 300}/first", f"`{'x' * 300}` cannot be written to: file name too long"),
    ):
        assert init(name, Options()) == 2 and capsys.readouterr().err == f"error: {why}\n"
    monkeypatch.setattr(command, "write_whole", full)
    assert init("first", Options("train")) == 2
    assert capsys.readouterr().err == "error: `.` cannot be written to: no space left on device\n"
    assert names(here) == {"file"}


@pytest.mark.parametrize(
    ("name", "recipe", "module"),
    [
        ("first.yaml", "first.yaml", "first"),
        ("grpo.v2", "grpo.v2.yaml", "grpo_v2"),
        ("7b", "7b.yaml", "job_7b"),
        ("torch", "torch.yaml", "torch_job"),
        ("random", "random.yaml", "random_job"),
        ("class", "class.yaml", "class_job"),
        ("größe", "größe.yaml", "gr__e"),
        ("1e3", "1e3.yaml", "job_1e3"),
        ("it's here/x", "it's here/x.yaml", "x"),
        ("there", "there/train.yaml", "train"),
        ("./package.yaml", "package.yaml", "package_job"),
    ],
)
def test_names(name: str, recipe: str, module: str, here: Path) -> None:
    """A package of the same name would hide the classes."""
    (here / "there").mkdir()
    (here / "package").mkdir()
    (here / "package" / "__init__.py").touch()
    assert init(name, Options("train")) == 0
    written = {recipe, str(Path(recipe).with_name(f"{module}.py"))}
    assert names(here) == {*written, "package/__init__.py"}
    plan = validated(recipe).plan
    assert plan.name == Path(recipe).stem and plan.component("trainer").target == f"{module}.Trainer"


@pytest.mark.parametrize("name", ["a b", "-x", "a=b", "x" * 300, "a\0b", "\x1b[31m", "..yaml"])
def test_odd_names_are_answered(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(name, Options()) == 2
    output, wrong = capsys.readouterr()
    assert output == "" and wrong.startswith("error: ") and wrong.count("\n") == 1 and "\x1b" not in wrong
    assert names(here) == set()


KINDS = "`train`, `grpo`, `distill`, `script`, `sft`, `sft_lora`, `dpo`, `reward_model`, `grpo_hf`, `grpo_vllm`, `grpo_free` and 3 more"
WRONG = {
    Options("grop"): f"kind `grop` does not exist; available: {KINDS}",
    Options("sft", ranks=101): "sft has held-out data for at most 100 ranks",
    Options(device="tpu"): "device `tpu` does not exist; available: `cpu`, `cuda`, `npu` and `mps`",
    Options(ranks=0): "the number of ranks must be from 1 to 100,000, not 0",
    Options(layout="tp"): "layout `tp` does not exist; available: `fsdp`, `dp` and `hsdp`",
    Options("distill_on_policy", ranks=2): (
        "distill_on_policy has the groups `rollout`, `teacher` and `train`: on cpu it needs at least 3 ranks"
    ),
    Options("train", ranks=3, layout="hsdp"): (
        "hsdp does not fit the 3 ranks of `train` on cpu; available: `fsdp` and `dp`"
    ),
    Options(device="mps", ranks=2): "a machine has one mps device, not 2",
    Options("script", layout="dp"): "a script has a layout of its own: do not give one",
    Options("train", script="x.py"): "a script is only for the kind `script`, not train",
    Options(script="a\0b"): "script `a?b` does not exist",
}


@pytest.mark.parametrize("asked", WRONG, ids=str)
def test_choices_that_make_no_recipe(asked: Options, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("first", asked) == 2
    assert capsys.readouterr() == ("", f"error: {WRONG[asked]}\n")
    assert names(here) == set()


# `meshctl schema`


def test_it_is_printed() -> None:
    done = CliRunner().invoke(app, ["schema"])
    assert done.exit_code == 0 and json.loads(done.stdout) == schema() and done.stdout == schema_text()


@pytest.mark.parametrize(
    ("out", "name"), [("", FILE), ("editor.json", "editor.json"), ("new/x.json", "x.json")]
)
def test_it_is_written(out: str, name: str, tmp_path: Path) -> None:
    """A folder gets its usual name; the line of a recipe names the file next to it."""
    done = CliRunner().invoke(app, ["schema", "-o", str(tmp_path / out)])
    assert (done.exit_code, done.stdout) == (0, "")
    written = tmp_path / out if out else tmp_path / name
    assert written.read_text(encoding="utf-8") == schema_text()
    assert f"# yaml-language-server: $schema={name}\n" in done.stderr
    assert f"# yaml-language-server: $schema={FILE}\n" == MODELINE and "/" not in FILE


def test_what_cannot_be_written_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["schema", "-o", str(tmp_path / "file" / "x.json")])
    assert done.exit_code == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
