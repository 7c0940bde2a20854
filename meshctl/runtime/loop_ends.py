"""Makes a worker's ends of the routes of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial

from meshctl.runtime.loop_context import LoopContext
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import TAGS_PER_ROUTE, RouteContext
from meshctl.runtime.routes.record import ReplayedChannel
from meshctl.runtime.routes.resumable import ResumableChannel, ResumableWeights
from meshctl.runtime.routes.weights import WeightChannel, WeightsOf, weights_of
from meshctl.topology.modes import Route


def data_ends(context: LoopContext) -> dict[tuple[str, str, str], Channel]:
    """Returns this worker's ends of data routes by (source, target, parameter)."""
    found = {_key(route): _channel(context, route, number) for number, route in _hosted_routes(context)}
    for route in context.plan.replayed:
        target = context.plan.stage(route.target)
        consumer = context.side(target.component, target.execute)
        recorded = context.recorded[route.name]
        found[_key(route)] = ReplayedChannel.of(route, consumer, context.transport, recorded)
    return found


def closing_ends(context: LoopContext, targets: Set[str]) -> dict[tuple[str, str, str], Channel]:
    """Returns further ends of the data routes into some stages, which share no tag with the others."""
    count = len(context.plan.routes)
    routes = [(number, route) for number, route in _hosted_routes(context) if route.target in targets]
    return {_key(route): _channel(context, route, count + number) for number, route in routes}


def _hosted_routes(context: LoopContext) -> Iterator[tuple[int, Route]]:
    """Yields the data routes that this worker has an end of, with their numbers."""
    for number, route in enumerate(context.plan.routes):
        stages = context.plan.stage(route.source), context.plan.stage(route.target)
        if route.kind == "data" and any(map(context.hosts, stages)):
            yield number, route


def _key(route: Route) -> tuple[str, str, str]:
    return route.source, route.target, route.parameter


def _channel(context: LoopContext, route: Route, number: int) -> Channel:
    source, target = context.plan.stage(route.source), context.plan.stage(route.target)
    producer = context.side(source.component, source.execute)
    consumer = context.side(target.component, target.execute)
    made = RouteContext(route, producer, consumer, context.transport, number * TAGS_PER_ROUTE)
    return ResumableChannel(made, _kept_values(context)) if made.is_resumable else Channel(made)


def _kept_values(context: LoopContext) -> int:
    """Returns how many values of a route a producer keeps for a group that may restart. The group, and those
    that take its values, can be as many steps behind the producer as all of its slots allow."""
    return 2 + sum(route.slots for route in context.plan.routes)


def sync_ends(context: LoopContext) -> dict[str, WeightChannel]:
    """Returns this worker's ends of weight routes by sync stage."""
    plan = context.plan
    found: dict[str, WeightChannel] = {}
    for number, route in enumerate(plan.routes):
        stage = plan.stage(route.source)
        if route.kind == "weights" and context.hosts(stage):
            sides = context.side(stage.component), context.side(stage.to)
            made = RouteContext(route, *sides, context.transport, number * TAGS_PER_ROUTE)
            produced = _weights_of(context, stage.component, stage.method)
            wanted = _weights_of(context, stage.to, _part_of(stage.to_method))
            kind = ResumableWeights if made.is_resumable else WeightChannel
            found[stage.name] = kind(made, produced, wanted, lag=stage.lag, checksum=stage.checksum)
    return found


def _part_of(loader: str) -> str:
    """Returns the method that yields the weights which `loader` loads: `adapter` for `load_adapter`, and
    `weights` for a name without `load_`."""
    return loader.removeprefix("load_") if loader.startswith("load_") else "weights"


def _weights_of(context: LoopContext, component: str, method: str) -> WeightsOf | None:
    """Returns the function that reads the weights of a component, or None for a component of another
    group."""
    found = context.components.get(component)
    return None if found is None else partial(weights_of, found, method)
