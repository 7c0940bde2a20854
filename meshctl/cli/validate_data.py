"""`meshctl validate --data`: encodes every row of the ready-made sources of a recipe, in one child process
for each interpreter. No class and no function of the user runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from meshctl.cli.load import Launchable
from meshctl.diagnostics import Diagnostic
from meshctl.engines.node.worker_env import server_python
from meshctl.runtime.instantiate import TargetError, resolved
from meshctl.text.english import counted

ROOM = "meshctl.data."
COMMAND = ("-P", "-m", "meshctl.data.examination")


def data_findings(launchable: Launchable) -> Iterator[Diagnostic]:
    """Yields a diagnostic for each source with rows that cannot be used, or that is not examined."""
    facts, requests = launchable.facts, dict[str, dict[str, Any]]()
    if facts is None:
        return
    for component in launchable.plan.components:
        shipped = facts.declares(component.name).shipped
        if not shipped.suffixes:
            continue
        if not component.target.startswith(ROOM):
            message = f"the rows of `{component.name}` are not examined: `{component.target}` is not imported"
            yield Diagnostic(
                "MC449", message, facts.value("components", component.name, "_target_"), severity="note"
            )
            continue
        try:
            args = {key: resolved(value, key, "") for key, value in component.args.items()}
        except TargetError as error:
            message = f"the rows of `{component.name}` are not examined: {error}"
            yield Diagnostic("MC449", message, facts.value("components", component.name), severity="note")
            continue
        python = server_python(launchable.plan.group(component.group), launchable.path)
        one = {"class": component.target.removeprefix(ROOM), "args": args}
        requests.setdefault(python, {})[component.name] = one
    for python, sources in requests.items():
        for name, answer in _answers(python, launchable.path, sources).items():
            span = facts.value("components", name, "args", "path")
            if failure := answer["failure"]:
                yield Diagnostic("MC447", f"the rows of `{name}` cannot be read: {failure}", span)
            if not answer["bad"]:
                continue
            skips = launchable.plan.component(name).args.get("bad_rows") == "skip"
            message = f"{answer['bad']} of {counted(answer['rows'], 'row')} of `{name}` cannot be used"
            first, left = answer["first"], answer["bad"] - len(answer["first"])
            help = "\n".join([*first, *[f"and {left} more"] * (left > 0)])
            found = Diagnostic("MC447", message, span, help=help)
            yield replace(found, severity="warning") if skips else found


def _answers(python: str, path: tuple[str, ...], sources: dict[str, Any]) -> dict[str, Any]:
    request = json.dumps({"path": path, "sources": sources})
    done = subprocess.run([python, *COMMAND], input=request, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {name: {"rows": 0, "bad": 0, "first": [], "failure": f"{python}: {last}"} for name in sources}
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers
