"""Writes the data of the recipes that train models of transformers: `python data.py` writes chats.jsonl and
pairs.jsonl to this folder, with the same bytes every time.

The user writes a word of five random letters, and the assistant answers in the cipher ROT13, in which each
letter is replaced by the one 13 places further in the alphabet. Of a pair, the rejected answer repeats the
word. No word occurs twice, so held-out rows cannot be known by heart.
"""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Iterable
from pathlib import Path
from string import ascii_lowercase

ROWS = 1200
LETTERS = 5


def words() -> list[str]:
    """Returns different words, with a fixed seed."""
    draw, found = random.Random(13), dict[str, None]()
    while len(found) < ROWS:
        found["".join(draw.choices(ascii_lowercase, k=LETTERS))] = None
    return list(found)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def chat(word: str) -> dict[str, object]:
    return {"messages": [message("user", word), message("assistant", codecs.encode(word, "rot13"))]}


def pair(word: str) -> dict[str, object]:
    answers = {"chosen": codecs.encode(word, "rot13"), "rejected": word}
    sides = {side: [message("assistant", answer)] for side, answer in answers.items()}
    return {"prompt": [message("user", word)], **sides}


def write(folder: Path) -> None:
    _write(folder / "chats.jsonl", map(chat, words()))
    _write(folder / "pairs.jsonl", map(pair, words()))


def _write(file: Path, rows: Iterable[dict[str, object]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
