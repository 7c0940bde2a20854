"""One word per thing: identifiers that the terms of `docs/glossary.md` replaced do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import PACKAGE, ROOT

REPLACED = {
    "giver": "producer",
    "givers": "producers",
    "taker": "consumer",
    "takers": "consumers",
    "speaker": "producer",
    "speakers": "producers",
    "speaking": "producers",
    "hearer": "consumer",
    "hearers": "consumers",
    "hearing": "consumers",
    "heard": "received, last_seen",
    "heard_by": "producers_of",
    "teller": "leader",
    "tellers": "leaders",
    "voices": "producer_ranks",
    "say": "write, send, announce",
    "said": "header, stated, shown, problem",
    "tell": "report, announce, send",
    "told": "env, sent, announced",
    "lend": "lease",
    "lent": "leased",
    "lending": "buffer_pool",
    "loan": "lease",
    "loans": "leases",
    "beside": "out_of_band",
    "shelf": "config_store",
    "mounted": "includes",
    "belongs": "misplaced",
    "home_of": "suggest_location",
    "outline_of": "partition_key",
    "tally_of": "run_state",
    "aside": "parallel_start",
    "handed_back": "deserialize",
    "by_libc": "use_memmove",
    "reach_all": "connect_all",
    "wayerror": "ConnectError",
    "below_us": "user_frames",
    "strips": "mapped_concat",
    "seat": "RankLocation, StageContext",
    "crossing": "GroupPair",
    "lying": "BufferRef",
    "second_hop": "realign",
}
"""Replaced identifier in lower case and without leading underscores -> the words that replace it."""

NO_PART = {
    "giver", "givers", "taker", "takers", "speaker", "speakers", "speaking", "hear", "hears", "heard", "hearer",
    "hearers", "hearing", "teller", "tellers", "tell", "tells", "told", "say", "says", "said", "lend", "lends",
    "lent", "lending", "loan", "loans", "beside", "shelf",
}  # fmt: skip
"""Words that no identifier has as a part, names of tests and classes included."""
FOLDERS = (PACKAGE, ROOT / "tests", ROOT / "benchmarks")
OLD = "|".join(sorted({*REPLACED, *NO_PART}))
SUSPECT = re.compile(f"(?<![A-Za-z])(?i:{OLD})(?![a-z])|(?<=[a-z0-9])(?:{OLD.title()})(?![a-z])")
"""Matches in each file that may have a replaced identifier. Only these files are split into tokens."""


def identifiers(path: Path) -> dict[str, int]:
    """Returns the identifiers of a file, each with its last line. Strings, and so keys of JSON, are none. A file
    without a suspect word has none that could be replaced, and the result is empty."""
    text = path.read_text(encoding="utf-8")
    if not SUSPECT.search(text):
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.string: token.start[0] for token in tokens if token.type == tokenize.NAME}


def words_of(name: str) -> set[str]:
    """Returns the words of an identifier in snake case or camel case, in lower case."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return set(parts.lower().split("_"))


def replaced_in(path: Path) -> list[str]:
    found = []
    for name, line in identifiers(path).items():
        whole = name.lstrip("_").lower()
        if whole in REPLACED:
            found.append(f"{path}:{line}: `{name}` is now {REPLACED[whole]}")
        elif old := words_of(name) & NO_PART:
            found.append(f"{path}:{line}: `{name}` has the replaced word `{min(old)}`")
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_replaced_identifier(folder: Path) -> None:
    code = list(folder.rglob("*.py"))
    assert code and [found for path in code for found in replaced_in(path)] == []


def test_parts_of_identifiers_are_words(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("def test_it_is_said() -> BestTaker: ...\nessays = holder\n")
    assert [one.split("`")[1] for one in replaced_in(file)] == ["test_it_is_said", "BestTaker"]


def test_identifiers_are_names_and_not_strings(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text('_teller = {"giver": 1}  # a taker\nx.speakers\n')
    assert identifiers(file) == {"_teller": 1, "x": 2, "speakers": 2}


def test_the_glossary_defines_each_noun_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    nouns = [
        noun.strip()
        for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
        for noun in row.split(",")
        if noun.strip() not in ("noun", "---")
    ]
    assert len(nouns) > 40
    assert not {noun for noun in nouns if nouns.count(noun) > 1}


TRANSLATED = re.compile(
    r"\bthere (is|are) no (component|stage|group|config|module|route|rank|dim|view|code|format|file|folder)\b"
    r"|\bis no (?!longer|more|better)\w|\b(says|wants|lends)\b|\bis told\b|\bbelongs into\b|\bis there already\b"
)
"""Phrases that have a plainer form: "does not exist", "is not a", "needs", "goes under", "already exists"."""
REPORTS = [*sorted((PACKAGE / "recipe").rglob("*.py")), *sorted((PACKAGE / "topology").rglob("*.py"))]
REPORTS += sorted((PACKAGE / "cli").rglob("*.py"))


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each string that is not a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_messages_have_no_translated_phrases() -> None:
    assert [
        (path, line, text) for path in REPORTS for line, text in texts_of(path) if TRANSLATED.search(text)
    ] == []


def test_pages_have_no_translated_phrases() -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in (PACKAGE / "diagnostics/codes").glob("*.md")}
    prose = {path: re.sub("(?s)```.*?```", "", text) for path, text in pages.items()}
    assert prose and [path for path, text in prose.items() if TRANSLATED.search(text)] == []
