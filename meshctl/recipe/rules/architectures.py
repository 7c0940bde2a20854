"""MC439 and MC440: checks the architecture of a component's model against its layout.

A class declares `LAYOUTS = {"tp_plan": "transformers"}` if it splits a model over tp ranks by the plan that
the library has for the architecture.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.modules import Unread
from meshctl.recipe.meshes import sizes_of
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.layouts import LayoutNeeds


def architecture_has_tp_plan(facts: Facts) -> Iterator[Diagnostic]:
    """The library has a plan for tp of the architecture. Each architecture is reported once for a mesh."""
    reported: set[tuple[str, str]] = set()
    for name, mesh in facts.meshes.items():
        tp = mesh.size("tp")
        plan = facts.tp_plans.get(name) if tp > 1 else None
        if plan is None or plan.exists is True:
            continue
        component, kind = facts.recipe.components[name], plan.model_type
        owner, sizes = sizes_of(facts.recipe, component)
        if (owner.name, kind) in reported:
            continue
        reported.add((owner.name, kind))
        span = facts.value("components", owner.name, "parallel", "tp_size")
        seconds = (plan.span.with_word(f"`model_type` is {kind}"),)
        if isinstance(plan.exists, Unread):
            message = f"whether `{kind}` of `{name}` can be split over tp ranks is unknown: {plan.exists.why}"
            yield Diagnostic("MC440", message, span, seconds, severity="note")
        else:
            message = f"`tp_size` is {tp}, but transformers has no plan that splits `{kind}` over tp ranks"
            yield Diagnostic("MC439", message, span, seconds, LayoutNeeds(facts, component, sizes).help)


RULES = (architecture_has_tp_plan,)
