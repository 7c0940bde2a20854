"""Judges many mutations: `python -m tests.recipe.mutations --inputs 10000 --examples 2`."""

from __future__ import annotations

import argparse
from collections import Counter

from meshctl.view.reports.text import text as report_text
from tests.recipe.mutations.judge import GOOD, Verdict, judge, mutations


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=())
    parser.add_argument("--show", nargs="*", default=("several", "elsewhere", "no remedy"))
    options = parser.parse_args()
    verdicts = [judge(one) for one in mutations(options.inputs, options.seed, options.kinds)]
    shown = Counter[tuple[str, str]]()
    for one in verdicts:
        key = (one.mutation.kind, one.outcome)
        if one.outcome in options.show and shown[key] < options.examples:
            shown[key] += 1
            print(_example(one))
    outcomes = ("restored", "explained", "valid", "several", "elsewhere", "no remedy")
    print(f"{'':42}" + "".join(f"{name:>11}" for name in outcomes))
    for name in dict.fromkeys(one.mutation.kind for one in verdicts):
        counts = Counter(one.outcome for one in verdicts if one.mutation.kind == name)
        print(f"{name:42}" + "".join(f"{counts[outcome] or '':>11}" for outcome in outcomes))
    counts = Counter(one.outcome for one in verdicts)
    print(f"{'all':42}" + "".join(f"{counts[outcome] or '':>11}" for outcome in outcomes))
    judged = len(verdicts) - counts["valid"]
    print(
        f"{sum(counts[name] for name in GOOD) / judged:.1%} of {judged}, beside {counts['valid']} that are valid"
    )


def _example(verdict: Verdict) -> str:
    mutation = verdict.mutation
    lines = mutation.text.splitlines()
    number = mutation.text[: mutation.places[0][0]].count("\n")
    shown = mutation.override or "\n".join(lines[max(0, number - 2) : number + 3])
    report = report_text(verdict.report)
    cut = "\n".join(report.splitlines()[:45])
    return f"{'=' * 100}\n{mutation.kind}: {verdict.outcome} ({mutation.recipe.name}:{number + 1}; wants {mutation.remedies})\n{shown}\n{'-' * 60}\n{cut}\n"


main()
