"""Runs one benchmark in this checkout and in an earlier commit, in alternation, and compares their values.

    python benchmarks/against.py [--rounds 3] COMMIT NAME [ARGUMENT ...]

The value is the median ratio of the rounds. Above 1, this checkout is worse. ARGUMENTs go to the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOAL = 1.1
LARGER_IS_BETTER = ("data_plane", "overlap", "tcp_plane", "weight_sync")
OLD_NAME = "Metadata-Version: 2.4\nName: meshctl\nVersion: 0.1.0\nRequires-Dist: hydra-core\n"
"""The metadata of the distribution, which commits before its new name ask for their version."""


def value_of(root: Path, name: str, arguments: list[str]) -> float:
    """Returns the value in the last line of a benchmark, which is JSON."""
    environ = {**os.environ, "PYTHONPATH": f"{root}:{root / 'metadata'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, f"benchmarks/{name}.py", *arguments]
    done = subprocess.run(command, cwd=root, env=environ, stdout=subprocess.PIPE, text=True)
    if not done.stdout.strip():
        sys.exit(f"{name} printed nothing in {root}, and ended with exit code {done.returncode}")
    return float(json.loads(done.stdout.splitlines()[-1])["value"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("commit")
    parser.add_argument("name")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.check_output(["git", "archive", args.commit], cwd=ROOT)
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        metadata = Path(folder, "metadata", "meshctl-0.1.0.dist-info", "METADATA")
        metadata.parent.mkdir(parents=True)
        metadata.write_text(OLD_NAME)
        ratios = []
        for number in range(args.rounds):
            old, new = (value_of(root, args.name, args.arguments) for root in (Path(folder), ROOT))
            ratios.append(old / new if args.name in LARGER_IS_BETTER else new / old)
            print(f"round {number + 1}: {old:.4g} at {args.commit}, {new:.4g} here: {ratios[-1]:.3f} x")
    value = round(statistics.median(ratios), 3)
    name = f"{args.name} against {args.commit}"
    print(json.dumps({"name": name, "value": value, "goal": GOAL, "ok": value <= GOAL}))


if __name__ == "__main__":
    main()
