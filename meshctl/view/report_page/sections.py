"""The sections of the report about one run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from heapq import nlargest
from typing import Any

from meshctl.plan.views.topology import topology
from meshctl.run.episodes import episodes_of
from meshctl.run.events import Event, restart_line
from meshctl.text.english import counted
from meshctl.text.redaction import redact
from meshctl.view.episodes import SAMPLED, conversation
from meshctl.view.formatting import count, duration, number, rate, size
from meshctl.view.live.summary import route_rows
from meshctl.view.pictures.svg import document
from meshctl.view.report_page.markup import Child, Markup, inner, tag
from meshctl.view.report_page.record import RunRecord
from meshctl.view.times import conclusions, rows

MAX_FAULTS, MAX_WARNINGS, MAX_GROUP_RESTARTS, MAX_EPISODES = 12, 50, 50, 5


def table(heads: Sequence[Child], rows: Iterable[Sequence[Child]], numbers: Sequence[int] = ()) -> Markup:
    """Returns a table, or nothing without rows. The columns `numbers` are right-aligned."""
    kinds = ["n" if column in numbers else None for column in range(len(heads))]
    head = [tag("th", text, scope="col", class_=kind) for text, kind in zip(heads, kinds, strict=True)]
    body = [
        tag("tr", [tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)])
        for row in rows
    ]
    if not body:
        return Markup()
    return tag("div", tag("table", tag("thead", tag("tr", head)), tag("tbody", body)), class_="scroll")


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs], class_="facts")


def details(summary: Child, *children: Child, is_open: bool = False) -> Markup:
    return tag("details", tag("summary", summary), *children, open=is_open)


def quoted(text: str) -> Markup:
    """Returns a message, with text in backticks as code."""
    return inner(*(tag("code", part) if at % 2 else part for at, part in enumerate(text.split("`"))))


def when(seconds: float) -> str:
    """Returns a time since the epoch as local time with its zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds)) if seconds else ""


# The head


def episode_list(record: RunRecord) -> Markup:
    """Returns the slowest of the kept episodes of agents, each as a conversation."""
    kept = nlargest(MAX_EPISODES, episodes_of(record.seen.run), key=lambda one: one.seconds)
    found = list[Markup]()
    for one in kept:
        text = [
            tag("mark", f"{line}\n") if line.startswith(SAMPLED) else f"{line}\n"
            for line in map(redact, conversation(one))
        ]
        summary = f"{one.id} of {one.component}: {one.reason}, {counted(len(one.calls), 'turn')}, "
        found.append(details(summary + duration(one.seconds), tag("pre", *text, class_="recipe", tabindex=0)))
    return inner(*found)


def state_word(record: RunRecord) -> Markup:
    return tag("span", record.seen.condition, class_=f"state {record.seen.condition}")


def head_facts(record: RunRecord) -> Markup:
    seen, state = record.seen, record.seen.state
    found: list[tuple[str, Child]] = [("steps", steps(record)), ("duration", duration(seen.seconds))]
    if state.steps_per_second:
        found.append(("speed", rate(state.steps_per_second)))
    whole, now = seen.plan.job_size, sum(group.workers for group in state.groups.values())
    workers = str(whole) if now == whole else f"{now} of {whole}"
    found.append(("workers", f"{workers} in {count(len(seen.plan.groups), 'group')}"))
    if record.seen.checkpoints:
        found.append(("newest checkpoint", f"step {record.seen.checkpoints[-1]}"))
    if state.restarts:
        found.append(("restarts", str(len(state.restarts))))
    if began := when(state.times.began):
        found.append(("launched", began))
    return facts(found)


def steps(record: RunRecord) -> str:
    state = record.seen.state
    return f"{state.step} of {state.steps}" if state.steps else str(state.step)


def cause(record: RunRecord) -> Markup:
    """Returns the reason of the end of the run, or of its wait; empty if there is none."""
    seen, state = record.seen, record.seen.state
    if seen.condition == "lost":
        return tag(
            "p", "The launcher of the run is gone and has written no end: it was killed.", class_="cause"
        )
    if seen.condition == "stalled":
        return tag("pre", "\n".join(map(redact, state.stall)), class_="cause")
    if state.reason:
        kind = "cause" if seen.condition in ("failed", "interrupted") else "reason"
        return tag("p", redact(state.reason), class_=kind)
    return tag("p", seen.where, class_="reason") if seen.where else Markup()


# Topology and times


def topology_picture(record: RunRecord) -> Markup:
    return tag("div", Markup(document(topology(record.seen.plan))), class_="scroll topology", tabindex=0)


def time_table(record: RunRecord) -> Markup:
    """Returns the time of each group in a step, and the bound of the run; empty for a run without a step."""
    use = record.seen.state.time_use
    if use is None:
        return Markup()
    heads, *found = rows(use)
    shares = [(*row[:3], _bar(float(row[3].split()[0]) / 100), *row[3:]) for row in found]
    lines = [tag("li", quoted(text[0].upper() + text[1:] + ".")) for text in conclusions(use)]
    return inner(
        table((*heads[:3], heads[3], "", "waits for"), shares, (2, 4)), tag("ul", lines, class_="conclusions")
    )


def _bar(share: float) -> Markup:
    width = round(min(1.0, max(0.0, share)) * 100, 1)
    filled = tag("rect", width=f"{width:g}%", height=8, class_="filled")
    return tag("svg", tag("rect", width="100%", height=8, class_="rest"), filled, class_="bar", height=8)


def route_table(record: RunRecord) -> Markup:
    heads, *rows = [*route_rows(record.seen.state)] or [()]
    return table(heads, rows, (1, 2))


# Faults


def attempt_table(record: RunRecord) -> Markup:
    """Returns the attempts of a run with more than one."""
    attempts = record.attempts
    if len(attempts) < 2:
        return Markup()
    rows = list[Sequence[Child]]()
    for each in attempts:
        after = f"step {each.step}" if each.step else "the beginning"
        workers = ", ".join(f"{name} {count}" for name, count in each.workers.items())
        rows.append(
            (str(each.number), when(each.time), after, workers, str(each.lost or ""), redact(each.cause))
        )
    heads = ("attempt", "began", "continued after", "workers", "steps that ran again", "why it ended")
    return table(heads, rows, (0, 4))


def group_restarts(record: RunRecord) -> Markup:
    """Returns the last restarts of single groups."""
    found = [event for event in record.events("restarted") if "group" in event.value][-MAX_GROUP_RESTARTS:]
    items = [tag("li", when(event.time), ": ", redact(restart_line(event))) for event in found]
    return tag("ul", items) if items else Markup()


def fault_list(record: RunRecord) -> Iterator[Markup]:
    """Yields the failures with their tracebacks. Workers with the same traceback have one entry."""
    known: dict[tuple[str, str], list[Event]] = {}
    for event in record.faults:
        text = str(event.value.get("traceback", ""))
        known.setdefault((str(event.value.get("error", "")), text), []).append(event)
    for index, ((error, traceback), events) in enumerate(list(known.items())[:MAX_FAULTS]):
        first = events[0]
        names = (f"{one.group}:{one.rank}" if one.rank is not None else one.group for one in events[:4])
        who = ", ".join(filter(None, names)) + (f" and {len(events) - 4} more" if len(events) > 4 else "")
        stage = f"stage {first.stage}" if first.stage else ""
        step = f"step {first.step}" if first.step else ""
        where = ", ".join(filter(None, (who, stage, step, _at(record, first))))
        line = inner(tag("strong", redact(error)), " ", tag("span", where, class_="muted"))
        if traceback:
            yield details(line, tag("pre", redact(traceback.rstrip())), is_open=index == 0)
        else:
            yield tag("p", line, class_="fault-line")
    if len(known) > MAX_FAULTS:
        yield tag("p", f"{len(known) - MAX_FAULTS} further failures are not shown.", class_="note")


def _at(record: RunRecord, event: Event) -> str:
    return f"after {duration(record.clock.at(event.time))}" if record.clock.seconds else ""


def warning_list(record: RunRecord) -> Markup:
    """Returns the warnings of all attempts, each once."""
    texts = list(dict.fromkeys(str(event.value.get("text", "")) for event in record.events("warning")))
    if not texts:
        return Markup()
    shown = [tag("li", redact(text)) for text in texts[:MAX_WARNINGS]]
    if len(texts) > MAX_WARNINGS:
        shown.append(tag("li", f"{len(texts) - MAX_WARNINGS} further warnings are not shown.", class_="note"))
    return tag("ul", shown, class_="warnings")


def stall_list(record: RunRecord) -> Iterator[Markup]:
    """Yields the reports of stalls."""
    stalls = [event for event in record.events("stall") if event.value.get("workers")]
    for event in stalls[-MAX_FAULTS:]:
        first, *_ = event.value.get("text") or ["stalled"]
        text = "\n".join(map(str, event.value.get("text", ())))
        yield details(
            inner(str(first), " ", tag("span", _at(record, event), class_="muted")), tag("pre", redact(text))
        )


def log_list(record: RunRecord) -> Iterator[Markup]:
    for log in record.logs():
        text = "\n".join(log.lines)
        head = inner(tag("strong", log.worker), " ", tag("span", f"the end of {log.path}", class_="muted"))
        yield details(head, tag("pre", text or "The log is empty."), is_open=True)


def checkpoint_table(record: RunRecord) -> Markup:
    """Returns the checkpoints that exist, and the best of them."""
    metric, best = record.seen.run.read_best()
    values = {one.step: f"{metric} {number(one.value)}" for one in best}
    times = {event.step: when(event.time) for event in record.events("checkpoint")}
    heads = ("checkpoint", "published", "best value")[: 3 if values else 2]
    rows = [
        (f"step {step}", times.get(step, ""), values.get(step, ""))[: len(heads)]
        for step in record.seen.checkpoints
    ]
    return table(heads, rows)


def environment(record: RunRecord) -> Markup:
    """Returns the facts of the last launch, and a table of all of them where there were several."""
    rows = [(name, value) for name, value in facts_of(record).items() if value]
    if not rows:
        return Markup()
    found: list[Child] = [facts(rows)]
    if len(record.launches) > 1:
        launches = [
            (when(_number(one.get("time"))), _text(one.get("host")), " ".join(overrides_of(one)))
            for one in record.launches
        ]
        found += [tag("h3", "Launches"), table(("launched", "host", "overrides"), launches)]
    return inner(*found)


def facts_of(record: RunRecord) -> dict[str, str]:
    """Returns the facts of the last launch by name. The text of an unknown fact is empty."""
    launch = record.launches[-1] if record.launches else {}
    packages = launch.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    launcher, found = record.seen.launcher, launch.get("gpus")
    gpus = Counter(map(str, found if isinstance(found, list) else ()))
    return {
        "host": _text(launch.get("host")) or (launcher.host if launcher else ""),
        "folder": _text(launch.get("folder")),
        **{str(name): _text(version) for name, version in versions.items()},
        "python": _text(launch.get("python")),
        "system": _text(launch.get("system")),
        "CPUs": _text(launch.get("cpus")),
        "main memory": size(memory) if (memory := _number(launch.get("memory"))) else "",
        "GPUs": ", ".join(count(number, name) if number > 1 else name for name, number in gpus.items()),
        **record.git,
    }


def overrides_of(launch: Mapping[str, Any]) -> list[str]:
    found = launch.get("overrides")
    return [redact(str(each)) for each in found] if isinstance(found, list) else []


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


CONTEXT = 3
"""Number of equal lines around a difference that are shown."""


def compared_recipes(before: str, after: str) -> Markup:
    """Returns the lines in which two recipes differ, with some equal lines around them."""
    one, two = before.splitlines(), after.splitlines()
    if one == two:
        return tag("p", "The two recipes are the same.", class_="note")
    shown = list[Child]()
    for line in [*unified_diff(one, two, n=CONTEXT, lineterm="")][2:]:
        if line.startswith("@@"):
            shown += [tag("span", "…\n", class_="muted")] if shown else []
        else:
            text = f"{line[0]} {line[1:]}\n"
            shown.append(tag("del" if line[0] == "-" else "ins", text) if line[0] in "+-" else text)
    return tag("pre", shown, class_="recipe", tabindex=0)
