"""The links of a route, found by listing all ranks and samples."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from meshctl.plan.model import Plan
from meshctl.plan.views.distances import carries_samples
from meshctl.topology.mesh import even_split
from meshctl.topology.modes import Route
from meshctl.topology.samples import SampleTable
from tests.topology.meshes import producer_ranks, producers_of, samples_by_rank

Links = dict[tuple[int, int], tuple[int, ...]]
"""(producer rank, consumer rank) -> the samples that move between them; empty for values and for weights, and
if only the run decides which samples move."""


def links(plan: Plan, route: Route, total: int) -> Links:
    """Returns the links of an even batch of `total` samples."""
    source, target = plan.stage(route.source), plan.stage(route.target)
    producer = plan.component(source.component).mesh
    consumer = plan.component(source.to if route.kind == "weights" else target.component).mesh
    if route.kind == "weights":
        return dict.fromkeys(product(range(producer.world_size), range(consumer.world_size)), ())
    ranks = producer_ranks(producer, route.collect, source.execute)
    held = [even_split(total, len(ranks), number) for number in range(len(ranks))]
    carries = carries_samples(plan, route)
    if not carries or route.dispatch.balance or route.dispatch.home:
        silent = {number for number, mine in enumerate(held) if not mine} if carries else set()
        return {
            (ranks[number], rank): ()
            for rank in range(consumer.world_size)
            for number in producers_of(consumer, target.execute, len(ranks), rank)
            if number not in silent
        }
    table = SampleTable(tuple(tuple((sample,) for sample in mine) for mine in held))
    found: dict[tuple[int, int], list[int]] = {}
    parts = samples_by_rank(target.execute, replace(route.dispatch, allow_empty=True), consumer, table)
    for rank, samples in parts.items():
        for number, index in samples:
            found.setdefault((ranks[number], rank), []).append(held[number][index])
    return {pair: tuple(samples) for pair, samples in found.items()}


def partners(found: Links) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Returns producer rank -> consumer ranks, and the inverse."""
    sent: dict[int, set[int]] = {}
    received: dict[int, set[int]] = {}
    for producer, consumer in found:
        sent.setdefault(producer, set()).add(consumer)
        received.setdefault(consumer, set()).add(producer)
    return sent, received
