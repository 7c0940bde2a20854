"""`meshctl show-topology`: its picture and output file, exit codes, and one clear message for every wrong
option."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli.load import plan_of
from meshctl.cli.show_topology import Options, show
from meshctl.plan.views.selection import of_component, of_dim, of_node, of_rank
from meshctl.plan.views.topology import topology
from meshctl.run.directory import RunDir, Start
from meshctl.view.pictures import FORMATS
from meshctl.view.pictures.json import data
from tests.paths import ROOT

GOLDEN = ROOT / "tests" / "plan" / "golden"
CLASSES = ROOT / "tests" / "recipe" / "golden" / "arithmetic.py"
COMMAND = [sys.executable, "-m", "meshctl", "show-topology", "two_nodes.yaml"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory has the recipe `two_nodes.yaml`."""
    (tmp_path / "two_nodes.yaml").write_text((GOLDEN / "two_nodes.yaml").read_text())
    (tmp_path / "arithmetic.py").write_text(CLASSES.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


def shows(capsys: pytest.CaptureFixture[str], *overrides: str, **options: Any) -> tuple[int, str, str]:
    code = show("two_nodes.yaml", list(overrides), Options(**options))
    return code, *capsys.readouterr()


def data_of(capsys: pytest.CaptureFixture[str], *overrides: str, **options: Any) -> Any:
    code, output, wrong = shows(capsys, *overrides, format="json", **options)
    assert (code, wrong) == (0, "")
    return json.loads(output)


def plain(value: object) -> Any:
    return json.loads(json.dumps(data(value)))


# What it draws


def test_it_draws_the_very_plan_that_launch_runs(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of("two_nodes.yaml", ["groups.judge.ranks=2"]).plan
    drawn = data_of(capsys, "groups.judge.ranks=2")
    assert drawn["digest"] == plan.digest
    assert drawn | {"warnings": []} == plain(topology(plan))
    assert [warning["code"] for warning in drawn["warnings"]] == ["MC320"]


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_format_draws_the_whole(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, wrong = shows(capsys, format=format)
    assert (code, wrong) == (0, "") and output.endswith("\n") and "actor" in output
    assert shows(capsys, format=format) == (0, output, "")


def test_text_is_the_default_format(capsys: pytest.CaptureFixture[str]) -> None:
    code, output, wrong = shows(capsys)
    assert (code, wrong) == (0, "") and output == shows(capsys, format="text")[1]
    assert max(map(len, output.splitlines())) <= 80 and "\x1b" not in output and "MC320" in output


def test_zooms_are_of_the_same_plan(capsys: pytest.CaptureFixture[str]) -> None:
    ready = plan_of("two_nodes.yaml", [])
    drawn = topology(ready.plan)
    assert data_of(capsys, component="actor") == plain(of_component(ready.plan, drawn, "actor"))
    assert data_of(capsys, dim="tp") == plain(of_dim(ready.plan, drawn, "tp"))
    assert data_of(capsys, dim="tp", component="actor") == plain(of_dim(ready.plan, drawn, "tp", "actor"))
    assert data_of(capsys, node=1) == plain(of_node(ready.plan, drawn, 1))
    assert data_of(capsys, rank="train:3") == plain(of_rank(ready.plan, drawn, "train", 3))
    assert data_of(capsys, rank="judge:1", samples=30) == plain(of_rank(ready.plan, drawn, "judge", 1, 30))


ZOOMS: list[dict[str, Any]] = [
    {"component": "actor"},
    {"dim": "tp"},
    {"node": 0},
    {"rank": "train:3"},
    {"dim": "tp", "component": "actor"},
]


@pytest.mark.parametrize("zoom", ZOOMS, ids=str)
@pytest.mark.parametrize("format", ["text", "html"])
def test_zooms_are_drawn_or_chosen(
    zoom: dict[str, Any], format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output, wrong = shows(capsys, format=format, **zoom)
    assert (code, wrong) == (0, "") and output.endswith("\n") and output != shows(capsys, format=format)[1]


@pytest.mark.parametrize("zoom", ZOOMS, ids=str)
@pytest.mark.parametrize("format", ["mermaid", "svg"])
def test_pictures_of_the_whole_refuse_a_zoom(
    zoom: dict[str, Any], format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output, wrong = shows(capsys, format=format, **zoom)
    assert (code, output) == (2, "")
    assert wrong.startswith(f"error: `{format}` shows only the whole plan, not `--") and wrong.endswith(
        "; use `text`, `json` or `html`\n"
    )


def test_the_run_directory_of_a_run_is_a_recipe(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = plan_of("two_nodes.yaml", [])
    run = RunDir.create(here, "two-nodes", "now")
    run.write_start(Start(ready.path))
    run.recipe.write_text(ready.composed)
    run.plan.write_text(ready.plan.to_json())
    assert show("two-nodes/now", [], Options(format="json")) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == ready.plan.digest


# Differences


def test_the_other_may_be_a_recipe_overrides_or_both(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "o t.yaml").write_text(
        (here / "two_nodes.yaml").read_text().replace("judge: {ranks: 3", "judge: {ranks: 2")
    )
    by_override = data_of(capsys, diff="groups.judge.ranks=2")
    assert by_override["changes"] and by_override == data_of(capsys, diff="'o t.yaml'")
    assert data_of(capsys, diff="'o t.yaml' groups.judge.ranks=3")["changes"] == []
    assert data_of(capsys, "groups.judge.ranks=2", diff="")["digests"] == by_override["digests"][::-1]
    code, output, wrong = shows(capsys, diff="groups.judge.ranks=2")
    assert (code, wrong) == (0, "") and "judge" in output


def test_mistakes_of_the_other_recipe_are_reported_as_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, output, wrong = shows(capsys, diff="groups.judge.ranks=x")
    assert (code, output) == (1, "") and wrong.startswith("in --diff groups.judge.ranks=x:\nerror[MC102]: ")
    code, output, wrong = shows(capsys, diff="absent.yaml")
    assert (code, output) == (3, "") and wrong.startswith(
        "in --diff absent.yaml:\nerror[MC001]: recipe `absent.yaml` does not exist"
    )


# What is wrong


def test_errors_are_drawn_as_validate_draws_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, output, wrong = shows(capsys, "components.actor.parallel.tp_size=4")
    assert (code, output) == (1, "") and "error[MC410]: " in wrong and "--> override 1:1:35\n" in wrong
    assert show("absent.yaml", [], Options()) == 3
    assert capsys.readouterr().err.startswith("error[MC001]: recipe `absent.yaml` does not exist")


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"format": "pdf"},
        "format `pdf` does not exist; available: `text`, `json`, `mermaid`, `svg` and `html`",
    ),
    ({"rank": "train:99"}, "group `train` has no rank 99; it has the ranks 0 to 5"),
    (
        {"rank": "nope:0"},
        "group `nope` does not exist; available: `rollout`, `critic`, `train`, `spare` and `judge`",
    ),
    ({"rank": "trian:0"}, "group `trian` does not exist; did you mean `train`?"),
    ({"rank": "train"}, "`--rank` must be GROUP:N, such as `train:0`, not `train`"),
    ({"rank": "train:-1"}, "`--rank` must be GROUP:N, such as `train:0`, not `train:-1`"),
    ({"rank": ":1"}, "`--rank` must be GROUP:N, such as `train:0`, not `:1`"),
    ({"component": "acter"}, "component `acter` does not exist; did you mean `actor`?"),
    (
        {"component": "\x1b[31m"},
        "component `?[31m` does not exist; available: `prompts`, `sampler`, `judge`, `values` and `actor`",
    ),
    ({"dim": "tp", "component": "acter"}, "component `acter` does not exist; did you mean `actor`?"),
    ({"dim": "fsdpp"}, "dim `fsdpp` does not exist; did you mean `fsdp`?"),
    ({"node": 2}, "node 2 does not exist; the nodes are 0 to 1"),
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
    (
        {"samples": 8},
        "`--samples` needs `--rank`: it is the number of samples in a batch for that rank",
    ),
    (
        {"out": "x.PNG"},
        "no format has the suffix `.png`; use `.svg` or `.html`, which a browser displays and prints",
    ),
    ({"samples": 0, "rank": "train:0"}, "`--samples` must be a positive integer, not 0"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_question_has_one_answer(
    options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shows(capsys, **options) == (2, "", f"error: {message}\n")


def test_a_rank_of_too_many_digits_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, wrong = shows(capsys, rank=f"train:{'9' * 5000}")
    assert code == 2 and wrong.startswith("error: `--rank` must be GROUP:N")


# Where to


def test_a_file_is_written_completely_and_reported_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, format in (
        ("a b.svg", "svg"),
        ("new/page.html", "html"),
        ("x.json", "json"),
        ("x.mmd", "mermaid"),
        ("x", "text"),
    ):
        code, output, wrong = shows(capsys, out=name)
        text = (here / name).read_text(encoding="utf-8")
        assert (code, output, wrong) == (0, "", f"wrote {name}: {format}, {len(text.encode())} bytes\n")
        assert text == shows(capsys, format=format)[1]
    assert (
        shows(capsys, out="y.json", format="text")[0] == 0
        and (here / "y.json").read_text() == (here / "x").read_text()
    )
    assert not list(here.rglob(".*"))


def test_a_file_that_cannot_be_written_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "folder").mkdir()
    assert shows(capsys, out="folder") == (2, "", "error: `folder` cannot be written: it is a folder\n")
    assert shows(capsys, out="two_nodes.yaml/x") == (
        2,
        "",
        "error: `two_nodes.yaml/x` cannot be written: its folder is a file\n",
    )
    code, _, wrong = shows(capsys, out="x" * 300)
    assert code == 2 and wrong.count("\n") == 1


def test_what_is_no_file_is_written_to_and_not_replaced(here: Path) -> None:
    os.mkfifo(here / "pipe")
    with subprocess.Popen(
        [*COMMAND, "--format", "json", "--out", "pipe"], cwd=here, stderr=subprocess.DEVNULL
    ) as process:
        drawn = json.loads((here / "pipe").read_text())
        assert process.wait() == 0
    assert drawn["name"] == "two-nodes" and (here / "pipe").is_fifo()


def test_standard_output_by_its_name_and_one_that_is_full(here: Path) -> None:
    piped = subprocess.run([*COMMAND, "--out", "/dev/stdout"], cwd=here, capture_output=True, text=True)
    assert (
        piped.returncode == 0
        and piped.stdout.startswith("two-nodes")
        and piped.stderr.startswith("wrote /dev/stdout: text")
    )
    with Path("/dev/full").open("w") as full:
        failed = subprocess.run(COMMAND, cwd=here, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (failed.returncode, failed.stderr) == (
        4,
        "error: the output was not written completely: no space left on device\n",
    )


def test_a_link_stays_a_link(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "real.json").write_text("old")
    (here / "link.json").symlink_to("real.json")
    assert shows(capsys, out="link.json")[0] == 0
    assert (here / "link.json").is_symlink() and json.loads((here / "real.json").read_text())[
        "name"
    ] == "two-nodes"


def test_a_reader_that_has_seen_enough_is_no_error(here: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--format", "html"], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 0


def test_a_terminal_that_knows_few_letters_is_no_error(here: Path) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(COMMAND, cwd=here, env=environ, capture_output=True)
    assert (
        (done.returncode, done.stderr) == (0, b"") and b"rollout" in done.stdout and b"?" not in done.stdout
    )


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
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in on_terminal(monkeypatch) and "\x1b[" in on_terminal(monkeypatch, rank="train:0")
    assert "\x1b[" not in on_terminal(monkeypatch, format="json")
    on_terminal(monkeypatch, out="x.txt")
    assert "\x1b[" not in (here / "x.txt").read_text()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in on_terminal(monkeypatch)
    widths = []
    for columns in (60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        widths.append(max(map(len, on_terminal(monkeypatch).splitlines())))
        assert widths[-1] <= columns
    assert widths[0] < widths[1]


# The command line


def test_the_command_accepts_all_of_it(here: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "pipeline.batch.samples=128", "--rank", "rollout:1", "-f", "json"],
        cwd=here,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["stages"][0]["samples"] == [32, 64]
    assert subprocess.run([*COMMAND, "--node", "x"], cwd=here, capture_output=True, text=True).returncode == 2
