"""Writes the problems: `python data.py` makes train.jsonl and exam.jsonl beside this file, the same bytes
every time.

All sums of two numbers up to two digits that have two digits themselves, written with leading zeros: 5,050
problems. 300 of them, drawn at random, are the exam and stand in no other file.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

HELD_OUT = 300


def problems() -> list[dict[str, str]]:
    """Every problem once, shuffled."""
    pairs = [(a, b) for a in range(100) for b in range(100 - a)]
    random.Random(7).shuffle(pairs)
    return [{"question": f"{a:02}+{b:02}", "answer": f"{a + b:02}"} for a, b in pairs]


def write(folder: Path) -> None:
    every = problems()
    for name, rows in (("exam", every[:HELD_OUT]), ("train", every[HELD_OUT:])):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )


if __name__ == "__main__":
    write(Path(__file__).parent)
