"""One rank as text: where it is, what it is in every mesh, its samples, whom it talks to.

train:3  rank 3 of 6, place 11 of 18
  node 1, local rank 3, cuda 3 of its node (11 of all)

E actor  fsdp 1 of 3, tp 1 of 2
  data rank 1 of 3, rank 2 speaks for it
  dim   index  ranks  nodes
  fsdp      1  1 3 5  inside
  tp        1  2 3    inside

takes
  scored -> metrics  from judge 0 1 2  samples 171-341 (171)  shared memory
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshctl.plan.views.rank_selection import Neighbours, Peers, RankInMesh, RankRoute, RankStage, RankZoom
from meshctl.view.pictures import OVER
from meshctl.view.pictures.text.styled import (
    ELLIPSIS,
    Column,
    Line,
    columns,
    cut,
    ink,
    line,
    wants,
    width_of,
    words_of,
    wrapped,
)
from meshctl.view.pictures.text.zoom_base import Sheet, folded, headed, ranks_of, run_of

NAME = 24
"""Columns of the name of a group, at most."""
UNCOUNTED = (
    "some of: the recipe does not count these samples; --samples N says who takes part in a batch of N"
)


def of_rank(sheet: Sheet, zoom: RankZoom) -> list[Line]:
    made = [
        line(
            ink(f"{zoom.group}:{zoom.rank}", "bold"),
            f"  rank {zoom.rank} of {zoom.workers}, place {zoom.place} of {zoom.places}",
        )
    ]
    made += folded(", ".join(_where(zoom)), sheet.width)
    for mesh in zoom.components:
        made += [line(), *_in_mesh(sheet, zoom.rank, mesh)]
    made += headed("stages", _stages(sheet, zoom.stages))
    made += headed("takes", _routes(sheet, [route for route in zoom.routes if not route.gives]))
    made += headed("gives", _routes(sheet, [route for route in zoom.routes if route.gives]))
    if any(route.some and not route.total for route in zoom.routes):
        made += [
            line(),
            *(
                line(ink("".join(part.text for part in each), "faint"))
                for each in folded(UNCOUNTED, sheet.width)
            ),
        ]
    return made


def _where(zoom: RankZoom) -> Iterator[str]:
    yield f"node {zoom.node}, local rank {zoom.local_rank}"
    if zoom.numbers:
        of_all = f" ({run_of(zoom.devices)} of all)" if zoom.devices != zoom.numbers else ""
        yield f"{zoom.device_type} {run_of(zoom.numbers)} of its node{of_all}"
    else:
        yield f"on {zoom.device_type}"
    if zoom.visible_devices:
        yield f"which the hardware calls {','.join(zoom.visible_devices)}"
    if zoom.program:
        yield f"program {zoom.program}"


# In a mesh


def _in_mesh(sheet: Sheet, rank: int, seen: RankInMesh) -> list[Line]:
    mesh = sheet.marks.components[seen.component].mesh
    at = {
        dim: index
        for dim, index in (*seen.coordinate.items(), *seen.views.items())
        if mesh.size(dim) > 1 and dim != "data"
    }
    words = [f"{dim} {index} of {mesh.size(dim)}," for dim, index in at.items()] or ["alone,"]
    name = sheet.name(seen.component)
    folds = wrapped(
        [line(word) for word in (*words[:-1], words[-1][:-1])], sheet.width - width_of(name) - 2, " "
    )
    made = [
        line(name if number == 0 else " " * width_of(name), "  ", each) for number, each in enumerate(folds)
    ]
    if mesh.world_size > 1:
        speaks = (
            "speaks for it" if seen.speaks else f"rank {mesh.representative(seen.data_rank)} speaks for it"
        )
        made += folded(f"data rank {seen.data_rank} of {seen.data_size}, {speaks}", sheet.width)
    if seen.peers:
        heading = tuple(line(ink(word, "faint")) for word in ("  dim", "index", "ranks", "nodes"))
        shape = (Column(), Column(right=True), Column(least=12, words=True), Column(spare=1))
        made += columns([heading, *(_peers(rank, peers) for peers in seen.peers)], shape, sheet.width)
    made += [line("  ", each) for each in map(_neighbours, seen.neighbours)]
    if seen.of_pp_stages > 1:
        held = ", ".join(map(str, seen.pp_stages))
        made += folded(
            f"pipeline stage{'s' * (len(seen.pp_stages) > 1)} {held} of {seen.of_pp_stages}", sheet.width
        )
    return made


def _peers(rank: int, peers: Peers) -> tuple[Line, ...]:
    """With the rank itself marked."""
    ranks = ranks_of(peers.ranks).split(" ")
    named = [
        ink(f" {each}" if place else each, "bold" if each == str(rank) else "")
        for place, each in enumerate(ranks)
    ]
    return (
        line("  ", ink(peers.dim, "bold")),
        line(str(peers.index)),
        line(*named),
        line("cross" if peers.crosses else "inside"),
    )


def _neighbours(neighbours: Neighbours) -> Line:
    words = [
        f"rank {found} {word}" if found is not None else f"nobody {word}"
        for found, word in ((neighbours.before, "before"), (neighbours.after, "after"))
    ]
    return line(ink(neighbours.dim, "bold"), f"{' ring' if neighbours.ring else ''}: {', '.join(words)}")


# Its samples, and whom it talks to


def _stages(sheet: Sheet, stages: Sequence[RankStage]) -> list[Line]:
    rows = []
    for stage in stages:
        called = "" if stage.called else "not called"
        share = f"share {stage.share} of {stage.shares}" if stage.share is not None else called
        samples = _samples(stage.samples, stage.count, stage.total)
        rows.append(
            (
                line("  ", ink(stage.stage, "bold")),
                line(sheet.marks.letter(stage.component)),
                line(share),
                line(samples),
            )
        )
    drawn = columns(rows, (Column(least=8), Column(), Column(), Column(least=10)), sheet.width)
    return _noted(drawn, [stage.note for stage in stages], sheet.width)


def _samples(span: tuple[int, int] | None, amount: int | None, total: int) -> str:
    """samples 171-341 (171 of 512); sample 6 (1 of 7); 171 of 512 samples; some of 512 samples"""
    of = f" of {total}" if total else ""
    if span is not None:
        found = range(*span)
        return (
            f"sample{'s' * (len(found) > 1)} {run_of(found)} ({len(found)}{of})"
            if found
            else f"none{of} samples"
        )
    if amount is not None:
        return f"{amount}{of} samples"
    return f"some{of} samples" if total else ""


def _noted(drawn: Sequence[Line], notes: Sequence[str], width: int) -> list[Line]:
    made: list[Line] = []
    for each, note in zip(drawn, notes, strict=True):
        made.append(each)
        made += [line("      ", words) for words in wrapped(words_of(note, "faint"), width - 6, " ")]
    return made


def _routes(sheet: Sheet, routes: Sequence[RankRoute]) -> list[Line]:
    """With the ways in a column of their own, or below where that would cut what else is said."""
    rows = [row for route in routes for row in _exchanges(route)]
    shape = (Column(least=12), Column(least=12, words=True), Column(least=8), Column())
    beside = wants(rows, shape) <= sheet.width
    notes = list[str]()
    for route in routes:
        notes += [""] * (len(list(_exchanges(route))) - 1) + ["; ".join(_remarks(route, ways=not beside))]
    return _noted(columns(rows, shape if beside else shape[:-1], sheet.width), notes, sheet.width)


def _exchanges(route: RankRoute) -> Iterator[tuple[Line, ...]]:
    word = ("to" if route.gives else "from") + " some of" * route.some
    name = line("  ", ink(route.route, "bold"))
    for place, exchange in enumerate(route.exchanges):
        if place and place == len(route.exchanges) - 1 and route.partners > len(route.exchanges):
            yield line(), line(f"{ELLIPSIS} {route.partners - len(route.exchanges)} more"), line(), line()
        whom = line(f"{word} {cut(route.other_group, NAME)} {ranks_of(exchange.ranks)}")
        way = line(ink(OVER[exchange.over], "faint"))
        yield line() if place else name, whom, line(_samples(exchange.samples, None, 0)), way
    if not route.exchanges:
        yield name, line(f"{word} nobody"), line(), line()


def _remarks(route: RankRoute, ways: bool) -> Iterator[str]:
    if route.count is not None:
        yield f"{route.count} of {route.total} samples"
    if route.teller is not None and route.kind == "data":
        yield f"{route.other_group} {route.teller} tells what all of them hold"
    if route.note:
        yield route.note
    if ways and route.exchanges:
        yield " and ".join(dict.fromkeys(OVER[exchange.over] for exchange in route.exchanges))
