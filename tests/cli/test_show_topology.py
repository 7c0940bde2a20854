"""`meshctl show-topology`: what it draws and where to, exit codes, and one message for every wrong option."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from meshctl.cli.load import plan_of
from meshctl.cli.show_topology import Options, show
from meshctl.plan.views.selection import of_component, of_dim, of_node, of_rank
from meshctl.plan.views.topology import topology
from meshctl.run.directory import RunDir, Start
from meshctl.view.pictures import FORMATS
from meshctl.view.pictures.json import data
from tests.cli.commands import code_of, meshctl
from tests.paths import PLAN_GOLDEN, RECIPE_GOLDEN


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory has the recipe `two_nodes.yaml`."""
    for file in (PLAN_GOLDEN / "two_nodes.yaml", RECIPE_GOLDEN / "arithmetic.py"):
        (tmp_path / file.name).write_text(file.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


def shows(capsys: pytest.CaptureFixture[str], *overrides: str, **options: Any) -> tuple[int, str, str]:
    code = code_of(show, "two_nodes.yaml", list(overrides), Options(**options))
    return code, *capsys.readouterr()


def data_of(capsys: pytest.CaptureFixture[str], *overrides: str, **options: Any) -> Any:
    code, output, wrong = shows(capsys, *overrides, format="json", **options)
    assert (code, wrong) == (0, "")
    return json.loads(output)


def plain(value: object) -> Any:
    return json.loads(json.dumps(data(value)))


def test_it_draws_the_very_plan_that_launch_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = plan_of("two_nodes.yaml", ["groups.judge.ranks=2"])
    drawn = data_of(capsys, "groups.judge.ranks=2")
    assert drawn["digest"] == ready.plan.digest
    assert drawn | {"warnings": []} == plain(topology(ready.plan))
    assert [warning["code"] for warning in drawn["warnings"]] == ["MC320"]
    run = RunDir.create(here, "two-nodes", "now")
    run.write_start(Start(ready.path))
    run.recipe.write_text(ready.composed)
    run.plan.write_text(ready.plan.to_json())
    assert show("two-nodes/now", [], Options(format="json")) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == ready.plan.digest


ZOOMS: list[dict[str, Any]] = [{"component": "actor"}, {"node": 0}, {"dim": "tp", "component": "actor"}]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_format_draws_the_whole_and_text_json_and_html_a_part(
    format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = shows(capsys, format=format)
    assert (whole[0], whole[2]) == (0, "") and whole[1].endswith("\n") and "actor" in whole[1]
    for zoom in ZOOMS:
        code, output, wrong = shows(capsys, format=format, **zoom)
        if format in ("mermaid", "svg"):
            assert (code, output) == (2, "")
            assert wrong.startswith(f"error: `{format}` shows only the whole plan, not `--")
            assert wrong.endswith("; use `text`, `json` or `html`\n")
        else:
            assert (code, wrong) == (0, "") and output.endswith("\n") and output != whole[1]
    if format == "text":
        assert shows(capsys) == whole and "\x1b" not in whole[1] and "MC320" in whole[1]
        assert max(map(len, whole[1].splitlines())) <= 80


def test_zooms_are_of_the_same_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of("two_nodes.yaml", []).plan
    drawn = topology(plan)
    assert data_of(capsys, component="actor") == plain(of_component(plan, drawn, "actor"))
    assert data_of(capsys, dim="tp") == plain(of_dim(plan, drawn, "tp"))
    assert data_of(capsys, dim="tp", component="actor") == plain(of_dim(plan, drawn, "tp", "actor"))
    assert data_of(capsys, node=1) == plain(of_node(plan, drawn, 1))
    assert data_of(capsys, rank="judge:1", samples=30) == plain(of_rank(plan, drawn, "judge", 1, 30))


def test_the_other_may_be_a_recipe_overrides_or_both(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (here / "two_nodes.yaml").read_text()
    (here / "o t.yaml").write_text(text.replace("judge: {ranks: 3", "judge: {ranks: 2"))
    by_override = data_of(capsys, diff="groups.judge.ranks=2")
    assert by_override["changes"] and by_override == data_of(capsys, diff="'o t.yaml'")
    assert data_of(capsys, diff="'o t.yaml' groups.judge.ranks=3")["changes"] == []
    assert data_of(capsys, "groups.judge.ranks=2", diff="")["digests"] == by_override["digests"][::-1]
    code, output, wrong = shows(capsys, diff="groups.judge.ranks=2")
    assert (code, wrong) == (0, "") and "judge" in output


@pytest.mark.parametrize(
    ("overrides", "diff", "code", "begin"),
    [
        (["components.actor.parallel.tp_size=4"], None, 1, "error[MC410]: "),
        ([], "groups.judge.ranks=x", 1, "in --diff groups.judge.ranks=x:\nerror[MC102]: "),
        ([], "absent.yaml", 3, "in --diff absent.yaml:\nerror[MC001]: recipe `absent.yaml` does not exist"),
    ],
)
def test_errors_are_drawn_as_validate_draws_them(
    overrides: list[str], diff: str | None, code: int, begin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done, output, wrong = shows(capsys, *overrides, diff=diff)
    assert (done, output) == (code, "") and begin in wrong


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"format": "pdf"},
        "format `pdf` does not exist; available: `text`, `json`, `mermaid`, `svg` and `html`",
    ),
    ({"rank": "trian:0"}, "group `trian` does not exist; did you mean `train`?"),
    ({"rank": "train:-1"}, "`--rank` must be GROUP:N, such as `train:0`, not `train:-1`"),
    (
        {"component": "\x1b[31m"},
        "component `?[31m` does not exist; available: `prompts`, `sampler`, `judge`, `values` and `actor`",
    ),
    ({"dim": "fsdpp"}, "dim `fsdpp` does not exist; did you mean `fsdp`?"),
    (
        {"rank": "train:0", "node": 1},
        "`--node` and `--rank` show different parts; use one of them (only `--dim` and `--component` combine)",
    ),
    ({"diff": "seed=1", "node": 1}, "`--diff` compares whole plans, not `--node`"),
    ({"diff": "seed=1", "format": "svg"}, "`svg` shows one plan, not a difference; use `text` or `json`"),
    (
        {"diff": "'seed=1"},
        "`--diff` must be a recipe and overrides, quoted as in a shell; no closing quotation in `'seed=1`",
    ),
    ({"samples": 8}, "`--samples` needs `--rank`: it is the number of samples in a batch for that rank"),
    (
        {"out": "x.PNG"},
        "no format has the suffix `.png`; use `.svg` or `.html`, which a browser displays and prints",
    ),
    ({"out": "folder"}, "`folder` cannot be written: it is a folder"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_question_has_one_answer(
    options: dict[str, Any], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "folder").mkdir()
    assert shows(capsys, **options) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize("options", [{"rank": f"train:{'9' * 5000}"}, {"out": "x" * 300}])
def test_what_is_too_long_has_an_answer_of_one_line(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, output, wrong = shows(capsys, **options)
    assert (code, output) == (2, "") and wrong.startswith("error: `") and wrong.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "format"),
    [("a b.svg", "svg"), ("new/page.html", "html"), ("x.json", "json"), ("x.mmd", "mermaid"), ("x", "text")],
)
def test_a_file_is_written_completely_and_reported_in_one_line(
    name: str, format: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output, wrong = shows(capsys, out=name)
    text = (here / name).read_text(encoding="utf-8")
    assert (code, output, wrong) == (0, "", f"wrote {name}: {format}, {len(text.encode())} bytes\n")
    assert text == shows(capsys, format=format)[1] and not list(here.rglob(".*"))


def test_a_format_that_is_given_a_link_and_a_pipe(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "real.json").write_text("old")
    (here / "link.json").symlink_to("real.json")
    assert shows(capsys, out="link.json", format="text")[0] == 0
    assert (here / "link.json").is_symlink() and (here / "real.json").read_text().startswith("two-nodes")
    os.mkfifo(here / "pipe")
    writer = Thread(target=show, args=("two_nodes.yaml", [], Options(format="json", out="pipe")))
    writer.start()
    assert json.loads((here / "pipe").read_text())["name"] == "two-nodes"
    writer.join()
    assert (here / "pipe").is_fifo()


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def reconfigure(self, **_: object) -> None: ...


def on_terminal(monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert show("two_nodes.yaml", [], Options(**options)) == 0
    return terminal.getvalue()


def test_color_and_width_are_those_of_a_terminal(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in on_terminal(monkeypatch) and "\x1b[" in on_terminal(monkeypatch, rank="train:0")
    assert "\x1b[" not in on_terminal(monkeypatch, format="json")
    on_terminal(monkeypatch, out="x.txt")
    assert "\x1b[" not in (here / "x.txt").read_text()
    monkeypatch.setenv("NO_COLOR", "1")
    widths = []
    for columns in (60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = on_terminal(monkeypatch)
        widths.append(max(map(len, shown.splitlines())))
        assert widths[-1] <= columns and "\x1b[" not in shown
    assert widths[0] < widths[1]


def test_the_command_accepts_all_of_it_on_an_output_that_knows_few_letters(here: Path) -> None:
    zoom = ["two_nodes.yaml", "pipeline.batch.samples=128", "--rank", "rollout:1", "-f", "json"]
    done = meshctl(here, "show-topology", *zoom, "--out", "x.json")
    assert done.returncode == 0 and done.stderr.startswith("wrote x.json: json")
    assert json.loads((here / "x.json").read_text())["stages"][0]["samples"] == [32, 64]
    command = [sys.executable, "-m", "meshctl", "show-topology", "two_nodes.yaml", "--out", "/dev/stdout"]
    ascii = {**os.environ, "PYTHONIOENCODING": "ascii"}
    cold = subprocess.run(command, cwd=here, env=ascii, capture_output=True, text=True)
    assert cold.returncode == 0 and cold.stderr.startswith("wrote /dev/stdout: text")
    assert "rollout" in cold.stdout and "?" not in cold.stdout


# The plan without lost workers (`--lost`)

LOST = """
name: lost
cluster: {nodes: 2, devices_per_node: 8}
groups:
  data: {ranks: 1, device_type: cpu, nodes: 0}
  train: {ranks: 16, device_type: cuda}
components:
  prompts: {_target_: parts.Prompts, group: data}
  actor: {_target_: parts.Actor, group: train, parallel: {fsdp_size: auto, tp_size: 4}}
pipeline:
  batch: {call: prompts.next, samples: 64}
  metrics: {call: actor.update, in: batch}
run: {steps: 200, checkpoint: {every: 50}, restarts: 3, elastic: {train: {min_ranks: 8}}}
"""
LOST_PARTS = """
from meshctl import Batch, Component, endpoint

class Prompts(Component):
    @endpoint
    def next(self, samples: range) -> Batch: ...

class Actor(Component):
    @endpoint
    def update(self, batch: Batch) -> dict[str, float]: ...
"""


def shows_lost(
    here: Path, capsys: pytest.CaptureFixture[str], *lost: str, **options: Any
) -> tuple[int, str, str]:
    (here / "lost.yaml").write_text(LOST)
    (here / "parts.py").write_text(LOST_PARTS)
    code = code_of(show, "lost.yaml", [], Options(lost=lost, **options))
    return code, *capsys.readouterr()


def test_the_picture_is_that_of_the_plan_that_remains(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, picture, costs = shows_lost(here, capsys, "train:3", format="json")
    assert code == 0 and [group["workers"] for group in json.loads(picture)["groups"]] == [1, 12]
    ranks = "groups.train.ranks=[0,1,2,4,8,9,10,11,12,13,14,15]"
    assert costs.splitlines() == [
        "lost: cuda device 3",
        "goes on with 12 of 16 workers of train",
        f"overrides: {ranks} components.actor.parallel.fsdp_size=3 ~run.elastic",
    ]
    code, picture, costs = shows_lost(here, capsys, "node:1")
    assert code == 0 and "8 of 16 workers of train" in costs and "train" in picture


NO_LOSS = "must be GROUP:RANK, such as `data:0`, or `node:0`"


@pytest.mark.parametrize(
    ("lost", "code", "why"),
    [
        ("node:0", 1, "without `node:0` the run ends: `data` is not in `run.elastic`"),
        ("train:16", 2, "--lost train:16: `train` has 16 workers, from 0"),
        ("tain:1", 2, f"--lost {NO_LOSS}: tain:1"),
    ],
)
def test_a_loss_that_ends_the_run_or_is_none(
    lost: str, code: int, why: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, picture, wrong = shows_lost(here, capsys, *lost.split())
    assert (done, picture) == (code, "") and why in wrong
