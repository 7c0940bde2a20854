"""Gives the stages of blocks their full names: `exam` of block `eval` is the stage `eval.exam` of the
pipeline.

In a recipe, a stage of a block refers to other stages of the block without the name of the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from meshctl.recipe.model import Block, DispatchWords, Input, Stage


class BlockStages(NamedTuple):
    """A block with its stages, by full name."""

    block: Block
    stages: Mapping[str, Stage]


def blocks_of(pipeline: Mapping[str, Stage | BlockStages]) -> dict[str, Block]:
    return {name: item.block for name, item in pipeline.items() if isinstance(item, BlockStages)}


def flat(pipeline: Mapping[str, Stage | BlockStages]) -> dict[str, Stage]:
    """Returns the stages of a pipeline by their full names, in written order."""
    found: dict[str, Stage] = {}
    for name, item in pipeline.items():
        if isinstance(item, BlockStages):
            found |= item.stages
        else:
            found[name] = item
    return found


def block_of(
    name: str,
    repeat: Mapping[str, Any],
    stages: Mapping[str, Stage],
    every: int,
    when: str,
    after: tuple[str, ...],
) -> BlockStages:
    """Returns a block from the values of its keys."""
    full = {inner: f"{name}.{inner}" for inner in stages}
    until = repeat.get("until", "")
    over = repeat.get("over", "")
    renamed = [_renamed(stage, full) for stage in stages.values()]
    taken = [other for stage in renamed for other in (*stage.takes, *stage.after)] + [over] * bool(over)
    outside = tuple(dict.fromkeys(other for other in taken if other not in full.values()))
    block = Block(
        name,
        tuple(full.values()),
        full.get(until, until),
        repeat.get("times", 1),
        over,
        repeat.get("size", 0),
        repeat.get("seed", 0),
        after,
    )
    inside = {
        stage.name: replace(stage, block=name, every=every, when=when, outside=outside) for stage in renamed
    }
    return BlockStages(block, inside)


def _renamed(stage: Stage, full: Mapping[str, str]) -> Stage:
    """Returns a stage with its full name, and with the full names of the stages of its block to which it
    refers."""

    def names(some: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(full.get(name, name) for name in some)

    def dispatch(words: DispatchWords) -> DispatchWords:
        return replace(words, home=full.get(words.home, words.home))

    def given(one: Input) -> Input:
        own = None if one.dispatch is None else dispatch(one.dispatch)
        return replace(one, stages=names(one.stages), dispatch=own)

    return replace(
        stage,
        name=full[stage.name],
        inputs=tuple(map(given, stage.inputs)),
        dispatch=dispatch(stage.dispatch),
        after=names(stage.after),
    )
