"""The placement: the group of each device, and the signs in the legend."""

from __future__ import annotations

import re

import pytest

from meshctl.plan.model import Plan
from meshctl.plan.views.topology import topology
from meshctl.topology.cluster import Cluster
from meshctl.view.pictures.text.picture import draw
from tests.view.pictures.plans import component, drawn, group, plan


def colocated(each: int, guest_each: int, guests: int, guest_first: bool = True) -> Plan:
    """Eight devices with workers of `each`, and `guests` of a second group on the first devices."""
    host = group("rollout", "cuda", 8 // each, (0, 8), gpus_per_worker=each)
    stop = guests * guest_each
    guest = group("judge", "cuda", guests, (0, stop), gpus_per_worker=guest_each, colocate="rollout")
    groups = [guest, host] if guest_first else [host, guest]
    components = [component("sampler", host), component("judge", guest)]
    return plan("colocated", Cluster.of(1, cuda=8), groups, components, [])


@pytest.mark.parametrize(
    ("made", "row", "narrow"),
    [
        (colocated(2, 1, 8), "B+A  B+═  B+A  B+═  B+A  B+═  B+A  B+═", "B x 8 + A x 4 of 2"),
        (colocated(2, 1, 8, guest_first=False), "A+B  ═+B  A+B  ═+B  A+B  ═+B  A+B  ═+B", ""),
        (colocated(2, 2, 4), "B+A ════  B+A ════  B+A ════  B+A ════", "B+A x 4 of 2"),
        (colocated(4, 2, 4), "B+A ════  B+═ ════  B+A ════  B+═ ════", ""),
        (colocated(2, 1, 3), "B+A B+═ B+A │══ A ═══ A ═══", "B x 3 + A x 2 of 2 │"),
        (colocated(1, 2, 2), "B+A ═+A B+A ═+A │ A A A A", ""),
    ],
)
def test_a_colocated_worker_of_several_devices_is_one_worker(made: Plan, row: str, narrow: str) -> None:
    """A narrow picture counts equal neighbors group by group."""
    text = draw(topology(made), 200)
    (found,) = re.findall("node 0 │ (.*) │", text)
    assert re.sub("═+", "═", " ".join(found.split())) == re.sub("═+", "═", " ".join(row.split()))
    assert "A ═══ one worker" in text
    text = draw(topology(made), 40)
    assert narrow in re.sub(" +", " ", text) and "═" not in text


@pytest.mark.parametrize("name", ["16", "100000", "on_cpu", "program"])
@pytest.mark.parametrize(("width", "lines"), [(40, 60), (80, 30), (120, 200)])
def test_the_legend_explains_only_signs_that_occur(name: str, width: int, lines: int) -> None:
    body, _, legend = draw(drawn(name), width, lines=lines).rstrip("\n").rpartition("\n")
    signs = {
        "one worker": "═",
        "shares of each batch": r"\d shares?\b",
        "producers -> consumers": r"\d -> \d",
    }
    for words, sign in {**signs, "· idle": "·"}.items():
        assert words not in legend or re.search(sign, body), (words, body)
