"""Writes the tables of the documents: `python docs/reference.py`.

Those of keys in docs/recipes.md, docs/runs.md and docs/engines.md come from the table of fields, that of
docs/faults.md comes from the cases of the benchmark `faults`, and those of docs/models.md come from the
layouts that tests compare with one process, and from the declarations of `hf.Model`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.fault_cases import CASES, FAULTS
from docs import combinations
from meshctl.foreign import table as foreign
from meshctl.recipe import engine_fields, fields, jobset_fields
from meshctl.recipe.field_types import Field, Section
from meshctl.recipe.tracker_fields import TRACKER_SECTIONS
from tests.hf import families, layouts

FILES = [
    Path(__file__).with_name(name)
    for name in (
        *("recipes.md", "runs.md", "engines.md", "faults.md", "models.md"),
        *(f"from-{system}.md" for system in foreign.NAMES),
    )
]
SHOWN = {
    "recipe": fields.RECIPE,
    "cluster": fields.CLUSTER,
    "pool": fields.POOL,
    "group": fields.GROUP,
    "component": fields.COMPONENT,
    "parallel": fields.PARALLEL,
    "model": fields.MODEL,
    "call": fields.CALL,
    "dispatch": fields.DISPATCH,
    "input": fields.INPUT,
    "sync": fields.SYNC,
    "block": fields.BLOCK,
    "repeat": fields.REPEAT,
    "run": fields.RUN,
    "checkpoint": fields.CHECKPOINT,
    "best": fields.BEST,
    "stop": fields.STOP,
    "restarts": fields.RESTARTS,
    "elastic": fields.ELASTIC,
    "logs": fields.LOGS,
    **{section.name: section for section in TRACKER_SECTIONS},
    "trace": fields.TRACE,
    "engine": engine_fields.ENGINE,
    "remote": engine_fields.COMMANDS,
    "ssh": engine_fields.SSH,
    "ray": engine_fields.RAY,
    "jobset": engine_fields.JOBSET,
    "volume": jobset_fields.VOLUME,
    "toleration": jobset_fields.TOLERATION,
    "slurm": engine_fields.SLURM,
}
"""Name of a marker in a document -> the section whose keys stand there."""
WORDS = {
    "device types": fields.DEVICE_TYPES,
    "dispatch modes": fields.DISPATCH_MODES,
    "execute modes": fields.EXECUTE_MODES,
    "collect modes": fields.COLLECT_MODES,
    "times": fields.TIMES,
}


def table(section: Section) -> str:
    rows = [
        f"| `{field.key}` | {_default(field)} | {field.doc.replace('|', chr(92) + '|')} |"
        for field in section.fields
    ]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows])


def _default(field: Field) -> str:
    if field.required:
        return "required"
    return "" if field.default is None else f"`{field.default}`"


def words(meanings: dict[str, str]) -> str:
    return "\n".join(
        [
            "| word | meaning |",
            "| --- | --- |",
            *(f"| `{word}` | {text} |" for word, text in meanings.items()),
        ]
    )


def faults() -> str:
    """Returns a row for each case of the benchmark `faults`, in the order of the numbers of the faults."""
    rows = []
    for number, title in FAULTS.items():
        named = title
        for case in (case for case in CASES if case.fault == number):
            rows.append(f"| {named} | {case.what.replace('|', chr(92) + '|')} | {case.bar} |")
            named = ""
    return "\n".join(["| fault | case | what a user sees |", "| --- | --- | --- |", *rows])


def filled(text: str) -> str:
    """Returns a document with every table between its markers generated."""
    tables = {name: table(section) for name, section in SHOWN.items()}
    tables |= {name: words(meanings) for name, meanings in WORDS.items()}
    tables["faults"] = faults()
    declared = combinations.declared()
    tables["pairs of dims"] = combinations.pairs(layouts.ALL, layouts.CARVED, declared)
    tables["families"] = of_families()
    tables["exclusions"] = combinations.exclusions(declared)
    tables |= {f"keys of {name}": keys_of(name) for name in foreign.NAMES}
    for name, content in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        if found:
            text = f"{before}{begin}\n\n{content}\n\n{end}{after}"
    return text


def keys_of(system: str) -> str:
    """Returns the table of the keys of another system that its page shows."""
    table = foreign.table(system)
    rows = [f"| `{key}` | {_place(table.keys[key])} |" for key in table.shown]
    return "\n".join([f"| {table.title} | in a recipe |", "| --- | --- |", *rows])


def _place(row: foreign.Row) -> str:
    if row.part:
        return f"with `{row.part}`"
    if row.to:
        return f"`{row.to[0]}`"
    used = " and ".join(f"`{part}`" for part in row.uses)
    return f"the part {used}" if used else row.lost or "nothing"


def of_families() -> str:
    """Returns the table of families and layouts."""
    names = [*families.LAYOUTS, families.SAMPLED]
    rows = [f"| family | `model_type` | {' | '.join(names)} |", f"| --- | --- |{' --- |' * len(names)}"]
    for family, config in families.FAMILIES.items():
        cells = [families.cell(family, name) for name in names]
        rows.append(f"| {family} | `{config['model_type']}` | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    for file in FILES:
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
