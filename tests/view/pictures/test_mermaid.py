"""The flowchart: its content, escaping of names, and its maximum size."""

from __future__ import annotations

import re

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.views.topology import topology
from meshctl.view.pictures.mermaid import draw
from tests.view.pictures.plans import PLANS, everything, many, odd, one, program, twice

TEXT = r'"([^"`;<>&{}\\\n]|<br>|#\d+;)*"'
LINE = re.compile(
    rf"flowchart TB|  end|  subgraph g\d+\[{TEXT}\]|  more\[{TEXT}\]"
    r"|  acc(Title|Descr): [^#\"<>]+"
    rf"|    [stp]\d+\[{TEXT}\]:::h\d|    c\d+_(\d+\[{TEXT}\]:::h\d|more\[{TEXT}\])"
    rf"|  s\d+ (-->|-\.->)\|{TEXT}\| [st]\d+"
    r"|  class g\d+(,g\d+)* group|  classDef \w+ fill:[#\w]+,stroke:#\w{6}(,color:#\w{6})?"
)
"""Pattern of a quoted text, which contains only letters, harmless signs, <br> and character codes."""


@pytest.mark.parametrize("name", PLANS)
def test_every_line_is_one_that_mermaid_knows(name: str) -> None:
    assert [line for line in draw(topology(PLANS[name]())).splitlines() if not LINE.fullmatch(line)] == []


def test_groups_stages_and_routes() -> None:
    drawn = draw(topology(everything()))
    assert 'subgraph g2["train: 16 workers on cuda, 3 nodes"]' in drawn
    assert '    s2["B rollouts<br>sampler.sample<br>dp 2 x tp 2"]:::h1' in drawn
    assert '  s2 -->|"2 → 7<br>flatten, slice_dp by tokens<br>8.39 MB, shared memory, tcp"| s4' in drawn
    assert "home of rollouts" in drawn
    assert re.search(r'  s\d+ -\.->\|"weights 16 → 4<br>nccl"\| t\d+', drawn)
    assert '    c0_0["D extra<br>dp 4"]:::h3' in drawn, "a component that no stage calls"
    assert drawn.count("\n  subgraph ") == drawn.count("\n  end\n") == 5


@pytest.mark.parametrize(
    ("made", "words"),
    [(one(), "1 device group, 1 stage, 0 routes"), (twice(), "1 device group, 1 stage, 1 route")],
)
def test_one_route_is_not_1_routes(made: Plan, words: str) -> None:
    assert f"  accDescr: {words}\n" in draw(topology(made))


def test_a_program_is_a_box() -> None:
    assert 'p0["a train.py --lr #39;#60;b#62;#39;"]:::h0' in draw(topology(program()))


def test_odd_names_are_text() -> None:
    drawn = draw(odd())
    assert [line for line in drawn.splitlines() if not LINE.fullmatch(line)] == []
    assert "#60;script#62;alert(1)#60;/script#62;" in drawn
    assert "日本語 グループ" in drawn


def test_it_is_bounded() -> None:
    drawn = draw(many(500))
    assert [line for line in drawn.splitlines() if not LINE.fullmatch(line)] == []
    assert len(drawn) < 50_000 and drawn.count(">|") < 500
    assert re.search(r'more\["and [\d,]+ more groups, [\d,]+ more stages, [\d,]+ more routes"\]', drawn)
