"""The environment of a launch: its overrides, versions and machine, for one run or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshctl.text.redaction import redact
from meshctl.view.formatting import count, size
from meshctl.view.report_page.markup import Child, Markup, inner, tag
from meshctl.view.report_page.record import RunRecord
from meshctl.view.report_page.sections import facts, table, when


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


def compared(records: Sequence[RunRecord]) -> Markup:
    """Returns a table of the facts of both runs. Those that differ are marked."""
    both = [facts_of(record) for record in records]
    rows = list[Sequence[Child]]()
    for name in dict.fromkeys(name for one in both for name in one):
        values = [one.get(name, "") for one in both]
        if any(values):
            differs = all(values) and len(set(values)) > 1
            rows.append((name, *(tag("mark", value) if differs else value for value in values)))
    return table(("", *(record.seen.name for record in records)), rows) if rows else Markup()


def facts_of(record: RunRecord) -> dict[str, str]:
    """Returns the facts of the last launch by name. The text of an unknown fact is empty."""
    launch = record.launches[-1] if record.launches else {}
    packages = launch.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    launcher = record.seen.launcher
    return {
        "host": _text(launch.get("host")) or (launcher.host if launcher else ""),
        "folder": _text(launch.get("folder")),
        **{str(name): _text(version) for name, version in versions.items()},
        "python": _text(launch.get("python")),
        "system": _text(launch.get("system")),
        "CPUs": _text(launch.get("cpus")),
        "main memory": size(memory) if (memory := _number(launch.get("memory"))) else "",
        "GPUs": _gpus(launch.get("gpus")),
        **record.git,
    }


def _gpus(names: Any) -> str:
    if not isinstance(names, list):
        return ""
    return ", ".join(
        count(names.count(name), str(name)) if names.count(name) > 1 else str(name)
        for name in dict.fromkeys(map(str, names))
    )


def overrides_of(launch: Mapping[str, Any]) -> list[str]:
    found = launch.get("overrides")
    return [redact(str(each)) for each in found] if isinstance(found, list) else []


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
