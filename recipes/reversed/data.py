"""Writes the data of `model=smollm2`: `python data.py` writes chats.jsonl to this folder, with the same bytes
every time.

The user writes some words, and the assistant answers with the same words in reverse order. The user does not
say so, and a language model continues or answers the words instead: it has to learn the task.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

ROWS = 500
WORDS = """
    apple river stone cloud green seven paper music window garden yellow bread mountain winter coffee letter
    silver pencil island forest candle button market doctor summer bridge orange planet ticket rabbit kitchen
    engine bottle castle flower pocket dragon basket camera desert finger hammer jacket ladder mirror needle
"""


def sentences() -> list[list[str]]:
    """Returns different lists of four or five words, with a fixed seed."""
    words = WORDS.split()
    draw, found = random.Random(7), dict[tuple[str, ...], None]()
    while len(found) < ROWS:
        found[tuple(draw.sample(words, draw.choice((4, 5))))] = None
    return [list(words) for words in found]


def chat(words: list[str]) -> dict[str, object]:
    given, answer = " ".join(words), " ".join(reversed(words))
    return {"messages": [{"role": "user", "content": given}, {"role": "assistant", "content": answer}]}


def write(folder: Path) -> None:
    lines = [json.dumps(chat(words)) + "\n" for words in sentences()]
    (folder / "chats.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
