"""The documents are true: tables are those of the code, Python runs, and every path that they name exists."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest

from tests.paths import PACKAGE, ROOT

DOCS = sorted((ROOT / "docs").glob("*.md"))
TEXTS = {
    path.name: path.read_text(encoding="utf-8")
    for path in (*DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md")
}


def test_the_key_tables_are_those_of_the_fields() -> None:
    reference = runpy.run_path(str(ROOT / "docs" / "reference.py"))
    texts = [TEXTS[file.name] for file in reference["FILES"]]
    assert [*map(reference["filled"], texts)] == texts, "run: python docs/reference.py"
    for name in (*reference["SHOWN"], *reference["WORDS"]):
        assert sum(text.count(f"<!-- {name} -->") for text in texts) == 1, name


def test_each_pair_of_dims_is_tested_or_refused() -> None:
    table = TEXTS["models.md"].partition("<!-- pairs of dims -->")[2].partition("<!-- end")[0]
    assert "ep" in table and "not tested" not in table


def test_a_mesh_answers_as_documented() -> None:
    code = next(block for block in _python("recipes.md") if "DeviceMesh" in block)
    names: dict[str, object] = {}
    exec(compile(code, "recipes.md", "exec"), names)
    asked = [line.split("#") for line in code.splitlines() if "#" in line]
    assert len(asked) == 6
    for question, answer in asked:
        assert eval(question, names) == eval(re.split(r"[;:,] (?=[a-z])", answer.strip())[0]), question


def test_engines_begin_with_a_recipe_of_two_nodes(tmp_path: Path) -> None:
    from meshctl.recipe.load import load

    block = re.search(
        r"```yaml\n# two_nodes.yaml\n(.*?)```", TEXTS["engines.md"].partition("\n## ")[0], re.DOTALL
    )
    assert block
    (tmp_path / "two_nodes.yaml").write_text(block[1])
    loaded = load("two_nodes.yaml", [], tmp_path, environ={}, detect=lambda: "cpu")
    assert {one.severity for one in loaded.report.diagnostics} <= {"note"}
    assert (loaded.recipe.cluster.nodes, loaded.recipe.engine.name) == (2, "ssh")


def _rows(name: str, first: str) -> list[list[str]]:
    """The cells of the table whose first column has a heading."""
    table = TEXTS[name].split(f"| {first} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def _words(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_the_tables_of_data_are_those_of_the_code() -> None:
    from meshctl.data.encoders import LABEL, ChatEncoder, PairsEncoder, TextEncoder
    from meshctl.data.examples import PACKED
    from meshctl.data.source import Source
    from meshctl.data.streams import Stream

    parameters = {**inspect.signature(Stream).parameters, **inspect.signature(Source).parameters}
    described = {_words(row[0])[0]: row[1] for row in _rows("data.md", "argument")}
    assert described.keys() == parameters.keys()
    for name, default in described.items():
        stated = {"required": inspect.Parameter.empty, "`true`": True, "`false`": False}.get(default, default)
        expected = parameters[name].default
        assert stated == expected or stated.strip("`") == ("" if expected in (None, ()) else str(expected)), (
            name
        )
    columns = {*ChatEncoder.COLUMNS, *TextEncoder.COLUMNS, *PACKED, *PairsEncoder.COLUMNS, LABEL}
    assert {_words(row[0])[0] for row in _rows("data.md", "column")} == columns


def test_the_tables_of_models_and_samplers_are_those_of_the_code() -> None:
    from meshctl.data.source import Prompts, Source
    from meshctl.hf import Model, Sampler

    described = {word for row in _rows("models.md", "argument") for word in _words(row[0])}
    assert described == inspect.signature(Model).parameters.keys()

    own = set(inspect.signature(Prompts).parameters) - set(inspect.signature(Source).parameters)
    tables = TEXTS["samplers.md"].split("## Arguments")
    for table, expected in (
        (tables[0], own | {"over_length"}),
        (tables[1], set(inspect.signature(Sampler).parameters)),
    ):
        cells = [line.split("|")[1] for line in table.split("| argument |")[1].split("\n\n")[0].splitlines()]
        assert {word for cell in cells[2:] for word in _words(cell)} == expected


def test_the_table_of_losses_is_that_of_the_code() -> None:
    from meshctl.losses import LOSSES, find

    inputs: dict[str, list[str]] = {}
    for name, given, options in _rows("data.md", "name"):
        [loss] = _words(name)
        words = [word for one in _words(given) for word in inputs.get(one, [one])]
        inputs[loss] = words
        assert tuple(words) == find(loss).inputs, loss
        function = find(loss).function
        keywords = [
            one.name
            for one in inspect.signature(function).parameters.values()
            if one.kind is one.KEYWORD_ONLY
        ]
        assert _words(options) == keywords, loss
    of_answers = {_words(row[0])[0] for row in _rows("data.md", "loss")}
    assert inputs.keys() | of_answers == LOSSES.keys() and not inputs.keys() & of_answers


def test_the_table_of_losses_of_answers_is_that_of_the_code() -> None:
    from meshctl.losses import find
    from meshctl.losses.advantages import ADVANTAGES, DEFAULTS

    means = {"token": "tokens", "sequence": "the tokens of an answer, then answers", "constant": "answers"}
    section = TEXTS["data.md"].split("## Losses of sampled answers")[1]
    mentioned = {*_words(section), *re.findall(r"`(\w+): ", section)}
    for name, _, mean, advantage in _rows("data.md", "loss"):
        [loss] = _words(name)
        parameters = inspect.signature(find(loss).function).parameters.values()
        options = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
        assert re.split("[;,] (?:as|the sum)", mean)[0] == means[options["aggregation"]], loss
        assert _words(advantage)[:1] == [one for one in (DEFAULTS.get(loss),) if one], loss
        assert options.keys() - {"min_ratio", "max_ratio"} <= mentioned, loss
    assert ADVANTAGES.keys() <= mentioned


def test_the_advantage_and_the_loss_of_the_page_are_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from meshctl import losses
    from meshctl.losses import advantages

    for name, code in (("by_rank", "def by_rank"), ("focal", "def focal")):
        (tmp_path / f"{name}.py").write_text(next(one for one in _python("data.md") if code in one))
    monkeypatch.syspath_prepend(str(tmp_path))
    rewards = {"rewards": torch.tensor([0.2, 0.9, 5.0, 0.1]), "group_index": torch.tensor([0, 0, 1, 0])}
    assert advantages.find("by_rank.by_rank")(rewards).advantages.tolist() == [0.0, 0.5, -0.5, -0.5]
    answers = {"logprobs": torch.tensor([-1.0, -2.0]), "mask": torch.tensor([1.0, 0.0])}
    assert losses.find("focal.focal", gamma=0.0)(answers).total == 1.0


OF_A_RUN = ("runs/", "logs/", "events/", "recorded/", "checkpoints/", "media/", "trace/")
"""Folders that only a run has."""


@pytest.mark.parametrize("name", TEXTS)
def test_links_and_paths_exist_and_python_compiles(name: str) -> None:
    folder = ROOT / "docs" if (ROOT / "docs" / name).exists() else ROOT
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXTS[name]) if "://" not in link]
    assert not [link for link in links if not (folder / link).exists()]
    paths = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", TEXTS[name])
    homes = (ROOT, PACKAGE, *(path for path in PACKAGE.iterdir() if path.is_dir()))
    missing = [path for path in paths if not any((home / path).exists() for home in homes)]
    assert not [path for path in missing if not path.startswith(OF_A_RUN)]
    for block in _python(name):
        compile(block, name, "exec")
    assert name == "limits.md" or "limits.md" in TEXTS[name]


def _python(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", TEXTS[name], re.DOTALL)


def test_the_tests_of_faults_exist() -> None:
    rows = [*_rows("engines.md", "fault"), *_rows("engines.md", "what")]
    tests = [
        found for row in rows for cell in row for found in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", cell)
    ]
    assert len(tests) > 35
    for file, name in tests:
        text = (ROOT / "tests" / "engines" / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, (file, name)


PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        *DOCS,
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(PACKAGE / "diagnostics" / "codes").glob("*.md"),
    )
    if path.name != "limits.md"
}
ABSENT = r"not supported|is missing|Missing here|does not have|cannot yet|no support for".replace(" ", r"\s+")
OF_A_RECIPE = "what a recipe lacks"
PRESENT = {
    "docs/engines.md": ("`meshctl` is missing there", "an installation on a host"),
    "docs/faults.md": ("a rank's file is missing", "a fault that is caused"),
    "docs/runs.md": ("a library is missing", "what `doctor` finds"),
    "docs/samplers.md": ("the sampler does not have", "weights of another model"),
    "MC103": ("a required value is missing", OF_A_RECIPE),
    "MC104": ("the key is not supported yet", "the title of a retired code, which never changes"),
    "MC324": ("that the cluster does not have", OF_A_RECIPE),
    "MC442": ("lists what is missing", "what `doctor` finds"),
    "MC465": ("does not have an option", OF_A_RECIPE),
    "MC506": ("of the constructor is missing", OF_A_RECIPE),
    "MC511": ("does not have the form", OF_A_RECIPE),
    "MC536": ("that is missing in one of them", OF_A_RECIPE),
    "MC539": ("an `in` is missing", OF_A_RECIPE),
    "MC540": ("`in` is missing", OF_A_RECIPE),
    "MC560": ("after the dot is missing", OF_A_RECIPE),
    "MC602": ("needs an option that is missing", OF_A_RECIPE),
}
"""Page or code -> the line that may stand there, and the reason."""


def test_what_is_not_there_stands_on_one_page() -> None:
    found = []
    for name, text in PAGES.items():
        allowed, _ = PRESENT.get(name) or PRESENT.get(Path(name).stem) or ("", "")
        assert allowed in text, f"{name} has lost `{allowed}`: remove its row"
        left = text.replace(allowed, "", 1) if allowed else text
        found += [f"{name}: {match[0]}" for match in re.finditer(f".*(?:{ABSENT}).*", left)]
    assert not found, "write it to docs/limits.md, with what to do instead, and link to it"


def test_each_limit_has_a_way_around_it() -> None:
    lines = [line for line in TEXTS["limits.md"].splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert len(rows) > 30 and all(len(row) == 2 and all(row) for row in rows)
