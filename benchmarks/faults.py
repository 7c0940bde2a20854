"""The faults of a run, each with the bar for what a user sees.

    python benchmarks/faults.py [--only 4,terminal] [--slack 1] [--list]

Each case starts a real `meshctl launch`, does to it what its line states, and measures what happens. The bars
are those of an idle machine. `--slack 3` multiplies all bars in seconds, for a busy one. Cases that this
machine cannot produce, for instance without root, are skipped and not counted. The value is the number of
cases that meet their bar.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.fault_cases import CASES
from benchmarks.fault_cases.case import Case, Failed, Measured, Place, Skipped


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="numbers of faults or words of cases, separated by commas")
    parser.add_argument("--slack", type=float, default=1.0, help="factor of all bars in seconds")
    parser.add_argument("--list", action="store_true", help="only lists the cases")
    given = parser.parse_args()
    # a shell starts what runs beside it with SIGINT ignored, and nohup with SIGHUP ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    words = [word for word in given.only.split(",") if word]
    cases = [case for case in CASES if not words or any(is_chosen(case, word) for word in words)]
    counted = met = 0
    for case in cases:
        if given.list:
            print(f"{case.fault:>3}  {case.what}: {case.bar}")
            continue
        found = measured(case, given.slack)
        if found is not None:
            counted, met = counted + 1, met + found.ok
    if not given.list:
        print(json.dumps({"name": "faults", "value": met, "goal": counted, "ok": met == counted}))


def is_chosen(case: Case, word: str) -> bool:
    """Whether a case has this number, or this text in what is done."""
    return int(word) == case.fault if word.isdigit() else word in case.what


def measured(case: Case, slack: float) -> Measured | None:
    """Measures a case and prints its line; None if it is skipped."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        place, state = Place(Path(name), slack), "ok"
        found: Measured | None
        try:
            found = case.measure(place)
        except Skipped as reason:
            found, state, text = None, "skipped", str(reason)
        except Failed as reason:
            found = Measured(str(reason).replace("\n", " "), False)
        except (OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
            found = Measured(f"the case is broken: {type(error).__name__}: {error}", False)
        finally:
            place.close()
    if found is not None:
        state, text = "ok" if found.ok else "MISSED", found.text
    print(f"{case.fault:>3} {case.what:<54} {case.bar:<68} {state:<8} {text}", flush=True)
    return found


if __name__ == "__main__":
    main()
