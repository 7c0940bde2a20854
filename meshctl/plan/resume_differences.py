"""The differences between a plan and that of a checkpoint from which it continues.

A resume may change `cluster`, `groups`, `parallel` and `run`. Other differences change what the run
computes. Those that do not fit the state in the checkpoint are unsound: the seed, arguments of components
with state or of sources, components whose state would be lost or is missing, and sources whose position
would be. All are listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import NoneType
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan, as_data
from meshctl.text.redaction import secret_places

Facts = Mapping[str, Any]
"""As `facts_of` returns them: plain data."""
MAX_VALUE = 30
"""Characters of a value that is shown."""


@dataclass(frozen=True)
class Difference:
    """One difference between the recipe and the checkpoint."""

    path: tuple[str, ...]
    """The place of the new value in the recipe."""
    message: str
    code: str = ""
    """The code of an unsound difference; empty for a sound one."""
    word: str = ""
    """The word of `run.accept` that permits it."""


def differences(
    was: Facts, now: Facts, stateful: Collection[str], saved: Collection[str]
) -> Iterator[Difference]:
    """Yields all differences. `stateful` are the components of the recipe that offer state, and `saved` those
    with state in the checkpoint."""
    if was.get("seed") != now.get("seed"):
        yield Difference(("seed",), f"`seed` was {was.get('seed')} and is {now.get('seed')}", "MC720", "seed")
    old, new = _by_name(was, "components"), _by_name(now, "components")
    bound = {*saved, *(stage["component"] for stage in _sources(was).values())}
    for name in new:
        if name in old:
            yield from _of_component(name, old[name], new[name], name in bound)
    loaded = {name for name in saved if name in new and not new[name].get("frozen")}
    for name in sorted(set(saved) - loaded):
        message = f"`{name}` has state in the checkpoint, which no component loads"
        path = ("components", name, "frozen") if name in new else ("components",)
        yield Difference(path, message, "MC722", "components")
    for name in sorted(set(stateful) - set(saved)):
        message = f"`{name}` has no state in the checkpoint"
        yield Difference(("components", name), message, "MC722", "components")
    for name in sorted((old.keys() ^ new.keys()) - {*saved, *stateful}):
        yield Difference(("components",), f"the component `{name}` is {'new' if name in new else 'gone'}")
    yield from _of_sources(_sources(was), _sources(now))
    for kind in ("stage", "block"):
        yield from _of_stages(kind, _by_name(was, f"{kind}s"), _by_name(now, f"{kind}s"))


def _of_component(name: str, was: Facts, now: Facts, is_bound: bool) -> Iterator[Difference]:
    """Yields the differences of a component. If `is_bound`, it has state or produces data, so the checkpoint
    depends on it."""
    code, word = ("MC721", "args") if is_bound else ("", "")
    if was["target"] != now["target"]:
        message = f"`{name}` was a {was['target']} and is a {now['target']}"
        yield Difference(("components", name, "_target_"), message, code, word)
    old, new = was.get("args", {}), now.get("args", {})
    for key in sorted({*old, *new}):
        if (key in old, old.get(key)) != (key in new, new.get(key)):
            path = ("components", name, "args", key) if key in new else ("components", name)
            change = f"{_shown(old, key)} -> {_shown(new, key)}"
            yield Difference(path, f"`{key}` of `{name}` changed: {change}", code, word)
    old, new = (
        dict(zip(mesh.get("mesh_dim_names", ()), mesh.get("shape", ()), strict=False))
        for mesh in (was.get("mesh", {}), now.get("mesh", {}))
    )
    if changed := [dim for dim in {**old, **new} if old.get(dim, 1) != new.get(dim, 1)]:
        sizes = ", ".join(f"{dim} {old.get(dim, 1)} -> {new.get(dim, 1)}" for dim in changed)
        yield Difference(("components", name, "parallel"), f"the mesh of `{name}` changed: {sizes}")


def _of_sources(was: Mapping[str, Facts], now: Mapping[str, Facts]) -> Iterator[Difference]:
    """Yields the sources whose position in the checkpoint is missing or belongs to other data."""
    for name in sorted(was.keys() | now.keys()):
        path: tuple[str, ...] = ("pipeline", name)
        if name not in now:
            path, message = ("pipeline",), "has a position in the checkpoint and is not in the recipe"
        elif name not in was:
            message = "has no position in the checkpoint"
        elif _called(was[name]) != _called(now[name]):
            message = f"called {_called(was[name])} and calls {_called(now[name])}"
        else:
            continue
        yield Difference(path, f"the source `{name}` {message}", "MC723", "pipeline")


def _of_stages(kind: str, was: Mapping[str, Facts], now: Mapping[str, Facts]) -> Iterator[Difference]:
    """Yields the differences of stages, or of blocks. `kind` is the word for one of them."""
    for name in sorted(was.keys() ^ now.keys()):
        if not _is_source(now.get(name) or was[name]):
            yield Difference(("pipeline",), f"the {kind} `{name}` is {'new' if name in now else 'gone'}")
    for name, stage in now.items():
        if name not in was:
            continue
        for key in (key for key in stage if stage[key] != was[name].get(key, stage[key])):
            change = f"{_shown(was[name], key)} -> {_shown(stage, key)}"
            yield Difference(("pipeline", name), f"`{key}` of the {kind} `{name}` changed: {change}")


def _called(stage: Facts) -> str:
    return f"{stage['component']}.{stage['method']}"


def _sources(facts: Facts) -> dict[str, Facts]:
    """Returns the sources whose position is part of a checkpoint, by name."""
    return {name: stage for name, stage in _by_name(facts, "stages").items() if _is_source(stage)}


def _is_source(stage: Facts) -> bool:
    is_called = stage.get("kind") == "call" and not stage.get("inputs")
    return is_called and not stage.get("without_data") and not stage.get("block")


def _by_name(facts: Facts, key: str) -> dict[str, Facts]:
    return {item["name"]: item for item in facts.get(key, ())}


def _shown(args: Facts, key: str) -> str:
    """Returns a value for a message: numbers and short texts that are no secret."""
    value = args.get(key)
    if key not in args:
        return "not set"
    is_plain = isinstance(value, (bool, int, float, str, NoneType)) and not any(secret_places({key: value}))
    text = repr(value) if is_plain else "..."
    return text if len(text) <= MAX_VALUE else "..."


def facts_of(plan: Plan) -> dict[str, Any]:
    """Returns the seed, the components with their meshes, the stages and the blocks, as in `plan.json`."""
    data: dict[str, Any] = as_data(plan)
    return {key: data[key] for key in ("seed", "components", "stages", "blocks") if key in data}
