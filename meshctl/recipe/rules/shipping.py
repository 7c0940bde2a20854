"""MC640 and MC641: what follows from `ship`, where the nodes share no file system."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules.facts import Facts
from meshctl.run.directory import SHIP_TO


def _ships(facts: Facts) -> bool:
    return facts.is_valid("engine") and bool(facts.recipe.engine.options.get("ship"))


def checkpoints_stay_on_the_nodes(facts: Facts) -> Iterator[Diagnostic]:
    """A note: each node has the files of its own workers only, so the run is not continued where it is."""
    engine, run = facts.recipe.engine, facts.recipe.run
    if not _ships(facts) or run.checkpoint is None:
        return
    where = engine.options.get("ship_to") or SHIP_TO
    span = facts.key("engine", engine.name, "ship")
    if run.restarts is not None:
        message = "`run.restarts` continues from checkpoints, whose files `ship` leaves on the nodes"
        help = "leave out `run.restarts`, or `run.checkpoint`: then each attempt starts from the beginning"
        yield Diagnostic(
            "MC641", message, facts.key("run", "restarts"), (span.with_word("`ship` is here"),), help=help
        )
        return
    message = f"each node keeps its files of a checkpoint, below {where}"
    help = "to continue the run, copy them into one folder: `docs/engines.md`"
    yield Diagnostic("MC640", message, span, severity="note", help=help)


RULES = (checkpoints_stay_on_the_nodes,)
