"""The rules about the end of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshctl.recipe.load import load

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


def codes(folder: Path, sources: dict[str, str], run: str = "{}") -> dict[str, str]:
    """Code -> message. `sources` maps stages, named by the class of their source, to more keys."""
    (folder / "data.py").write_text(CLASSES)
    components = "".join(f"  {name}: {{_target_: data.{name}, group: g}}\n" for name in sources)
    stages = "".join(
        f"  s_{name}: {{call: {name}.next, samples: 4{more}}}\n" for name, more in sources.items()
    )
    (folder / "recipe.yaml").write_text(
        f"groups:\n  g: {{ranks: 1, device_type: cpu}}\ncomponents:\n{components}pipeline:\n{stages}run: {run}\n"
    )
    return ends_of(folder)


def ends_of(folder: Path) -> dict[str, str]:
    loaded = load("recipe.yaml", (), folder, environ={}, detect=lambda: "cpu")
    subject = {"MC546", "MC547", "MC564", "MC565", "MC566"}
    return {one.code: one.message for one in loaded.report.diagnostics if one.code in subject}


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
    ],
)
def test_what_ends_a_run_is_checked(
    sources: dict[str, str], run: str, expected: list[str], tmp_path: Path
) -> None:
    assert sorted(codes(tmp_path, sources, run)) == expected


def test_a_run_of_zero_steps_without_an_end_has_one_warning(tmp_path: Path) -> None:
    assert codes(tmp_path, {"Always": ""}, "{steps: 0}")["MC546"] == (
        "nothing ends this run except Ctrl-C: `steps: 0` sets no limit, and `s_Always` always returns a Batch "
        "and has no `__len__`"
    )


def test_the_note_names_the_sources(tmp_path: Path) -> None:
    sources: dict[str, Any] = {"Counted": "", "Sometimes": ", every: 5", "Unsaid": ", every: 5"}
    assert codes(tmp_path, sources)["MC564"] == (
        "`s_Counted` ends the run with its data, but `s_Sometimes` and `s_Unsaid` do not"
    )


@pytest.mark.parametrize(("source", "expected"), [("Cycle", ["MC546"]), ("Rows", [])])
def test_a_source_that_repeats_its_file_never_ends(tmp_path: Path, source: str, expected: list[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    target = f"_target_: meshctl.components.{source}, group: g, args: {{path: rows.jsonl}}"
    (tmp_path / "recipe.yaml").write_text(
        f"groups: {{g: {{ranks: 1, device_type: cpu}}}}\ncomponents:\n  rows: {{{target}}}\n"
        "pipeline:\n  batch: {call: rows.next, samples: 4}\n"
    )
    assert sorted(ends_of(tmp_path)) == expected
