"""`meshctl config` prints a recipe, or the origin of each value, as far as a wrong recipe can be read; and no
output of any command contains a secret."""

import json
import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli.config import config
from meshctl.cli.launch import Options as LaunchOptions
from meshctl.cli.launch import launch
from meshctl.cli.load import plan_of
from meshctl.cli.output import bug
from meshctl.cli.show_topology import Options as Drawn
from meshctl.cli.show_topology import show
from meshctl.cli.validate import Options, validate
from meshctl.engines.supervise import attempt
from meshctl.recipe.compose.yaml_reader import read as load_text
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.text.redaction import HIDDEN
from meshctl.view.reports import FORMATS
from tests.cli.commands import code_of
from tests.paths import CONF
from tests.paths import RECIPE_GOLDEN as GOLDEN

MARK = "xS3cr3tMarkx"
RECIPE = """\
defaults: [base, layout@components.actor.parallel: fsdp, _self_]
vars: {lr: 0.1, long: a very long text that has no room in half of a line or in a whole one either}
groups:
  train: {ranks: 4, device_type: cpu, env: {HF_TOKEN: abcdefgh}}
components:
  prompts: {_target_: arithmetic.Prompts, group: train}
  actor: {_target_: arithmetic.Actor, group: train, args: {}}
pipeline:
  batch: {call: prompts.next, samples: 8}
  metrics: {call: actor.update, in: batch}
run: {steps: 100, show: [metrics.loss]}
"""
ORIGINS = """\
run.steps = 7                           override 1:1:11
                                        (was 100, recipe.yaml:11:14)
run.show.0 = metrics.loss               recipe.yaml:11:26
components.actor.parallel.fsdp_size = auto  layout/fsdp.yaml:2:12
components.actor._target_ = arithmetic.Actor  recipe.yaml:7:21
components.actor.args = {}              recipe.yaml:7:59
vars.lr = ${seed}                       override 2:1:9
                                        (is 0, base.yaml:2:7)
                                        (was 0.1, recipe.yaml:2:12)
vars.long = a very long text that has no room in half of a line or in a whole one either
                                        recipe.yaml:2:23
groups.train.env.HF_TOKEN = <redacted>  recipe.yaml:4:55
name = recipe                           inferred: the file's name
"""
"""One value of each kind."""
OVERRIDES = ["run.steps=7", "vars.lr=${seed}"]
PRINTED = [(False, "text"), (False, "json"), (True, "text"), (True, "json")]
"""Origins or not, and the format."""
PICTURES = ("text", "json", "mermaid", "svg", "html")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe, its code, and config groups next to it, so that their places have short names."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    shutil.copy(GOLDEN / "arithmetic.py", tmp_path)
    (tmp_path / "layout").mkdir()
    for name in ("base.yaml", "layout/fsdp.yaml"):
        shutil.copy(CONF / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def output(
    capsys: pytest.CaptureFixture[str],
    recipe: str,
    *overrides: str,
    origins: bool = False,
    format: str = "text",
) -> tuple[int, str, str]:
    capsys.readouterr()
    code = code_of(config, recipe, list(overrides), origins, format)
    return code, *capsys.readouterr()


def test_what_is_composed_is_a_recipe_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "recipe.yaml").write_text(RECIPE.replace("abcdefgh", '"${oc.env:HF_TOKEN}"'))
    code, out, err = output(capsys, "recipe.yaml", *OVERRIDES)
    assert code == 0 and "error" not in err
    assert "HF_TOKEN: '${oc.env:HF_TOKEN}'" in out and "lr: '${seed}'" in out
    (folder / "again.yaml").write_text(out)
    assert plan_of("again.yaml", []).plan == plan_of("recipe.yaml", OVERRIDES).plan
    code, out, _ = output(capsys, "recipe.yaml", *OVERRIDES, format="json")
    assert code == 0 and json.loads(out)["run"]["steps"] == 7


def test_origins_are_a_line_or_a_few_for_each_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output(capsys, "recipe.yaml", *OVERRIDES, origins=True)
    assert code == 0 and "MC219" in err
    for value in ORIGINS.replace("\n ", "\0 ").splitlines():
        assert f"{value}\n".replace("\0", "\n") in f"{out}\n", value
    code, out, _ = output(capsys, "recipe.yaml", *OVERRIDES, origins=True, format="json")
    parsed = json.loads(out)
    values = {".".join(value["path"]): value for value in parsed["values"]}
    assert code == 0 and parsed["format"] == 1 and parsed["errors"] == 0
    assert values["run.steps"] == {
        "path": ["run", "steps"],
        "value": 7,
        "kind": "override",
        "place": {"file": "override 1", "line": 1, "column": 11, "width": 1},
        "was": [{"value": 100, "place": {"file": "recipe.yaml", "line": 11, "column": 14, "width": 3}}],
    }
    assert values["vars.long"]["value"].endswith("whole one either")
    assert values["vars.lr"]["refers"][0]["path"] == ["seed"] and values["vars.lr"]["means"] == 0
    assert values["run.grace"]["kind"] == "file" and values["name"]["place"] is None


def test_a_wrong_recipe_is_printed_with_its_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.yaml").write_text("groups: {train: {ranks: x, device_type: cpu}}\nrun: {steps: 3}\n")
    code, out, err = output(capsys, "wrong.yaml", "run.steps=4")
    assert code == 1 and "error[MC102]" in err and "{ranks: x, device_type: cpu}" in out and "steps: 4" in out
    code, out, err = output(capsys, "wrong.yaml", origins=True)
    assert code == 1 and "groups.train.ranks = x" in out and "error[MC102]" in err


def test_what_cannot_be_read_exits_with_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "absent.yaml", origins=True)[:2] == (3, "")
    (folder / "layout" / "fsdp.yaml").write_text("a: [1\n")
    code, out, err = output(capsys, "recipe.yaml")
    assert code == 3 and "layout/fsdp.yaml" in err
    assert "_target_: arithmetic.Actor" in out, "the rest is printed"
    assert output(capsys, "recipe.yaml", format="xml")[0] == 2


def test_what_is_no_number_is_text_in_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "recipe.yaml", "vars.lr=nan", format="json")[1]
    assert json.loads(out, parse_constant=lambda constant: pytest.fail(constant))["vars"]["lr"] == "nan"


# No secret in any output, nor in a file of a run that need not have it

TOKENS = [f"{start}{MARK}{MARK}" for start in ("hf_", "sk-", "sk-ant-", "ghp_", "xoxb-", "glpat-")]
SECRETS = f"""\
vars: {{hf: {MARK}a, plain: x, models: [{", ".join(TOKENS)}], note: "pull {TOKENS[0]} now"}}
groups:
  train: {{ranks: 2, device_type: cpu, env: {{HF_TOKEN: {MARK}b, OTHER: "${{vars.hf}}", KEPT_TOKEN: "${{oc.env:KEPT}}", PLAIN: {TOKENS[1]}}}}}
  script: {{ranks: 1, device_type: cpu, program: run.py, args: [--token, {MARK}c, "--api-key={MARK}d", "${{vars.hf}}", --lr, "3", {TOKENS[3]}]}}
components:
  prompts: {{_target_: arithmetic.Prompts, group: train}}
  actor: {{_target_: arithmetic.Actor, group: train}}
pipeline:
  batch: {{call: prompts.next, samples: 8}}
  metrics: {{call: actor.update, in: batch}}
run: {{steps: 1, dir: "${{oc.env:SCRATCH}}"}}
"""
ENVIRONMENT = {"KEPT": f"{MARK}e", "SCRATCH": "scratch-folder", "MY_PASSWORD": f"{MARK}f"}
GIVEN = [f"+vars.token={MARK}g", "+vars.auth=${vars.hf}", f"+vars.more={TOKENS[2]}"]


@pytest.fixture
def secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "recipe.yaml").write_text(SECRETS)
    (folder / "run.py").touch()
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.mark.parametrize(("code", "more"), [(0, []), (1, [f"components.actor.token={MARK}", "run.steps=x"])])
def test_no_command_shows_a_secret(
    code: int, more: list[str], secrets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*GIVEN, *more]
    for format in FORMATS:
        assert validate(["recipe.yaml", *overrides], Options(format)) == code
    for origins, format in PRINTED:
        assert config("recipe.yaml", overrides, origins, format) == code
    for format in PICTURES:
        assert show("recipe.yaml", overrides, Drawn(format)) == code
    show("recipe.yaml", overrides, Drawn(rank="script:0"))
    show("recipe.yaml", overrides, Drawn(diff=f"vars.x.token={MARK} groups.train.ranks=4"))
    assert launch("recipe.yaml", overrides, LaunchOptions(dry_run=True)) == code
    validate([f"+vars.token={MARK}"], Options())
    out, err = capsys.readouterr()
    assert len(out) > 10_000 and MARK not in out + err and f"pull {HIDDEN} now" in out
    assert code or f"--token {HIDDEN}" in out


def begun(*overrides: str) -> tuple[Any, Any]:
    """Returns a recipe and the new directory of its run."""
    ready = plan_of("recipe.yaml", list(overrides))
    held = attempt.begin(ready.plan, ready.composed, ready.path, None)
    os.close(held.lock)
    return ready, held.run


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_keeps_what_its_workers_need_to_itself(secrets: Path) -> None:
    ready, run = begun(*GIVEN)
    files = {path.name: path for path in run.path.rglob("*") if path.is_file()}
    holding = {name for name, path in files.items() if MARK in path.read_text()}
    assert holding == {"recipe.yaml", "plan.json"}, "it goes on from the one, and its workers read the other"
    assert {mode(files[name]) for name in holding} == {0o600}
    for text in (path.read_text() for path in files.values()):
        assert ENVIRONMENT["KEPT"] not in text and ENVIRONMENT["MY_PASSWORD"] not in text
    assert plan_of(str(run.path), []).plan == ready.plan, "and it goes on"


def test_a_run_without_secrets_is_everybodys(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE.replace("abcdefgh", '"${oc.env:HF_TOKEN}"'))
    _, run = begun()
    assert mode(run.plan) == mode(run.recipe) != 0o600


def test_a_plan_that_holds_a_secret_is_its_owners(folder: Path) -> None:
    ready = plan_of(str(GOLDEN / "base_of_all.yaml"), [])
    first, *others = ready.plan.components
    for args in ({"token": "abc"}, {"x": {"auth": ["abc"]}}, {"command": "curl --token abc"}):
        plan = replace(ready.plan, components=(replace(first, args=args), *others))
        begun = attempt.begin(plan, ready.composed, ready.path, None)
        os.close(begun.lock)
        assert mode(begun.run.plan) == 0o600, args


def test_a_bug_report_contains_no_secret(
    secrets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(secrets / "state"))
    monkeypatch.setenv("MESHCTL_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["meshctl", "validate", "recipe.yaml", f"+vars.token={MARK}g"])

    def fail(text: str) -> None:
        sources = type("Report", (), {"sources": (("conf/x.yaml", (f"api_key: {MARK}h",)),)})()
        assert sources
        raise ValueError(text)

    try:
        fail(f"invalid: '{MARK}a' {MARK}b ['--token', '{MARK}c'] {MARK}d {MARK}f {MARK}g {MARK}h")
    except ValueError as error:
        assert bug(error) == 70
    out, err = capsys.readouterr()
    (report,) = (path.read_text() for path in (secrets / "state" / "meshctl").iterdir())
    assert "ValueError" in err and "Traceback" in report and "test_config.py" in report
    assert MARK not in out + err + report


UNSEEN = "a\u202eb\u200bc\u2066d\ufeffe\U000e0041f"


def test_characters_that_do_not_show_are_escaped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quoted = json.dumps(UNSEEN).replace(r"\udb40\udc41", r"\U000e0041")
    (folder / f"run{UNSEEN}.py").touch()
    script = f's: {{ranks: 1, device_type: cpu, program: "run{quoted[1:-1]}.py", args: [{quoted}]}}'
    (folder / "recipe.yaml").write_text(f"groups: {{{script}}}\nvars: {{x: {quoted}, {quoted}: 1}}\n")
    for origins, format in PRINTED:
        assert config("recipe.yaml", [], origins, format) == 0
        out = capsys.readouterr().out
        assert not set(out) & (set(UNSEEN) - set("abcdef"))
        if format == "json":
            assert UNSEEN in repr(json.loads(out)) or json.dumps(UNSEEN)[1:-1] in json.dumps(json.loads(out))
        elif not origins:
            again = load_text(out.encode(), "x").tree
            assert again is not None and plain(again)["vars"] == {"x": UNSEEN, UNSEEN: 1}
    for format in PICTURES:
        assert show("recipe.yaml", [], Drawn(format)) == 0
        assert not set(capsys.readouterr().out) & (set(UNSEEN) - set("abcdef"))
