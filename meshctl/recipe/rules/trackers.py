"""MC442 and MC580: the libraries of the trackers in `run.track`, and trackers of the user, read as text."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.package import install_command, installed_version
from meshctl.recipe.code.classes import NoClass, NotFound
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.tracker_fields import EXTRA, LIBRARIES
from meshctl.run.settings import Track
from meshctl.text.english import did_you_mean, listed


def trackers_are_installed(facts: Facts) -> Iterator[Diagnostic]:
    """The library of each tracker is installed. Another machine may launch the recipe."""
    for track in facts.recipe.run.track:
        if (library := LIBRARIES.get(track.name)) and not installed_version(library):
            message = f"`{track.name}` needs `{library}`, which is not installed here"
            yield Diagnostic(
                "MC442", message, _span(facts, track), help=install_command(EXTRA), severity="note"
            )


def tracker_exists(facts: Facts) -> Iterator[Diagnostic]:
    """A tracker of the user is a class that can be imported."""
    for track in facts.recipe.run.track:
        module, colon, name = track.name.partition(":")
        found = facts.code.find(f"{module}.{name}") if colon else None
        if isinstance(found, NotFound):
            is_there = found.has_module
            message = (
                f"module `{module}` has no `{name}`" if is_there else f"module `{found.module}` was not found"
            )
            help = did_you_mean(name, found.names) if found.names else f"searched in {listed(facts.code.own)}"
            yield Diagnostic("MC580", message, _span(facts, track), help=help)
        elif isinstance(found, NoClass):
            yield Diagnostic("MC580", f"`{track.name}` is {found.what}, not a class", _span(facts, track))


def _span(facts: Facts, track: Track) -> Span:
    """Returns where a tracker is named."""
    node = facts.node("run", "track")
    for item in node.value if node is not None and node.is_list else [node]:
        if item is not None and item.is_mapping and (named := item.get(track.name)) is not None:
            return named.key or named.span
        if item is not None and item.value == track.name:
            return item.span
    return facts.value("run", "track")


RULES = (trackers_are_installed, tracker_exists)
