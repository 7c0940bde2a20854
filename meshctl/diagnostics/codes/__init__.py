"""The pages of codes. Each code has one page in this folder, and is not registered anywhere else.

    MC410.md
        # error[MC410]: the sizes do not make up the ranks of the group       as reports begin; at most 80
                                                                              characters
                                                                              why it is refused, and what to
                                                                              write instead
        ## wrong                                                              a recipe that is reported with
                                                                              this code and no other;
                                                                              `## wrong (also MC517)` where
                                                                              others cannot be avoided
        ## right                                                              the same, and nothing is
                                                                              reported

Text is plain and at most 78 columns wide. A recipe is in a yaml fence. Another fence contains another file,
whose name follows the language, as in `python judge.py`; a third word is its encoding. The first line of a
recipe may be a command: `# meshctl validate recipe.yaml run.steps=3`. Tests run every example, and check that
every code has a page and every page a code.

Codes are never renumbered or reused. The page of a code that is no longer reported is kept, with the severity
`retired` and without examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshctl.dataclass import dataclass

FOLDER = Path(__file__).parent
FENCE = "```"
SUBJECTS = {
    "0": "the file and its YAML",
    "1": "keys and types",
    "2": "composition and overrides",
    "3": "groups and devices",
    "4": "meshes",
    "5": "components and the pipeline",
    "6": "engines",
    "7": "the environment, and resumed runs",
    "8": "configurations of other systems",
    "9": "meshctl itself",
}
"""First digit of a code -> its subject."""
RETIRED = "retired"
"""The severity of a code that is no longer reported."""


@dataclass(frozen=True)
class Block:
    """The text in a fence."""

    language: str
    name: str
    """The file name; empty for the recipe."""
    encoding: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True)
class Section:
    pieces: tuple[str | Block, ...]
    """The paragraphs and fences in order."""
    also: tuple[str, ...] = ()
    """Other codes that are also reported for the recipe in this section."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Block))


@dataclass(frozen=True)
class Page:
    code: str
    severity: str
    title: str
    why: Section
    wrong: Section
    """Empty if the code is not about a recipe."""
    right: Section

    @property
    def is_retired(self) -> bool:
        return self.severity == RETIRED


def codes() -> tuple[str, ...]:
    """Returns all codes that have a page."""
    return tuple(sorted(path.stem for path in FOLDER.glob("MC*.md")))


def head(code: str) -> tuple[str, str]:
    """Returns (severity, title) of a code's page."""
    with open(FOLDER / f"{code}.md", encoding="utf-8") as file:
        return _head(file.readline())


def page(code: str) -> Page:
    """Reads the page of a code, which must exist."""
    first, *lines = (FOLDER / f"{code}.md").read_text(encoding="utf-8").splitlines()
    sections = dict(_sections(lines))
    nothing = Section(())
    return Page(
        code, *_head(first), sections[""], sections.get("wrong", nothing), sections.get("right", nothing)
    )


def _head(line: str) -> tuple[str, str]:
    severity, _, rest = line.removeprefix("# ").partition("[")
    return severity, rest.partition("]: ")[2].rstrip()


def _sections(lines: list[str]) -> Iterator[tuple[str, Section]]:
    """Yields (heading, section); the first section has no heading."""
    name, also, open, fenced = "", "", list[str](), False
    for line in lines:
        fenced ^= line.startswith(FENCE)
        if line.startswith("## ") and not fenced:
            yield name, Section(tuple(_pieces(open)), _others(also))
            (name, _, also), open = line.removeprefix("## ").partition(" "), []
        else:
            open.append(line)
    yield name, Section(tuple(_pieces(open)), _others(also))


def _others(text: str) -> tuple[str, ...]:
    """Returns the codes in `(also MC517, MC311)`."""
    return tuple(word for word in text.strip("()").replace(",", " ").split() if word.startswith("MC"))


def _pieces(lines: list[str]) -> Iterator[str | Block]:
    paragraph: list[str] = []
    rest = iter([*lines, ""])
    for line in rest:
        if line.strip() and not line.startswith(FENCE):
            paragraph.append(line)
            continue
        if paragraph:
            yield "\n".join(paragraph)
            paragraph = []
        if line.startswith(FENCE):
            language, name, encoding = (*line.removeprefix(FENCE).split(), "", "", "")[:3]
            yield Block(language, name, encoding or "utf-8", tuple(iter(rest.__next__, FENCE)))
