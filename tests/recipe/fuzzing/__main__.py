"""Fuzzes the commands that read recipes, with many inputs."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.recipe.fuzzing.checks import WATCH, Found, check, warm
from tests.recipe.fuzzing.inputs import corpus, grown, mutated

GROWN_EVERY = 200
"""Every n-th input is a large one."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    place, chance, recipes, start = Path.cwd(), random.Random(options.seed), corpus(), time.monotonic()
    sys.addaudithook(WATCH)
    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder))
        for number in range(1, options.inputs + 1):
            made = grown(chance) if number % GROWN_EVERY == 0 else mutated(recipes, chance)
            try:
                check(made, Path(folder))
            except Found as found:
                rest = f"# {replace(made, recipe=b'')!r}\n".encode(errors="replace")
                (place / "fuzz-found.yaml").write_bytes(rest + made.recipe)
                sys.exit(f"{found}; the input is in fuzz-found.yaml")
            if number % 10_000 == 0 or number == options.inputs:
                print(f"{number} inputs, {time.monotonic() - start:.0f} s", flush=True)


main()
