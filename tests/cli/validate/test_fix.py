"""`meshctl validate --fix`: changes that are certain, and files that stay as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from meshctl.cli.fix import fix
from meshctl.cli.load import CheckResult, check, plan_of
from meshctl.cli.validate import Options, validate
from meshctl.run.directory import RunDir, Start
from tests.cli.validate.validated import meshctl, run
from tests.paths import RECIPE_GOLDEN as GOLDEN

# --fix


WRONG = "\ufeff# 字 rank\r\ndefaults: [./base_of_all, _self_]\r\ngroups: {train: {rank: 4}}  # rank: 4\r\nrun: {max_steps: 1000}"


FIXED = WRONG.replace("{rank: 4}", "{ranks: 4}").replace("max_steps:", "steps:")


def test_fix_writes_certain_changes_and_reports_them(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = folder / "r.yaml"
    recipe.write_bytes(WRONG.encode())
    recipe.chmod(0o640)
    code, output, err = run(capfd, "r.yaml", fix=True)
    assert (
        code == 0 and output.startswith("ok: arithmetic: 2 groups") and recipe.read_bytes() == FIXED.encode()
    )
    assert err.splitlines() == [
        "fixed r.yaml:3:18: `rank` -> `ranks`",
        "fixed r.yaml:4:7: `max_steps` -> `steps`",
    ]
    assert recipe.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in folder.iterdir()} == {"arithmetic.py", "base_of_all.yaml", "r.yaml"}
    assert run(capfd, "r.yaml", fix=True)[2] == ""


def test_fix_keeps_comments_line_ends_and_rights_and_is_done_at_once(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "# mine\r\nsed: 1  # once\r\ngroups: {a: {rank: 2, device_type: cpu, program: {module: json.tool}}}\r\n"
    (folder / "crlf.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (folder / "crlf.yaml").chmod(0o640)
    assert validate(["crlf.yaml"], Options(fix=True)) == 0
    right = text.replace("sed:", "seed:").replace("rank:", "ranks:").encode()
    there = folder / "crlf.yaml"
    assert there.read_bytes() == b"\xef\xbb\xbf" + right and there.stat().st_mode & 0o777 == 0o640
    output = capfd.readouterr().err
    assert output == "fixed crlf.yaml:2:1: `sed` -> `seed`\nfixed crlf.yaml:3:14: `rank` -> `ranks`\n"
    before = there.stat()
    assert validate(["crlf.yaml"], Options(fix=True)) == 0 and capfd.readouterr().err == ""
    assert (there.stat().st_ino, there.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_fix_that_changes_nothing_states_why(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "r.yaml").write_text("defaults: [./base_of_all, _self_]\nseed: many\n")
    code, _, err = run(capfd, "r.yaml", fix=True)
    assert (code, err) == (1, "fixed nothing: no finding has exactly one safe correction\n")
    assert "many" in (folder / "r.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run.steps", "10"], "`run.steps` is neither a recipe nor an override: write run.steps=10"),
        (["run.steps 10"], "`run.steps 10` is neither a recipe nor an override: write run.steps=10"),
        (["run.steps"], "`run.steps` is neither a recipe nor an override: write run.steps=VALUE"),
    ],
)
def test_an_override_without_its_sign_is_answered_with_the_right_one(
    folder: Path, arguments: list[str], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert validate(["base_of_all.yaml", *arguments], Options()) == 2
    assert capfd.readouterr().err == f"error: {line}\n"


def test_fix_reports_what_is_left(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "r.yaml").write_text("defaults: [./base_of_all, _self_]\nnam: x\nseed: y\n")
    code, output, _ = run(capfd, "r.yaml", fix=True, format="json")
    (one,) = json.loads(output)["recipes"]
    assert code == 1 and [found["message"] for found in one["diagnostics"]] == [
        "`seed` must be an integer of at least 0, not the text `y`"
    ]
    assert one["fixed"] == [
        {
            **{"code": "MC101", "message": "a recipe has no key `nam`"},
            "fixes": [
                {"file": "r.yaml", "line": 2, "column": 1, "end_column": 4, "was": "nam", "text": "name"}
            ],
        }
    ]


def test_fix_prints_an_override_as_it_should_be(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(
        capfd, "base_of_all.yaml", "+run.steps=2", "components.acter.group=train", "+vars.x=a b", fix=True
    )
    assert code == 1 and err == "override 2 must be changed to: components.actor.group=train\n"
    assert (folder / "base_of_all.yaml").read_text() == (GOLDEN / "base_of_all.yaml").read_text()


def test_fix_changes_own_files_only(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home, away = folder / "home", folder / "away"
    (home / "conf" / "layout").mkdir(parents=True)
    away.mkdir()
    for name in ("base_of_all.yaml", "arithmetic.py"):
        (folder / name).rename(home / name)
    (home / "conf" / "layout" / "own.yaml").write_text("fsdp: 4\n")
    (away / "linked.yaml").write_text("vars: {n: 1}\nnam: x\n")
    (home / "linked.yaml").symlink_to(away / "linked.yaml")
    (home / "r.yaml").write_text(
        "defaults: [./base_of_all, ./linked, layout@components.actor.parallel: own, _self_]\nsed: 3\n"
    )
    code, _, err = run(capfd, "home/r.yaml", fix=True)
    assert code == 1 and (home / "conf" / "layout" / "own.yaml").read_text() == "fsdp_size: 4\n"
    assert (home / "r.yaml").read_text().endswith("\nseed: 3\n") and (
        away / "linked.yaml"
    ).read_text() == "vars: {n: 1}\nnam: x\n"
    assert (
        "not fixed home/linked.yaml:2:1: `nam` -> `name`: the file is not in the folder of home/r.yaml" in err
    )


def test_fix_goes_through_a_link_that_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "real").mkdir()
    (folder / "real" / "r.yaml").write_text("defaults: [./base_of_all, _self_]\nnam: x\n")
    (folder / "link.yaml").symlink_to("real/r.yaml")
    assert run(capfd, "link.yaml", fix=True)[0] == 0
    assert (folder / "link.yaml").is_symlink() and (folder / "real" / "r.yaml").read_text().endswith(
        "\nname: x\n"
    )


def test_what_cannot_be_written_is_reported_and_remains_wrong(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (folder / "r.yaml").write_text("nam: x\n")
    monkeypatch.setattr("tempfile.mkstemp", full)
    code, output, err = run(capfd, "r.yaml", fix=True)
    assert (
        code == 1
        and "has no key `nam`" in output
        and err.startswith("error: `")
        and "cannot be written: no space left on device" in err
    )
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
    for data in (b"\xff", b"a: [", (GOLDEN / "base_of_all.yaml").read_bytes()):
        assert meshctl("-", "--fix", data=data).stdout == data
    assert (
        meshctl("-", "--fix", data=b"#" * (2 << 20)).stdout == b""
    )  # half of it would be worse than nothing


def test_the_recipe_of_a_run_is_not_fixed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ready = plan_of("base_of_all.yaml", [])
    run_dir = RunDir.create(folder, "arithmetic", "now")
    run_dir.write_start(Start(ready.path))
    run_dir.recipe.write_text(ready.composed + "sed: 1\n")
    run_dir.plan.write_text(ready.plan.to_json())
    code, _, err = run(capfd, "arithmetic/now", fix=True)
    assert (
        code == 1
        and ": --fix does not change the recipe of a run\n" in err
        and run_dir.recipe.read_text().endswith("sed: 1\n")
    )


def test_source_that_is_huge_is_not_read(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open(folder / "arithmetic.py", "wb") as file:
        file.truncate(1 << 40)
    code, output, _ = run(capfd, "base_of_all.yaml", format="concise")
    assert code == 0 and output.count("MC504 note: ") == 3 and "arithmetic.py` is larger than 4 MiB" in output
