"""The rules about the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipe.rules import facts

CLASSES = """
from meshctl import Batch, Component, endpoint

class Always(Component):
    @endpoint
    def next(self, samples: range) -> Batch: ...

class Sometimes(Component):
    @endpoint
    def next(self, samples: range) -> Batch | None: ...

class Unsaid(Component):
    @endpoint
    def next(self, samples: range): ...

class Counted(Always):
    def __len__(self): return 400
"""


def codes(folder: Path, sources: dict[str, str], run: str) -> list[str]:
    """`sources` maps stages, named by the class of their source, to more keys."""
    (folder / "rows.jsonl").write_text('{"a": 1}\n')
    components = "".join(
        f"  {name}: {{_target_: meshctl.components.{name}, group: g, args: {{path: rows.jsonl}}}}\n"
        if name in ("Cycle", "Rows")
        else f"  {name}: {{_target_: data.{name}, group: g}}\n"
        for name in sources
    )
    stages = "".join(
        f"  s_{name}: {{call: {name}.next, samples: 4{more}}}\n" for name, more in sources.items()
    )
    recipe = f"groups:\n  g: {{ranks: 1, device_type: cpu}}\ncomponents:\n{components}pipeline:\n{stages}run: {run}\n"
    found = facts.reported(folder, recipe, ("MC546", "MC547", "MC564", "MC565", "MC566"), data=CLASSES)
    return sorted(one.code for one in found)


@pytest.mark.parametrize(
    ("sources", "run", "expected"),
    [
        ({"Always": ""}, "{}", ["MC546"]),
        ({"Always": ""}, "{steps: 3}", []),
        ({"Sometimes": ""}, "{}", []),
        ({"Unsaid": ""}, "{}", []),
        ({"Counted": ""}, "{}", []),
        ({"Always": "", "Counted": ""}, "{}", []),
        ({"Always": "", "Counted": ", every: 2"}, "{}", ["MC546", "MC564"]),
        ({"Always": "", "Counted": ", every: 2, ends_run: true"}, "{}", []),
        ({"Always": "", "Counted": ", every: 2, ends_run: false"}, "{steps: 1}", []),
        ({"Counted": ", ends_run: false"}, "{}", ["MC546"]),
        ({"Always": "", "Counted": ", every: 2"}, "{epochs: 2}", ["MC547", "MC564"]),
        ({"Counted": ""}, "{steps: 0}", ["MC566"]),
        ({"Always": ""}, "{steps: 0}", ["MC546"]),
        ({"Counted": "", "Always": ", when: start, ends_run: true"}, "{}", ["MC565"]),
        ({"Counted": "", "Always": ", when: start"}, "{}", []),
        ({"Cycle": ""}, "{}", ["MC546"]),  # a source that repeats its file
        ({"Rows": ""}, "{}", []),
    ],
)
def test_what_ends_a_run_is_checked(
    sources: dict[str, str], run: str, expected: list[str], tmp_path: Path
) -> None:
    assert codes(tmp_path, sources, run) == expected
