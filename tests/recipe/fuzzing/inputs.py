"""Inputs of the commands that read recipes: recipes with random changes, overrides, included files, file names,
environments and words to complete."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.paths import ROOT
from tests.recipe.mutations import OVERRIDES as OVERRIDES_OF

GOLDEN, CORRECT_RECIPES = (Path(__file__).parents[1] / name for name in ("golden", "correct"))
CODE = (str(GOLDEN), str(CORRECT_RECIPES), str(ROOT / "recipes"))
"""Folders of the components of the recipes."""
MAX_BYTES = 1 << 20
ENVIRONMENT = {
    **{"HOME": "secret-home", "X": "secret-x", "N": "7", "KIND": "cpu", "EMPTY": ""},
    "ODD": "\x1b[31m\u202e${X}",
}
PIECES = (
    *("${", "}", "${seed}", "${oc.env:HOME}", "${oc.env:X,1}", "${a.b}", "${.x}", "${..x}"),
    *("${nope:1}", "???", "null", "~", "-1", "1e3", "010", "1:30", "yes", "on:", ".inf", ".nan"),
    *("0x1F", "1_000", "999999999999999999999", "''", '"', "'", "&a ", "*a", "<<: *a", "- ", ": "),
    *("? ", "[", "]", "{", "}", "#", "|", ">", "%YAML 1.1\n", "---\n", "...\n"),
    *("!!python/object/apply:os.system ['x']", "!x ", "\t", "\r\n", "\ufeff", "\x00", "\x1b[31m"),
    *("\u2028", "漢字", "é", "\U0001f600", "@", "`", ",", "=", "  ", "\n", "\n  "),
    *("defaults:\n  - base\n", "_self_", "auto", "ranks: ", "device_type: ", "parallel: "),
    *("tp_size: ", "pipeline:\n", "call: ", "in: ", "sync: ", "_target_: ", "optional "),
    *("override ", "pkg://os", "structured://x", "hydra: {searchpath: ['pkg://evil']}\n"),
    *("- /layout@components.a.parallel: dp\n", "package: _global_"),
)
KEYS = (
    *("seed", "run.steps", "groups.train.ranks", "components.actor.parallel.tp_size"),
    *("components.actor.parallel", "layout@components.actor.parallel", "run", "groups"),
)
VALID_OVERRIDES = tuple(sorted({override for some in OVERRIDES_OF.values() for override in some}))
WORD, NUMBER = re.compile(rb"\w+"), re.compile(rb"(?<![\w.])\d+(?![\w.])")
NUMBERS = (b"1", b"2", b"3", b"4", b"8", b"64", b"0", b"1000000")
OVERRIDES = (
    *("+", "++", "~", "=", "[", "]", "{", "}", ",", "'", '"', "\\", "range(1,3)", "choice(1,2)"),
    *("a.b", "0", "null", "${seed}", " ", "()", "@", ":"),
)
INCLUDES = (
    *("base", "./near", "conf/own", "layout@components.actor.parallel: own", "run@run: quick", "near@vars"),
)
"""Entries of defaults lists."""
NAMES = (
    *("recipe.yaml", "r\u202e.yaml", "a b.yml", "-x.yaml", "\x1b[31m.yaml", "token=abc.yaml", "漢.yaml"),
    "x" * 200 + ".yaml",
)


@dataclass(frozen=True)
class Input:
    recipe: bytes
    overrides: tuple[str, ...] = ()
    name: str = "recipe.yaml"
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The other files of the recipe's folder."""
    environ: Mapping[str, str] = field(default_factory=lambda: ENVIRONMENT)
    word: str = ""
    """The word to complete; empty for no completion."""


def corpus() -> list[bytes]:
    return [path.read_bytes() for path in (*sorted(GOLDEN.glob("*.yaml")), *_correct())]


def _correct() -> list[Path]:
    return [*sorted(CORRECT_RECIPES.glob("*.yaml")), *sorted((ROOT / "recipes").glob("*.yaml"))]


def mutated(recipes: list[bytes], chance: random.Random) -> Input:
    """Returns a recipe with a few changed parts, and sometimes with overrides, included files or an unusual
    name."""
    change = chance.choice((_changed, _with_other_words, _with_other_numbers))
    is_correct = change is _with_other_numbers
    recipe = change(chance.choice(recipes[-len(_correct()) :] if is_correct else recipes), recipes, chance)
    files = {}
    if chance.random() < 0.3:
        entries = chance.choices(INCLUDES, k=chance.randrange(1, 5))
        listed = "".join(f"  - {entry}\n" for entry in [*entries, "_self_"])
        recipe = f"defaults:\n{listed}".encode() + recipe
        names = ("near", "base", "conf/own", "conf/layout/own", "conf/run/quick")
        files = {
            f"{name}.yaml": _changed(_included(chance) + chance.choice(recipes), recipes, chance)
            for name in names
        }
    return Input(
        recipe,
        tuple(_override(chance) for _ in range(chance.choice((0, 0, 0, 1, 2)))),
        chance.choice(NAMES) if chance.random() < 0.2 else "recipe.yaml",
        files,
        {name: text for name, text in ENVIRONMENT.items() if chance.random() < 0.8},
        _override(chance)[: chance.randrange(30)] if chance.random() < 0.3 else "",
    )


def _included(chance: random.Random) -> bytes:
    header = chance.choice(("", "", "# @package _global_\n", "# @package run\n", "# @package a.b\n"))
    return f"{header}defaults: [{chance.choice(('', './near', 'base', '/conf/own@_here_', '_self_'))}]\n".encode()


def grown(chance: random.Random) -> Input:
    """Returns an input of about 1 MiB in which one part is repeated."""
    more = ("token: ", "--token ", "a: b\n", "- x\n", "hf_aBcDeFgHiJkLmNoPqRsTuV ", "://a:b@c ", "'x', ", "é")
    pieces = (*PIECES, *more)
    piece = "".join(chance.choices(pieces, k=chance.choice((1, 1, 2, 3)))).replace("\x00", "")
    count = MAX_BYTES // max(1, len(piece.encode())) - 200
    numbered = "".join(f"{piece}{number}" for number in range(count // 2))[: MAX_BYTES - 10_000]
    repeated = chance.choice((piece * count, numbered))
    around = (
        *("vars: {{x: '{}'}}\n", "{}", "# {}\n", "vars:\n  x: |\n    {}\n", "groups: {{a: [{}]}}\n"),
        'name: "{}"\n',
    )
    group = "groups: {a: {ranks: 1, device_type: cpu, program: recipe.yaml}}\n"
    text = chance.choice(around).format(repeated) + group
    overrides = (f"+vars.y={piece}",) if chance.random() < 0.3 else ()
    word = _override(chance)[: chance.randrange(30)] if chance.random() < 0.3 else ""
    return Input(text.encode()[:MAX_BYTES], overrides, word=word)


def _changed(text: bytes, recipes: list[bytes], chance: random.Random) -> bytes:
    recipe = bytearray(text)
    for _ in range(chance.choice((1, 1, 2, 3, 5, 8))):
        at = chance.randrange(len(recipe) + 1)
        match chance.randrange(7):
            case 0:
                recipe[at : at + chance.randrange(1, 20)] = b""
            case 1:
                recipe[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 4)))
            case 2:
                other = chance.choice(recipes)
                start = chance.randrange(len(other) + 1)
                recipe[at:at] = other[start : start + chance.randrange(200)]
            case 3:
                lines = recipe.split(b"\n")
                lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
                recipe = bytearray(b"\n".join(lines))
            case 4:
                many = chance.choice((1, 1, 1, 2, 100))
                recipe[at : at + chance.randrange(4)] = chance.choice(PIECES).encode() * many
            case _:
                recipe[at:at] = chance.choice(PIECES).encode()
    return bytes(recipe)


def _with_other_words(text: bytes, recipes: list[bytes], chance: random.Random) -> bytes:
    """Replaces a few words by words of other recipes and by pieces of YAML."""
    for _ in range(chance.choice((1, 1, 2, 3, 5))):
        words, others = list(WORD.finditer(text)), WORD.findall(chance.choice(recipes))
        if not words or not others:
            return text
        found, other = chance.choice(words), chance.choice(others)
        piece = chance.choice(PIECES).encode() if chance.random() < 0.2 else other
        text = text[: found.start()] + piece + text[found.end() :]
    return text


def _with_other_numbers(text: bytes, recipes: list[bytes], chance: random.Random) -> bytes:
    """Replaces up to three numbers."""
    for _ in range(chance.randrange(4)):
        if found := list(NUMBER.finditer(text)):
            at = chance.choice(found)
            text = text[: at.start()] + chance.choice(NUMBERS) + text[at.end() :]
    return text


def _override(chance: random.Random) -> str:
    if chance.random() < 0.3:
        return chance.choice(VALID_OVERRIDES)
    pieces = (*OVERRIDES, *PIECES, *KEYS)
    made = f"{chance.choice(('', '', '+', '++', '~'))}{chance.choice(KEYS)}={chance.choice(pieces)}"
    for _ in range(chance.choice((0, 0, 1, 3))):
        at = chance.randrange(len(made) + 1)
        made = made[:at] + chance.choice(pieces) + made[at + chance.randrange(3) :]
    return made.replace("\x00", "")


CORRECT = Input(
    b"defaults: [layout@components.a.parallel: dp, _self_]\n"
    b"groups: {g: {ranks: 2, device_type: cpu}, p: {ranks: 1, device_type: cpu, program: recipe.yaml}}\n"
    b"components: {a: {_target_: meshctl.components.Cycle, group: g, args: {path: x.jsonl}}}\n"
    b"pipeline: {b: {call: a.next, samples: 4}}\nrun: {steps: 1}\n"
)
