"""The contract with users and scripts: `tests/contract/contract.json` lists what changes only by addition.

Each section of the contract names what one interface offers: recipe keys, diagnostic codes, commands, members
of public classes, files of a run directory, fields of events, keys of JSON output. The test collects the
same sections from the present code, as far as possible from outside (the command line, real runs, `import
meshctl`), and fails when an entry of the contract is missing. An entry that is new does not fail it. The
following command adds the new entries to the contract:

    python -m tests.test_contract

`tests/contract/mistakes.yaml` fixes the meaning of diagnostic codes, and `tests/contract/runs` contains run
directories that earlier versions wrote.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.contract import observed
from tests.contract.answers import answers_of
from tests.contract.launches import json_lines, old_runs, runs_of
from tests.contract.observed import Found, codes
from tests.contract.pinned import CONTRACT, CONTRACT_FILE, DATA, MISTAKES, Json, extended, missing
from tests.paths import ROOT

RESUMES = ROOT / "tests" / "cli" / "golden" / "resume_differences.txt"
OF_RESUMES = {f"MC72{number}" for number in range(6)}
"""These compare a recipe with a checkpoint. The golden file has an example of each but MC724, which
tests/runtime/test_resume.py has, since it needs state of several ranks."""

SECTIONS: dict[str, Callable[[Found], Json]] = {
    "choices": observed.choices,
    "codes": observed.codes,
    "commands": observed.commands,
    "events": observed.events,
    "exit codes": observed.exit_codes,
    "json": observed.json_keys,
    "keywords": observed.keywords,
    "lines": observed.lines,
    "metrics": observed.metrics,
    "process titles": observed.process_titles,
    "public bases": observed.public_bases,
    "public members": observed.public_members,
    "public names": observed.public_names,
    "recipe keys": observed.recipe_keys,
    "recipe words": observed.recipe_words,
    "run directory": observed.run_directory,
    "variables": observed.variables,
}


# Tests


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("contract")
    return Found(answers_of(folder), runs_of(folder))


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_of_the_contract_is_missing(section: str, found: Found) -> None:
    present, pinned = SECTIONS[section](found), CONTRACT[section]
    if section == "codes":  # titles may be reworded; other tests fix what a code means
        present, pinned = (
            {code: title.split(":")[0] for code, title in each.items()} for each in (present, pinned)
        )
    gone = list(missing(pinned, present))
    assert not gone, "\n".join(["missing:", *gone])


def test_the_contract_has_all_sections() -> None:
    assert CONTRACT.keys() == {*SECTIONS, "old runs"} and list(CONTRACT) == sorted(CONTRACT)


def test_no_code_has_the_title_of_another_one(found: Found) -> None:
    owners = {title: code for code, title in CONTRACT["codes"].items()}
    wrong = {code: title for code, title in codes(found).items() if owners.get(title, code) != code}
    assert not wrong


def test_each_code_is_reported_for_its_example(found: Found) -> None:
    reports = json.loads(found.answers["mistakes"].stdout)["recipes"]
    for code in (code for code, example in MISTAKES.items() if "arguments" in example):
        [report] = json.loads(found.answers[f"mistake {code}"].stdout)["recipes"]
        reports.append({**report, "recipe": f"{code}/recipe.yaml"})
    reported = {
        Path(each["recipe"]).parent.name: {one["code"] for one in each["diagnostics"]} for each in reports
    }
    assert {code: sorted(reported[code]) for code in MISTAKES if code not in reported[code]} == {}
    assert CONTRACT["codes"].keys() - MISTAKES.keys() == {"MC002", "MC900", *OF_RESUMES}


def test_each_code_of_a_resume_is_in_the_golden_file() -> None:
    assert set(re.findall(r"\[(MC72\d)\]", RESUMES.read_text(encoding="utf-8"))) == OF_RESUMES - {"MC724"}


def test_a_recipe_with_all_keys_is_correct(found: Found) -> None:
    reports = json.loads(found.answers["validate"].stdout)["recipes"]
    [report] = [each for each in reports if each["recipe"] == "keys.yaml"]
    assert (report["errors"], report["plan"] is None) == (0, False), report["diagnostics"]
    assert re.fullmatch(r"meshctl \d+\.\d+\S*\n", found.answers["version"].stdout)


@pytest.mark.parametrize("version", old_runs())
def test_an_old_run_is_resumed_exactly_or_refused_in_one_line(version: str, found: Found) -> None:
    resumed = found.runs[f"resumed {version}"]
    if CONTRACT["old runs"][version] == "refused":
        (line,) = resumed.stderr.splitlines()
        assert resumed.code == 4 and line.startswith("error: ") and re.search(rf"0\.1\.0|{version}", line)
        return
    assert resumed.code == 0, resumed.stderr
    assert without_time(resumed.metrics) == without_time(expected_metrics(version))
    assert [event["step"] for event in resumed.events if event["name"] == "resumed"] == [3]


def expected_metrics(version: str) -> list[dict[str, Json]]:
    """Returns the metrics of the same run by the same version, without an interruption."""
    return json_lines(DATA / "runs" / f"{version}.expected.jsonl")


def without_time(rows: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


def test_a_recording_of_an_old_run_is_replayed(found: Found) -> None:
    momentum = [row["metrics.momentum"] for row in found.runs["replayed"].metrics]
    known = [row["metrics.momentum"] for row in expected_metrics(old_runs()[-1])]
    assert 2 <= len(momentum) <= 5 and momentum == known[: len(momentum)], found.runs["replayed"].stderr


# New entries


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        found = Found(answers_of(Path(name)), runs_of(Path(name)))
        present = {section: collect(found) for section, collect in SECTIONS.items()}
    present["old runs"] = dict.fromkeys(old_runs(), "resumed")
    CONTRACT_FILE.write_text(json.dumps(extended(CONTRACT, present), indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
