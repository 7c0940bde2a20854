"""`meshctl init`: what is printed, and which files are written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshctl.cli import init as command
from meshctl.cli.init import Options, init
from meshctl.cli.load import plan_of
from meshctl.package import install_command
from meshctl.recipe.fields import schema
from tests.cli.init.initialized import names, validated
from tests.paths import RECIPES

# What is written


def test_what_is_printed_and_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("jobs/first", Options("grpo")) == 0
    output, wrong = capsys.readouterr()
    assert wrong == "" and output == (
        "wrote jobs/first.yaml          3 workers: rollout, train, judge\n"
        "wrote jobs/first.py            its classes, to edit\n"
        "wrote jobs/recipe.schema.json  the keys of recipes, for editors\n"
        "\nnext:\n"
        "  meshctl validate jobs/first.yaml\n"
        "  meshctl show-topology jobs/first.yaml\n"
        "  meshctl launch jobs/first.yaml\n"
    )
    assert names(here) == {"jobs/first.yaml", "jobs/first.py", "jobs/recipe.schema.json"}
    assert (
        (here / "jobs" / "first.yaml")
        .read_text()
        .startswith("# yaml-language-server: $schema=recipe.schema.json\n")
    )
    assert not re.search("@[A-Z]+@", (here / "jobs" / "first.yaml").read_text())
    assert json.loads((here / "jobs" / "recipe.schema.json").read_text())["properties"]["groups"]


def test_a_recipe_of_ready_made_components_comes_with_its_data(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("jobs/first", Options("sft")) == 0
    output, wrong = capsys.readouterr()
    assert wrong == "" and output == (
        "wrote jobs/first.yaml          2 workers: train\n"
        "wrote jobs/rot13/chats.jsonl   its data\n"
        "wrote jobs/recipe.schema.json  the keys of recipes, for editors\n"
        "\nnext:\n"
        "  meshctl validate jobs/first.yaml\n"
        "  meshctl show-topology jobs/first.yaml\n"
        "  meshctl launch jobs/first.yaml\n"
    )
    shipped = (RECIPES / "sft.yaml").read_text()
    assert (here / "jobs" / "first.yaml").read_text().splitlines()[1:] == (
        shipped.replace("recipes/sft.yaml", "jobs/first.yaml")
        .replace("name: sft", "name: first")
        .splitlines()
    )
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
    assert "wrote conf/scale/laptop_devices.yaml  its devices and its model\n" in capsys.readouterr().out
    assert (here / "conf" / "scale" / "laptop_devices.yaml").read_text() == (
        "# @package _global_\n"
        "# The tiny model of the scale `laptop` on other devices. With `node8` in its place it is Qwen3-8B.\n"
        "defaults:\n  - laptop\n  - _self_\n\n"
        "groups:\n  train: {ranks: 64, device_type: cuda}\nvars: {samples: 64}\n"
    )
    assert "make" not in (here / "laptop.yaml").read_text()
    validated("laptop.yaml")
    plan = plan_of("laptop.yaml", []).plan
    assert (plan.group("train").device_type, plan.group("train").workers) == ("cuda", 64)
    assert plan_of("laptop.yaml", ["scale=laptop"]).plan.group("train").workers == 2


def test_missing_libraries_are_reported_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "missing_libraries", lambda extra: ("peft", "datasets"))
    assert init("first", Options("sft")) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"It needs `peft` and `datasets`, not installed here: {install_command('hf')}"
    assert names(here) == {"first.yaml", "rot13/chats.jsonl"}


def test_a_machine_that_lacks_the_devices_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("r", Options(device="GPU", ranks=4)) == 0
    assert (
        "It needs 4 cuda devices, but this machine has no accelerator: launch it on a machine that has them.\n"
        in capsys.readouterr().out
    )


def test_what_is_usual_is_what_the_machine_has(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "machine", lambda: ("cuda", 6))
    assert init("r", Options(yes=True)) == 0
    group = plan_of("r.yaml", []).plan.group("train")
    assert (group.device_type, group.workers) == ("cuda", 6)


def test_machine_counts_what_the_environment_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("meshctl.engines.checks.device_files.ROOT", tmp_path)
    monkeypatch.setattr("meshctl.recipe.load.detected", lambda: "cuda")
    (tmp_path / "dev").mkdir()
    for number in range(4):
        (tmp_path / "dev" / f"nvidia{number}").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert command.machine() == ("cuda", 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert command.machine() == ("cuda", 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert command.machine() == ("cpu", 0)


def test_ones_own_script_is_named_and_not_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "my train.py").write_text("print('mine')\n")
    assert init("jobs/mine", Options(script="my train.py", ranks=3)) == 0
    assert names(here) == {"my train.py", "jobs/mine.yaml", "jobs/recipe.schema.json"}
    validated("jobs/mine.yaml")
    program = plan_of("jobs/mine.yaml", []).plan.group("train").program
    assert program is not None and program.argv == ("../my train.py",)


@pytest.mark.parametrize("there", ["first.yaml", "first.py"])
def test_nothing_is_written_over(there: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / there).write_text("mine")
    assert init("first", Options("train")) == 2
    output, wrong = capsys.readouterr()
    assert (output, wrong) == (
        "",
        f"error: `{there}` already exists: choose another NAME, or use `--force` to overwrite it\n",
    )
    assert names(here) == {there} and (here / there).read_text() == "mine"
    assert init("first", Options("train", force=True)) == 0
    assert "mine" not in (here / there).read_text()


def test_a_folder_in_the_way_is_not_forced(here: Path) -> None:
    (here / "first.yaml").mkdir()
    assert init("first", Options("train", force=True)) == 2
    assert names(here) == set()


def test_somebody_elses_schema_stays(here: Path) -> None:
    (here / "recipe.schema.json").write_text("[]")
    assert init("first", Options()) == 0
    assert (here / "recipe.schema.json").read_text() == "[]"
    (here / "recipe.schema.json").write_text('{"title": "meshctl recipe"}')
    assert init("second", Options()) == 0
    assert "properties" in (here / "recipe.schema.json").read_text()


def test_one_schema_serves_all_recipes_of_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("first", Options()) == 0 and "wrote recipe.schema.json " in capsys.readouterr().out
    assert init("日本", Options()) == 0
    assert capsys.readouterr().out.startswith(
        "wrote 日本.yaml  2 workers: train\nwrote job___.py  its classes, to edit\n\n"
    )
    (here / "recipe.schema.json").write_text(json.dumps({"title": schema()["title"]}))
    assert init("second", Options()) == 0 and "wrote recipe.schema.json " in capsys.readouterr().out
    assert json.loads((here / "recipe.schema.json").read_text()) == schema()


def test_both_files_or_none(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, text: str) -> None:
        if path.suffix == ".py":
            raise OSError(28, "No space left on device", str(path))
        path.write_text(text)

    monkeypatch.setattr(command, "write_whole", full)
    assert init("first", Options("train")) == 2
    assert capsys.readouterr().err == "error: `.` cannot be written to: no space left on device\n"
    assert names(here) == set()


def test_a_folder_that_cannot_be_written_to(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").touch()
    assert init("file/first", Options()) == 2
    assert capsys.readouterr().err == "error: `file` cannot be written to: not a directory\n"
    assert init(f"{'x' * 300}/first", Options()) == 2
    assert capsys.readouterr().err.endswith("` cannot be written to: file name too long\n")
