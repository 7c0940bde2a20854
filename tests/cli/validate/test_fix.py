"""`meshctl validate --fix`: changes that are certain, and files that stay as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from meshctl.cli.fix import fix
from meshctl.cli.load import CheckResult, check, plan_of
from meshctl.run.directory import RunDir, Start
from tests.cli.validate.conftest import meshctl, run
from tests.paths import RECIPE_GOLDEN as GOLDEN

Capture = pytest.CaptureFixture[str]
BASE = "defaults: [./base_of_all, _self_]\n"
WRONG = "\ufeff# 字 rank\r\ndefaults: [./base_of_all, _self_]\r\ngroups: {train: {rank: 4}}  # rank: 4\r\nrun: {max_steps: 1000}"
FIXED = WRONG.replace("{rank: 4}", "{ranks: 4}").replace("max_steps:", "steps:")


def test_fix_keeps_all_else_reports_its_changes_and_is_done_at_once(folder: Path, capfd: Capture) -> None:
    recipe = folder / "r.yaml"
    recipe.write_bytes(WRONG.encode())
    recipe.chmod(0o640)
    code, output, err = run(capfd, "r.yaml", fix=True)
    assert code == 0 and output.startswith("ok: arithmetic: 2 groups")
    assert recipe.read_bytes() == FIXED.encode() and recipe.stat().st_mode & 0o777 == 0o640
    assert err == "fixed r.yaml:3:18: `rank` -> `ranks`\nfixed r.yaml:4:7: `max_steps` -> `steps`\n"
    assert {path.name for path in folder.iterdir()} == {"arithmetic.py", "base_of_all.yaml", "r.yaml"}
    before = recipe.stat()
    assert run(capfd, "r.yaml", fix=True)[2] == ""
    assert (recipe.stat().st_ino, recipe.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_fix_that_changes_nothing_states_why(folder: Path, capfd: Capture) -> None:
    (folder / "r.yaml").write_text(f"{BASE}seed: many\n")
    code, _, err = run(capfd, "r.yaml", fix=True)
    assert (code, err) == (1, "fixed nothing: no finding has exactly one safe correction\n")
    assert "many" in (folder / "r.yaml").read_text()


def test_fix_reports_what_is_left(folder: Path, capfd: Capture) -> None:
    (folder / "r.yaml").write_text(f"{BASE}nam: x\nseed: y\n")
    code, output, _ = run(capfd, "r.yaml", fix=True, format="json")
    (one,) = json.loads(output)["recipes"]
    left = "`seed` must be an integer of at least 0, not the text `y`"
    assert code == 1 and [found["message"] for found in one["diagnostics"]] == [left]
    place = {"file": "r.yaml", "line": 2, "column": 1, "end_column": 4}
    assert one["fixed"] == [
        {
            **{"code": "MC101", "message": "a recipe has no key `nam`"},
            "fixes": [{**place, "was": "nam", "text": "name"}],
        }
    ]


def test_fix_prints_an_override_as_it_should_be(folder: Path, capfd: Capture) -> None:
    words = ("+run.steps=2", "components.acter.group=train", "+vars.x=a b")
    code, _, err = run(capfd, "base_of_all.yaml", *words, fix=True)
    assert code == 1 and err == "override 2 must be changed to: components.actor.group=train\n"
    assert (folder / "base_of_all.yaml").read_text() == (GOLDEN / "base_of_all.yaml").read_text()


def test_fix_changes_own_files_only(folder: Path, capfd: Capture) -> None:
    home, away = folder / "home", folder / "away"
    (home / "conf" / "layout").mkdir(parents=True)
    away.mkdir()
    for name in ("base_of_all.yaml", "arithmetic.py"):
        (folder / name).rename(home / name)
    own, linked = home / "conf" / "layout" / "own.yaml", away / "linked.yaml"
    own.write_text("fsdp: 4\n")
    linked.write_text("vars: {n: 1}\nnam: x\n")
    (home / "linked.yaml").symlink_to(linked)
    layout = "layout@components.actor.parallel: own"
    (home / "r.yaml").write_text(f"defaults: [./base_of_all, ./linked, {layout}, _self_]\nsed: 3\n")
    code, _, err = run(capfd, "home/r.yaml", fix=True)
    assert code == 1 and own.read_text() == "fsdp_size: 4\n" and linked.read_text().endswith("nam: x\n")
    assert (home / "r.yaml").read_text().endswith("\nseed: 3\n")
    why = "the file is not in the folder of the recipe"
    assert f"not fixed home/linked.yaml:2:1: `nam` -> `name`: {why}" in err


def test_fix_goes_through_a_link_that_is_named(folder: Path, capfd: Capture) -> None:
    (folder / "real").mkdir()
    real = folder / "real" / "r.yaml"
    real.write_text(f"{BASE}nam: x\n")
    (folder / "link.yaml").symlink_to("real/r.yaml")
    assert run(capfd, "link.yaml", fix=True)[0] == 0
    assert (folder / "link.yaml").is_symlink() and real.read_text().endswith("\nname: x\n")


def test_what_cannot_be_written_is_reported_and_remains_wrong(
    folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (folder / "r.yaml").write_text("nam: x\n")
    monkeypatch.setattr(Path, "write_bytes", full)
    code, output, err = run(capfd, "r.yaml", fix=True)
    assert code == 1 and "has no key `nam`" in output
    assert err.startswith("error: `") and err.endswith("cannot be written: no space left on device\n")
    assert (folder / "r.yaml").read_text() == "nam: x\n" and err.count("\n") == 1


def test_a_file_that_somebody_else_changes_is_left_alone(folder: Path) -> None:
    (folder / "r.yaml").write_text("nam: x\n")

    def looks(held: Mapping[str, bytes]) -> CheckResult:
        found = check("r.yaml", [], held)
        if held:
            (folder / "r.yaml").write_text("nam: y\n")
        return found

    looked, done = fix("r.yaml", looks, {})
    assert done == () and looked.code == 1 and (folder / "r.yaml").read_text() == "nam: y\n"


def test_fix_of_standard_input_prints_its_text() -> None:
    done = meshctl("-", "--fix", data=WRONG.encode())
    assert done.returncode == 0 and done.stdout == FIXED.encode()
    first, *_, last = done.stderr.splitlines()
    assert first == b"fixed <stdin>:3:18: `rank` -> `ranks`" and last.startswith(b"ok: arithmetic: 2 groups")
    assert meshctl("-", "--fix", data=b"a: [\xff").stdout == b"a: [\xff"
    assert meshctl("-", "--fix", data=b"#" * (2 << 20)).stdout == b"", (
        "half of it would be worse than nothing"
    )


def test_the_recipe_of_a_run_is_not_fixed(folder: Path, capfd: Capture) -> None:
    ready = plan_of("base_of_all.yaml", [])
    of_run = RunDir.create(folder, "arithmetic", "now")
    of_run.write_start(Start(ready.path))
    of_run.recipe.write_text(ready.composed + "sed: 1\n")
    of_run.plan.write_text(ready.plan.to_json())
    code, _, err = run(capfd, "arithmetic/now", fix=True)
    assert code == 1 and "not fixed arithmetic/now/recipe.yaml:" in err
    assert of_run.recipe.read_text().endswith("sed: 1\n")
