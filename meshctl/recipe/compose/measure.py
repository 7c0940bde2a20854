"""How much a YAML text unfolds to, before anything is built: aliases can make a mebibyte of billions of
values, and brackets nest deep.

The parser's events are counted as they come, and an alias as what its anchor holds; so a bomb costs no more
than its first values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

MAX_NODES = 20_000
MAX_DEPTH = 64
SIMPLE = (yaml.ScalarEvent, yaml.AliasEvent)


@dataclass
class _Open:
    """A mapping or a list that is being read."""

    anchor: str | None
    before: int
    is_mapping: bool
    height: int = 1
    on_key: bool = True


def beyond(loader: Any) -> tuple[str, Any] | None:
    """What a text has too much of, and the mark where; none for one that can be built. Raises yaml's errors."""
    count, open, known = 0, list[_Open](), dict[str | None, tuple[int, int]]()
    while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
        if isinstance(event, yaml.CollectionStartEvent):
            count += _counts(open)
            open.append(_Open(event.anchor, count, isinstance(event, yaml.MappingStartEvent)))
            height = 0
        elif isinstance(event, SIMPLE):
            values, height = known.get(event.anchor, (1, 0)) if isinstance(event, yaml.AliasEvent) else (1, 0)
            if isinstance(event, yaml.ScalarEvent):
                known[event.anchor] = 1, 0
            count += values if _counts(open) else values - 1
        elif isinstance(event, yaml.CollectionEndEvent):
            last = open.pop()
            known[last.anchor] = 1 + count - last.before, last.height
            height = last.height
        else:
            continue
        if open and height:
            open[-1].height = max(open[-1].height, 1 + height)
        if len(open) + height > MAX_DEPTH:
            return f"is nested deeper than {MAX_DEPTH} levels", event.start_mark
        if count > MAX_NODES:
            return f"unfolds to more than {MAX_NODES:,} values", event.start_mark
    return None


def _counts(open: list[_Open]) -> int:
    """1 for a value, 0 for a mapping's key."""
    if not open or not open[-1].is_mapping:
        return 1
    open[-1].on_key = not open[-1].on_key
    return int(open[-1].on_key)


def alias_into(loader: Any, start: int, stop: int) -> tuple[Any, Any] | None:
    """Where the alias begins and ends that leads back to the collection between these characters."""
    anchor = None
    while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
        mark: Any = event.start_mark
        if isinstance(event, yaml.CollectionStartEvent) and mark.index == start:
            anchor = event.anchor
        elif isinstance(event, yaml.AliasEvent) and event.anchor == anchor and start < mark.index < stop:
            return mark, event.end_mark
    return None
