"""Writes the prompts: `python data.py` writes prompts.jsonl to this folder, with the same bytes every time.

A prompt is a text of one to four letters in the order of the alphabet, such as `hij`. `a` follows `z`.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_lowercase

LENGTHS = (1, 2, 3, 4)


def prompts() -> list[str]:
    letters = ascii_lowercase * 2
    return [letters[start : start + length] for length in LENGTHS for start in range(26)]


def write(folder: Path) -> None:
    rows = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts())
    (folder / "prompts.jsonl").write_text(rows, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
