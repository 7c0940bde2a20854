"""`meshctl validate`: exit codes, what it reads, and that it imports and runs nothing."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshctl.cli.load import Unreadable, plan_of
from meshctl.cli.validate import checked
from meshctl.diagnostics import RecipeError
from meshctl.run.directory import RunDir, Start
from tests.paths import RECIPE_GOLDEN as GOLDEN

RIGHT = str(GOLDEN / "base_of_all.yaml")


def validated(recipe: str, *overrides: str) -> tuple[int, str]:
    out = io.StringIO()
    code = checked(recipe, list(overrides), out)
    return code, out.getvalue()


def test_a_right_recipe_is_one_line() -> None:
    code, output = validated(RIGHT)
    assert code == 0
    assert (
        output.startswith("ok: arithmetic: 2 groups, 6 workers, 3 components, 4 stages; plan ")
        and output.count("\n") == 1
    )


def test_a_wrong_recipe_exits_with_1_and_counts() -> None:
    code, output = validated(RIGHT, "components.actor.parallel.tp_size=3", "seed=x")
    assert code == 1
    assert (
        "error[MC410]: `tp_size` 3 does not fit the 4 ranks of group `train`\n --> override 1:1:35" in output
    )
    assert output.endswith("base_of_all.yaml: 2 errors\n")


UNREADABLE = ["absent.yaml", ".", "open.yaml", "latin.yaml", "list.yaml", "two.yaml"]


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_exits_with_3(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    code, output = validated(name)
    assert code == 3 and output.startswith("error[MC00") and "Traceback" not in output


def test_a_recipe_without_permission_exits_with_3(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.mkdir()
    (recipe / "x.yaml").write_text("a: 1\n")
    assert "give a recipe in it" in validated(str(recipe))[1]
    code, output = validated(str(tmp_path / "recipe.yaml" / "x.yaml" / "y.yaml"))
    assert code == 3 and "MC001" in output


def test_warnings_do_not_fail(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "groups: {a: {ranks: 02, device_type: cpu, program: {module: json.tool}}}\n"
    )
    code, output = validated(str(tmp_path / "r.yaml"))
    assert code == 0 and output.startswith("warning[MC105]") and "ok: r: 1 group, 2 workers; plan" in output


def test_the_chain_describes_the_fault_by_its_exceptions() -> None:
    with pytest.raises(RecipeError) as wrong:
        plan_of(RIGHT, ["seed=x"])
    assert [found.code for found in wrong.value.report.errors] == ["MC102"]
    with pytest.raises(Unreadable):
        plan_of("absent.yaml", [])


def test_a_run_directory_is_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = plan_of(RIGHT, [])
    run = RunDir.create(tmp_path, "arithmetic", "now")
    run.write_start(Start(ready.path))
    run.recipe.write_text(ready.composed)
    run.plan.write_text(ready.plan.to_json())
    monkeypatch.chdir(tmp_path)
    again = plan_of(str(run.path), [])
    assert again.resume == run and again.plan == ready.plan and again.path == ready.path
    changed = plan_of("arithmetic/now", ["layout@components.actor.parallel=hsdp", "run.steps=9"])
    assert changed.plan.component("actor").mesh.size("dp") == 2 and changed.plan.run.steps == 9
    with pytest.raises(Unreadable) as folder_of_runs:
        plan_of("arithmetic", [])
    [found] = folder_of_runs.value.report.diagnostics
    assert found.help == "give the folder of a run; the newest one in it is `arithmetic/now`"
    run.plan.unlink()
    with pytest.raises(Unreadable, match=r"not a run: it has no `plan\.json`"):
        plan_of(str(run.path), [])


WATCHED = """
import json, sys
seen = []
def watch(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.fork", "socket.connect", "os.posix_spawn"):
        seen.append(event)
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append(f"open {args[0]} {args[1]}")
from meshctl.cli.validate import checked
sys.addaudithook(watch)
code = checked(sys.argv[1], sys.argv[2:])
modules = [name for name in ("torch", "numpy", "rich", "arithmetic", "evil", "hydra_plugins") if name in sys.modules]
print(json.dumps({"code": code, "seen": seen, "modules": modules}))
"""


EVIL = "import pathlib\npathlib.Path(__file__).with_name('ran').write_text('x')\nfrom meshctl import Component\nclass E(Component): ...\n"


@pytest.mark.parametrize(
    "override",
    ["seed=1", "components.actor._target_=evil.E", "hydra.searchpath=[pkg://evil]", "+evil@vars.x=y"],
)
def test_nothing_that_a_recipe_names_is_imported_or_run(tmp_path: Path, override: str) -> None:
    for name in ("base_of_all.yaml", "arithmetic.py"):
        (tmp_path / name).write_text((GOLDEN / name).read_text())
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "conftest.py").write_text(EVIL)
    command = [sys.executable, "-B", "-c", WATCHED, "base_of_all.yaml", override]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    parsed = json.loads(result.stdout.splitlines()[-1])
    assert parsed["seen"] == [] and parsed["modules"] == []
    assert not (tmp_path / "ran").exists() and result.stderr == ""


def test_color_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    checked(RIGHT, ["seed=x"], out)
    assert "\x1b[" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    checked(RIGHT, ["seed=x"], out)
    assert "\x1b[" not in out.getvalue()


ODD_PATHS = ["", "x" * 300, "a/" * 2000, "a\nb.yaml", "\x1b[31m", "/dev/null/x", "~", "recipe.yaml/"]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_no_path_ends_in_a_traceback(path: str) -> None:
    code, output = validated(path)
    assert code == 3 and output.startswith("error[MC001]") and "\x1b" not in output


def test_names_too_long_for_the_disk_are_only_unknown() -> None:
    code, output = validated(
        RIGHT,
        f"layout@components.actor.parallel={'x' * 300}",
        f"{'y' * 300}@vars.x=1",
        f"components.actor._target_=a.{'z' * 300}.B",
    )
    assert code == 1 and "MC201" in output and "MC202" in output and "MC501" in output
