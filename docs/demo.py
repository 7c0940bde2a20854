"""Draws docs/demo.svg, the picture in the README, from a finished run: `python docs/demo.py RUN_DIR`."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.view.live.dashboard import Picture
from meshctl.view.live.state_file import read_state
from meshctl.view.live.summary import ending

# Fonts of every viewer, because the drawing must not fetch any.
FONTS = ("Fira Code", "DejaVu Sans Mono, Menlo, Consolas, monospace")


def draw(run: RunDir) -> str:
    plan = Plan.read(run.plan)
    state, _ = read_state(plan, run)
    console = Console(
        record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print("$ make demo", style="bold", highlight=False)
    console.print(Picture.of(state, state.last[1] if state.last else state.seconds()))
    console.print()
    console.print(ending(state), highlight=False)
    svg = console.export_svg(title=plan.name, unique_id="demo")
    start, end = svg.index("@font-face"), svg.index(".demo-matrix")
    # Without this attribute, some viewers drop leading spaces and the alignment of numbers.
    return (svg[:start] + svg[end:]).replace(*FONTS).replace("<text ", '<text xml:space="preserve" ')


if __name__ == "__main__":
    Path(__file__).with_name("demo.svg").write_text(
        draw(RunDir(Path(sys.argv[1]).resolve())), encoding="utf-8"
    )
