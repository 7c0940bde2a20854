"""`meshctl test RECIPE`: runs a recipe on CPU and compares its metrics with those of a kept run.

    meshctl test sft.yaml run.steps=4 --update     writes sft.expected.jsonl beside the recipe
    meshctl test sft.yaml                          the same run again, with the overrides of the file

The first line of the file has the overrides and the environment; the others are rows of `metrics.jsonl`. In
the same environment numbers are equal digit for digit. Elsewhere whole numbers are, and the others within
`TOLERANCE`. Exit codes: 0 equal, 1 different, 2 wrong usage, otherwise that of the launch.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshctl.cli import launch
from meshctl.cli.load import Unreadable, plan_of, resolve_source
from meshctl.cli.output import refuse, why
from meshctl.cli.validate import draw
from meshctl.diagnostics import RecipeError
from meshctl.run.directory import write_whole
from meshctl.run.metrics import rows_of
from meshctl.text.english import counted, listed

TOLERANCE = 1e-3
"""The greatest difference of two numbers, of those above 1 in proportion to them."""
SUFFIX = ".expected.jsonl"
TIMES = re.compile(r"(^|[./])(time|seconds|\w+_seconds|\w+_per_second)$")
"""Metrics that no two runs have in common."""
Row = Mapping[str, Any]


def test(recipe: str, overrides: Sequence[str], update: bool) -> int:
    """Runs a recipe and compares it, or with `update` keeps its metrics. Returns the exit code."""
    kept = Path(recipe).with_suffix(SUFFIX)
    try:
        head, expected = _read(kept) if kept.exists() and not update else ({}, [])
    except (OSError, ValueError) as error:
        return refuse(f"{kept} cannot be read: {why(error)}; --update writes it anew")
    if not head and not update:
        return refuse(f"there is no {kept}: --update writes it")
    overrides = [*map(str, head.get("overrides", [])), *overrides]
    try:
        given = [*overrides, *_on_cpu(recipe, overrides)]
    except (RecipeError, Unreadable) as error:
        draw(error.report, sys.stderr)
        return 1 if isinstance(error, RecipeError) else 3
    except ValueError as error:
        return refuse(str(error))
    code, rows = _run(recipe, given)
    if code:
        return code
    from meshctl.runtime.seeding import arithmetic

    here = arithmetic()
    if update:
        lines = [{"overrides": overrides, **here}, *rows]
        write_whole(kept, "".join(json.dumps(line) + "\n" for line in lines))
        print(f"wrote {kept}: {counted(len(rows), 'step')}")
        return 0
    changed = [name for name in here if head.get(name) != here[name]]
    if changed:
        facts = ", ".join(f"{name} {head.get(name)}, here {here[name]}" for name in changed)
        print(f"note: numbers are compared within {TOLERANCE:g}, as the environment differs: {facts}")
    tolerance = TOLERANCE if changed else 0.0
    if difference := next(differences(expected, rows, tolerance), ""):
        print(f"{recipe}: {difference}; --update keeps the new numbers")
        return 1
    numbers = sum(len(row) - 1 for row in expected)
    how = f"within {tolerance:g}" if changed else "digit for digit"
    print(f"{recipe}: {counted(len(rows), 'step')}, {counted(numbers, 'number')} equal {how}")
    return 0


def differences(expected: Sequence[Row], found: Sequence[Row], tolerance: float) -> Iterator[str]:
    """Yields the differences of two runs, in the order of the steps."""
    for before, now in zip(expected, found, strict=False):
        for name in dict.fromkeys((*before, *now)):
            one, other = before.get(name), now.get(name)
            if name not in now or name not in before or not _is_equal(one, other, tolerance):
                stage, _, metric = name.rpartition(".")
                where = f"step {before.get('step')}, stage {stage or '-'}, `{metric}`"
                yield f"{where}: {_shown(before, name)} before, {_shown(now, name)} now"
    if len(expected) != len(found):
        yield f"{counted(len(expected), 'step')} before, {len(found)} now"


def _is_equal(one: Any, other: Any, tolerance: float) -> bool:
    are_numbers = all(isinstance(value, (int, float)) for value in (one, other))
    if not tolerance or not are_numbers or float(one).is_integer():
        return bool(one == other)
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _shown(row: Row, name: str) -> str:
    return json.dumps(row[name]) if name in row else "nothing"


def _read(kept: Path) -> tuple[Row, list[Row]]:
    head, *rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    if not all(isinstance(row, dict) for row in (head, *rows)):
        raise ValueError("a line is not a JSON object")
    return head, rows


def _on_cpu(recipe: str, overrides: Sequence[str]) -> list[str]:
    """Returns overrides that put all groups on CPU. Raises `RecipeError`, `Unreadable`, and `ValueError` for
    a recipe whose numbers differ from run to run."""
    name, held = resolve_source(recipe)
    plan = plan_of(name, [*overrides], held).plan
    if free := [block.name for block in plan.blocks if block.take]:
        reason = "takes what is finished first, so its numbers differ from run to run"
        raise ValueError(f"{recipe} cannot be tested: block {listed(free)} {reason}")
    return [f"groups.{group.name}.device_type=cpu" for group in plan.groups if group.device_type != "cpu"]


def _run(recipe: str, overrides: list[str]) -> tuple[int, list[Row]]:
    """Launches a recipe in another process. Returns its exit code, and its rows without times."""
    folder, code = Path(tempfile.mkdtemp(prefix="meshctl-test-")), 0
    try:
        code = launch.launch_in(folder, recipe, overrides)
        rows = [row for file in folder.glob("*/*/metrics.jsonl") for row in rows_of(file)]
    finally:
        if not code:
            shutil.rmtree(folder, ignore_errors=True)
    if code:
        text = (folder / launch.OUTPUT).read_text(encoding="utf-8", errors="replace")
        print(f"{text.rstrip()}\nerror: {recipe} has failed; its run is kept in {folder}", file=sys.stderr)
    return code, [{key: value for key, value in row.items() if not TIMES.search(key)} for row in rows]
