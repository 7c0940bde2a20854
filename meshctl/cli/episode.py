"""`meshctl episode` lists the kept episodes of agents, shows one, or runs its agent again with the kept
replies in place of a model."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from meshctl.cli.output import NO_RUN, refuse, why, write
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.episodes import KeptEpisode, episodes_of
from meshctl.run.finding import find, name_of
from meshctl.run.reading import DAMAGED
from meshctl.text.english import counted
from meshctl.text.redaction import redact
from meshctl.view.episodes import conversation, table, text_of
from meshctl.view.live.seen_run import plan_of_run
from meshctl.view.reports.text import shown

ID = re.compile(r"\d+(\.\d+)*")
INTERRUPTED = 130
DIFFERS = 1
"""The exit code for an agent that fails, or that asks something else than in the kept episode."""


def episode(words: Sequence[str], is_replayed: bool, folder: str) -> int:
    """`words` are a run and the id of an episode, both of which may be left out. Returns the exit code."""
    ids = [word for word in words if ID.fullmatch(word)]
    names = [word for word in words if word not in ids]
    if len(ids) > 1 or len(names) > 1:
        return refuse("name at most one run and one episode, such as 17.3")
    run = find(names[0] if names else "", Path(folder))
    try:
        kept = [one for one in episodes_of(run) if not ids or f"{one.id}.".startswith(f"{ids[0]}.")]
    except OSError as error:
        return refuse(f"{error.filename} cannot be read: {why(error)}", NO_RUN)
    if not kept:
        what = f"no episode {ids[0]}" if ids else "no episode"
        return refuse(f"{name_of(run)} has kept {what}: `episodes: true` of the agent keeps all", NO_RUN)
    is_one = bool(ids) and len({one.id for one in kept}) == 1
    if is_replayed and not is_one:
        return refuse("`--replay` needs one episode, such as 17.3")
    try:
        if is_replayed:
            return _replay(run, kept[-1])
        return _print([*(conversation(kept[-1]) if is_one else table(kept))])
    except DAMAGED as error:
        return refuse(f"an episode of {name_of(run)} cannot be used: {why(error)}", NO_RUN)


def _print(lines: Iterable[str]) -> int:
    write("".join(f"{shown(redact(line))}\n" for line in lines), sys.stdout)
    return 0


def _replay(run: RunDir, kept: KeptEpisode) -> int:
    from meshctl.agents.child import Failed
    from meshctl.agents.episodes import Repeated, replay  # which loads torch
    from meshctl.agents.runner import EMPTY, TIMEOUT_S
    from meshctl.runtime.component import ComponentError
    from meshctl.runtime.instantiate import extend_path, resolved

    plan: Plan = plan_of_run(run)
    args = resolved(dict(plan.component(kept.component).args), f"components.{kept.component}.args")
    extend_path(run.read_start().path)
    repeated = Repeated(kept)
    spec = {name: args.get(name) or empty for name, empty in EMPTY.items()}
    try:
        end, has_failed = asyncio.run(replay(kept, repeated, spec, args.get("timeout_s", TIMEOUT_S)))
    except (ComponentError, Failed) as error:
        return refuse(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    asked = f"{counted(len(repeated.answered), 'request')} of {len(kept.calls)} as in the kept episode"
    lines = [f"episode {kept.id}: {asked}; {end}"]
    if found := repeated.difference:
        theirs = found.nearest.messages[found.equal :] if found.nearest else []
        lines.append(f"the next request differs after {counted(found.equal, 'message')}:")
        for which, messages in (("asked now", found.messages[found.equal :]), ("kept", theirs)):
            own = next((one for one in messages if one["role"] != "assistant"), None)
            lines.append(f"  {which}: " + (f"{own['role']}: {text_of(own)}" if own else "no further message"))
    elif end.endswith("request"):
        lines.append("the kept episode ends here, and the agent goes on")
    _print(lines)
    return DIFFERS if found or has_failed or len(repeated.answered) < len(kept.calls) else 0
