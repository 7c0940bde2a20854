"""The size of the house: each room has a budget of lines. A budget is lowered when its room shrinks, and raised
only by a commit that says why."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import networkx

from tests.paths import PACKAGE, ROOT

ROOMS = {
    "": 938,
    "agents": 1589,
    "cli": 5252,
    "components": 648,
    "data": 2837,
    "diagnostics": 269,
    "engines": 12203,
    "foreign": 1472,
    "hf": 5895,
    "losses": 1157,
    "network": 460,
    "plan": 2592,
    "recipe": 16612,
    "rewards": 734,
    "run": 3881,
    "runtime": 15903,
    "sampling": 516,
    "text": 630,
    "topology": 3773,
    "trackers": 1074,
    "view": 7518,
    "vllm": 870,
}
"""Folder of `meshctl/` -> lines of Python. The empty name stands for the modules at the top."""
TOTAL = 86_823
TESTS = 64_334
"""Lines of Python in `tests/`."""
SMALL = 50
"""Modules below `SMALL_LINES` lines that exactly one other module imports."""
SMALL_LINES = 120
CIRCLES = 0
"""Groups of modules that import one another, where imports for types alone count, too."""


def lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module of the package imports, also inside functions and for types alone."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = set[str]()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    names.add(full if full in paths else str(node.module))
        found[module] = names & set(paths) - {module}
    return found


def test_each_room_stays_within_its_budget() -> None:
    sizes = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        sizes[room(path)] += lines(path)
    over = {name: (size, ROOMS.get(name, 0)) for name, size in sizes.items() if size > ROOMS.get(name, 0)}
    assert not over, "room: (lines, budget)"
    assert set(sizes) == set(ROOMS)
    assert sizes.total() <= TOTAL


def test_the_tests_stay_within_their_budget() -> None:
    assert sum(lines(path) for path in (ROOT / "tests").rglob("*.py")) <= TESTS


def test_few_modules_are_fragments_of_another() -> None:
    importers = Counter(target for targets in imports().values() for target in targets)
    small = [
        path
        for path in PACKAGE.rglob("*.py")
        if path.stem != "__init__"
        and lines(path) < SMALL_LINES
        and importers[".".join(path.relative_to(ROOT).with_suffix("").parts)] == 1
    ]
    assert len(small) <= SMALL


def test_modules_do_not_import_one_another_in_circles() -> None:
    graph = networkx.DiGraph(
        [(module, target) for module, targets in imports().items() for target in targets]
    )
    circles = [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]
    assert len(circles) <= CIRCLES, circles
