"""Finds the section or field of the table for a key path: `("run", "grace")` is the field `grace` of
`RUN`."""

from __future__ import annotations

from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.field_types import Field, Section
from meshctl.recipe.fields import BLOCK, CALL, RECIPE, STAGE, SYNC
from meshctl.recipe.section_types import Inputs, Named, Nested
from meshctl.recipe.tracker_fields import Trackers
from meshctl.topology.cluster import ACCELERATORS, DEVICE_ALIASES


def section_at(path: KeyPath, root: Node) -> Section | None:
    """Returns the section at a path; None for a single value, and for a mapping whose keys are chosen by
    users."""
    section, keys = RECIPE, iter(path)
    for key in keys:
        field = section.by_key.get(key)
        if field is None or not isinstance(field.type, (Nested, Named, Inputs, Trackers)):
            return None
        section = field.type.section
        has_names = not isinstance(field.type, (Nested, Trackers))
        if has_names and next(keys, None) is None:
            return None
    return stage_section(root.at(path)) if section is STAGE else section


def stage_section(stage: Node | None) -> Section:
    """Returns `CALL`, `SYNC` or `BLOCK` for a stage with keys of only one of these, and else `STAGE`."""
    signs = {CALL: ("call",), SYNC: ("sync",), BLOCK: ("repeat", "stages")}
    kinds = [
        kind for kind, keys in signs.items() if stage and any(stage.get(key) is not None for key in keys)
    ]
    return kinds[0] if len(kinds) == 1 else STAGE


def field_at(path: KeyPath, root: Node) -> Field | None:
    """Returns the field whose value is at a path; None if there is none."""
    section = section_at(path[:-1], root) if path else None
    return section.by_key.get(path[-1]) if section else None


def is_key(path: KeyPath, root: Node) -> bool:
    """Returns whether an override may set a key that is not in the recipe. Retired ones are reported
    later."""
    if counts_devices(path[:-1]):
        device_type = path[-1].lower()
        return DEVICE_ALIASES.get(device_type, device_type) in ACCELERATORS
    sections = [(section_at(path[:length], root), path[length]) for length in range(len(path))]
    is_retired = any(section and any(key == old.key for old in section.retired) for section, key in sections)
    return path[-1] in keys_below(path[:-1], root) or is_retired


def counts_devices(path: KeyPath) -> bool:
    """Returns whether the keys below a path are device types."""
    return path == ("cluster", "devices_per_node") or (
        path[:2] == ("cluster", "nodes") and len(path) == 4 and path[3] == "devices"
    )


def keys_below(path: KeyPath, root: Node) -> tuple[str, ...]:
    """Returns the keys that an override may set below a path. Empty for mappings whose keys users choose,
    below a name that is not in the recipe, and for the parameters of a call."""
    if path == ():
        return RECIPE.keys[1:]
    if counts_devices(path):
        return ACCELERATORS
    is_pool = path[:2] == ("cluster", "nodes")
    is_named = is_pool or path[0] in ("groups", "components", "pipeline")
    if is_named and root.at(path[: 3 if is_pool else 2]) is None:
        return ()
    if path[0] == "pipeline" and len(path) == 2:
        return STAGE.keys
    inner = path[4:] if path[2:3] == ("stages",) else path[2:]
    section = None if path[0] == "pipeline" and inner[:1] == ("in",) else section_at(path, root)
    return section.keys if section else ()
