"""The page as text: what it contains, and that nothing in it can leave its place."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from meshctl.run.row_file import as_json
from meshctl.view.report_page.page import draw
from meshctl.view.report_page.record import RunRecord
from tests.view.report_page.made import MadeRun, done, failed, plan

HARM = '</script></style><img src=x onerror="alert(1)"><!--'


def drawn(made: MadeRun, recipe: str = "name: arithmetic\n") -> str:
    return draw(RunRecord.read(made.seen, recipe))


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


def test_the_policy_forbids_everything_else(tmp_path: Path) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', drawn(done(tmp_path / "run")))
    assert policy
    kinds = dict(part.split(" ", 1) for part in policy[1].split("; "))
    assert kinds["default-src"] == "'none'" and kinds["script-src"].startswith("'sha256-")
    assert "unsafe" not in policy[1] and "http" not in policy[1]
