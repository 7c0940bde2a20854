"""Finds the checkpoint from which a run continues, and checks that it fits the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic
from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Plan
from meshctl.plan.resume_differences import Difference, differences, facts_of
from meshctl.recipe.code.digests import code_digest
from meshctl.recipe.rules.components import STATE_METHODS
from meshctl.recipe.rules.facts import Facts
from meshctl.run.checkpoints import (
    PASSES,
    Manifest,
    NoWholeCheckpoint,
    VaryingState,
    WholeCheckpoint,
    newest_whole_checkpoint,
)
from meshctl.run.directory import RunDir


def checkpoint_of(run: RunDir) -> WholeCheckpoint:
    """Returns the newest whole checkpoint of a run. Raises `CannotStart` if there are some and none is
    whole."""
    try:
        return newest_whole_checkpoint(run)
    except NoWholeCheckpoint as error:
        help = f"to start from the beginning, remove {run.checkpoints}"
        raise CannotStart(f"{error}; {help}") from error
    except OSError as error:
        raise CannotStart(f"{error.filename} cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class Resumed:
    """A checkpoint, and the recipe that continues from it."""

    plan: Plan
    facts: Facts
    path: Sequence[str]
    """The folders of the user's code."""
    run: RunDir
    checkpoint: Path
    step: int

    def diagnostics(self) -> Iterator[Diagnostic]:
        """Yields an error for each difference that does not fit the checkpoint, and one note with all
        others."""
        was = Manifest.read(self.checkpoint).plan
        classes = {one.name: self.facts.class_of(one.name) for one in self.plan.components if not one.frozen}
        stateful = [
            name for name, one in classes.items() if one and one.methods.issuperset(STATE_METHODS)
        ]  # as far as classes can be read
        folders = [path.name for path in self.checkpoint.iterdir() if path.is_dir()]
        saved = sorted(name for name in folders if not name.endswith(PASSES))
        found = [*differences(was, facts_of(self.plan), stateful, saved)]
        is_accepted = {difference: difference.word in self.plan.run.accept for difference in found}
        for difference in found:
            if difference.code and not is_accepted[difference]:
                yield self._refusal(difference)
        sound = [one.message for one in found if not one.code or is_accepted[one]]
        code = was.get("code", {}), code_of(self.plan, self.path)
        changed = [name for name, digest in code[1].items() if code[0].get(name, digest) != digest]
        if listed := [*sound, *(f"the code of `{name}` changed" for name in changed)]:
            message = f"this recipe differs from that of the checkpoint of step {self.step}"
            yield Diagnostic("MC725", message, help="; ".join(listed), severity="note")
        try:
            for name, reason in changed_meshes(self.plan, self.checkpoint):
                span = self.facts.value("components", name, "parallel")
                help = "resume with these sizes"
                yield Diagnostic("MC724", f"{self.checkpoint}: {reason}", span, help=help)
        except ValueError as error:
            raise CannotStart(str(error)) from error

    def _refusal(self, difference: Difference) -> Diagnostic:
        message = f"{difference.message} (checkpoint of step {self.step})"
        help = f"undo the change, or accept it with `run.accept=[{difference.word}]`"
        is_whole = difference.path[0] != "seed" and len(difference.path) < 3
        span = self.facts.key(*difference.path) if is_whole else self.facts.value(*difference.path)
        return Diagnostic(difference.code, message, span, help=help)


def changed_meshes(plan: Plan, checkpoint: Path) -> Iterator[tuple[str, str]]:
    """Yields the components whose state in a checkpoint cannot be loaded into their meshes, and why. Raises
    `ValueError` for a damaged file."""
    for component in plan.components:
        if not component.frozen:
            varying = VaryingState.read(checkpoint / component.name)
            if reason := varying.refusal(component.name, component.mesh):
                yield component.name, reason


def code_of(plan: Plan, path: Sequence[str]) -> dict[str, str]:
    """Returns component -> a digest of its code, for the components in the user's folders."""
    digests = {component.name: code_digest(component.target, path) for component in plan.components}
    return {name: digest for name, digest in digests.items() if digest}
