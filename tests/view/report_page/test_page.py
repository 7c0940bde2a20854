"""The page as text: what it contains, and that nothing in it can leave its place."""

from __future__ import annotations

import platform
import random
import re
import socket
from html.parser import HTMLParser
from pathlib import Path

from meshctl.run.events import Event
from meshctl.run.launcher import record_launch
from meshctl.run.metrics import as_json
from meshctl.view.report_page.page import draw
from meshctl.view.report_page.record import RunRecord
from tests.view.report_page.made import BEGAN, MadeRun, done, failed, plan, resized

HARM = '</script></style><img src=x onerror="alert(1)"><!--'


def drawn(made: MadeRun, recipe: str = "name: arithmetic\n") -> str:
    return draw([RunRecord.read(made.seen, recipe)])


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        for name, value in attrs:
            assert not name.startswith("on") and name != "style", (tag, name)
            assert name not in ("src", "href") or str(value).startswith(("#", "data:")), (tag, value)


def test_a_run_that_has_ended_well(tmp_path: Path) -> None:
    text = drawn(done(tmp_path / "run"))
    for part in ("Topology", "Timeline", "Metrics", "update.loss", "step 12", "Recipe", "name: arithmetic"):
        assert part in text
    assert 'class="state done"' in text and "checkpoint of step 12" in text and 'class="gap"' in text


def test_a_run_with_restarts_and_other_sizes(tmp_path: Path) -> None:
    text = drawn(resized(tmp_path / "run"))
    assert "<td>rollout 2, train 2</td>" in text and "<td>rollout 2, train 1</td>" in text
    assert "<dt>workers</dt><dd>3 of 4 in 2 groups</dd>" in text and "<dt>restarts</dt><dd>2</dd>" in text
    assert "<title>restarted after step 4, train with 1 of 2 workers: train:1 failed" in text
    assert "<title>rollout restarts alone: rollout:1 failed in stage rollouts, step 3" in text
    assert re.search(r"<li>[^<]*: rollout restarts alone: rollout:1 failed in stage rollouts", text)


def test_a_run_that_has_failed(tmp_path: Path) -> None:
    text = drawn(failed(tmp_path / "run"))
    assert "train:1 failed in stage update, step 5: ValueError: boom" in text
    assert "steps that ran again" in text and "the last words" in text and "restarted after step 4" in text
    assert "hf_abcdefghijklmnopqrstuvwxyz" not in text and "&lt;redacted&gt;" in text


def test_a_run_without_a_step_or_an_event(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run")
    assert "Topology" in drawn(made) and "Timeline" not in drawn(made)
    made.launcher("launched", 0.0, attempt=0)
    made.launcher("over", 1.0, code=4, reason="no port is free")
    text = drawn(made)
    assert "no port is free" in text and "Metrics" not in text


def test_no_text_of_a_run_is_markup(tmp_path: Path) -> None:
    plain = Tags(drawn(failed(tmp_path / "plain")))
    made = failed(tmp_path / "run", plan=plan(name=HARM, stages=(HARM, f"{HARM} two")))
    made.launcher("warning", 4.0, text=HARM)
    made.worker("fault", "train", 0, 4.0, step=5, stage=HARM, value={"error": HARM, "traceback": HARM})
    with made.run.metrics.open("a") as file:
        file.write(as_json({"step": 7, "time": 3.5, f"a.{HARM}": 1.0}))
    text = drawn(made, HARM)
    assert "<img" not in text and 'onerror="' not in text and text.count("</script>") == 2
    assert set(Tags(text).found) == set(plain.found)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    kinds = dict(part.split(" ", 1) for part in policy[1].split("; "))
    assert kinds["default-src"] == "'none'" and kinds["script-src"].startswith("'sha256-")
    assert "unsafe" not in policy[1] and "http" not in policy[1]


def test_two_runs_on_one_page(tmp_path: Path) -> None:
    one, two = done(tmp_path / "runs" / "a"), failed(tmp_path / "runs" / "b")
    records = [
        RunRecord.read(one.seen, "name: x\nrun: {steps: 3}\n"),
        RunRecord.read(two.seen, "name: x\nrun: {steps: 5}\n"),
    ]
    text = draw(records)
    assert "<del>- run: {steps: 3}\n</del><ins>+ run: {steps: 5}\n</ins>" in text
    assert 'class="curve k0"' in text and 'class="curve k1"' in text
    assert text.count('class="state done"') == 1 == text.count('class="state failed"')
    assert "runs/a and runs/b" in text and "killed by SIGKILL" in text
    Tags(text)
    same = draw([records[0], RunRecord.read(one.seen, records[0].recipe)])
    assert "The two recipes are the same." in same


def test_what_was_launched_and_how_much_memory_it_took(tmp_path: Path) -> None:
    made = done(tmp_path / "run")
    record_launch(made.run, ["run.steps=5", "components.actor.args.api_key=abcdef"])
    for rank in (0, 1):
        for at in (1.0, 2.0):
            value = {"resident": 10**9 * (rank + at), "peak": 3 * 10**9 + rank}
            made.worker("memory", "train", rank, at, step=2, value=value)
    text = drawn(made, "name: x\nrun:\n  steps: 5\n")
    assert ">run.steps=5</mark>" in text and "abcdef" not in text
    assert "train: main memory, the most of 2 ranks" in text
    assert platform.python_version() in text and socket.gethostname() in text


def test_a_long_run_of_many_workers_is_a_small_page(tmp_path: Path) -> None:
    """16 workers with different times, whose old steps are folded, and 20,000 rows of two metrics."""
    made, draws = MadeRun(tmp_path / "run", plan(8)), random.Random(0)
    made.launcher("launched", 0.0, attempt=0)
    for group, stage in (("rollout", "rollouts"), ("train", "update")):
        for rank in range(8):
            for name, steps, count in (
                ("steps", range(100, 19_000, 100), 100),
                ("step", range(19_900, 20_001), 1),
            ):
                parts = {"stages": {stage: draws.random() * 0.6 * count}, "waits": {stage: 0.2 * count}}
                made.write(
                    f"{group}-{rank}",
                    *(
                        Event(name, group, rank, step, time=BEGAN + step,
                              value={"seconds": count, "first": step - count + 1, "count": count, **parts})
                        for step in steps
                    ),
                )  # fmt: skip
    rows = (
        {"step": n, "time": n, "update.a": draws.random(), "update.b": draws.random()}
        for n in range(1, 20_001)
    )
    made.run.metrics.write_text("".join(map(as_json, rows)))
    assert 100_000 < len(drawn(made).encode()) < 1_500_000
