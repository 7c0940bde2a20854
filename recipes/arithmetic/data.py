"""Writes the problems: `python data.py` writes train.jsonl and exam.jsonl to this folder, with the same bytes
every time.

The problems are the 5,050 additions of two numbers below 100 whose sum is below 100, with leading zeros. A
random choice of 300 of them is the exam, the others are for training.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

HELD_OUT = 300
"""Problems of the exam."""


def problems() -> list[dict[str, str]]:
    """Returns every problem once, shuffled with a fixed seed."""
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
