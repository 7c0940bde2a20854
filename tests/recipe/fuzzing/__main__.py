"""Fuzzes the commands that read recipes, with many inputs."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from meshctl.recipe.load import Loaded
from tests.recipe.fuzzing.checks import WATCH, Found, check, warm
from tests.recipe.fuzzing.inputs import MAX_BYTES, Input, corpus, grown, mutated

GROWN_EVERY = 200
"""Every n-th input is a large one."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("mutations", "atheris"), default="mutations")
    options = parser.parse_args()
    place = Path.cwd()
    sys.addaudithook(WATCH)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm(folder)
        if options.engine == "atheris":
            return guided(folder, options.inputs, place)
        chance, recipes, start = random.Random(options.seed), corpus(), time.monotonic()
        kinds = Counter[str]()
        for number in range(1, options.inputs + 1):
            made = grown(chance) if number % GROWN_EVERY == 0 else mutated(recipes, chance)
            kinds.update(kinds_of(made, try_input(made, folder, place)))
            if number % 10_000 == 0 or number == options.inputs:
                print(f"{number} inputs, {time.monotonic() - start:.0f} s", flush=True)
        print(", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items())))


def kinds_of(one: Input, loaded: Loaded) -> Iterator[str]:
    """Yields what an input has tried."""
    files = {file for file, _ in loaded.report.sources if not file.startswith("override")}
    tried = {
        "several files": len(files) > 1,
        "overrides": bool(one.overrides),
        "a file name": one.name != "recipe.yaml",
        "a value of the environment": bool(loaded.secrets.environment),
        "a completion": bool(one.word),
        "valid YAML": loaded.readable,
        "drawn": loaded.readable and not loaded.report.errors,
        "1 MiB": len(one.recipe) > MAX_BYTES // 2,
    }
    yield from (kind for kind, is_tried in tried.items() if is_tried)
    yield from {found.code for found in loaded.report.diagnostics}


def try_input(one: Input, folder: Path, place: Path) -> Loaded:
    try:
        return check(one, folder)
    except Found as found:
        rest = f"# {replace(one, recipe=b'')!r}\n".encode(errors="replace")
        (place / "fuzz-found.yaml").write_bytes(rest + one.recipe)
        sys.exit(f"{found}; the input is in fuzz-found.yaml")


def guided(folder: Path, inputs: int, place: Path) -> None:
    """Runs libFuzzer through atheris; an input is a recipe and its overrides, separated by NUL."""
    import atheris

    atheris.instrument_all()

    def one(data: bytes) -> None:
        recipe, *overrides = data.split(b"\x00")
        given = tuple(override.decode(errors="replace") for override in overrides[:3])
        try_input(Input(recipe, given), folder, place)

    seeds = place / "seeds"
    seeds.mkdir(exist_ok=True)
    for number, recipe in enumerate(corpus()):
        (seeds / str(number)).write_bytes(recipe)
    atheris.Setup([sys.argv[0], f"-runs={inputs}", "-max_len=8192", str(seeds)], one)
    atheris.Fuzz()


main()
