"""The rule about the tokens of tokenizers and the vocabulary of models."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load

CLASSES = """
    from meshctl import Batch, Component, endpoint
    from meshctl.data import source
    from meshctl.hf import sampler
    class Source(source.Source):
        def __init__(self, tokenizer: str) -> None: ...
        @endpoint
        def next(self, samples: range) -> Batch | None: ...
    class Judge(Component):
        @endpoint
        def score(self, batch: Batch) -> Batch: ...
    class Sampler(sampler.Sampler):
        MODEL = "args.model"
        def __init__(self, model: dict, tokenizer: str = "") -> None: ...
        @endpoint
        def sample(self, batch: Batch) -> Batch: ...
    class Trainer(Component):
        MODEL = "args.model"
        def __init__(self, model: dict) -> None: ...
        @endpoint(collect="mean")
        def step(self, batch: Batch) -> dict[str, float]: ...
"""
BYTES = 259
"""Tokens of the tokenizer `byte`."""


def reported(
    folder: Path,
    tokenizer: str,
    vocabulary: int,
    sampler: str = "{model: {}}",
    environ: dict[str, str] | None = None,
) -> list[Diagnostic]:
    (folder / "mine.py").write_text(dedent(CLASSES))
    (folder / "recipe.yaml").write_text(
        "groups: {train: {ranks: 2, device_type: cpu}}\n"
        "components:\n"
        f"  source: {{_target_: mine.Source, group: train, args: {{tokenizer: {tokenizer}}}}}\n"
        f"  sampler: {{_target_: mine.Sampler, group: train, args: {sampler}}}\n"
        "  judge: {_target_: mine.Judge, group: train}\n"
        f"  trainer: {{_target_: mine.Trainer, group: train, args: {{model: {{vocab_size: {vocabulary}}}}}}}\n"
        "pipeline:\n"
        "  prompts: {call: source.next, samples: 64}\n"
        "  rollouts: {call: sampler.sample, in: prompts}\n"
        "  scored: {call: judge.score, in: rollouts}\n"
        "  metrics: {call: trainer.step, in: scored}\n"
    )
    found = load("recipe.yaml", [], folder, environ=environ or {}).report.diagnostics
    return [one for one in found if one.code == "MC460"]


def tokenizer(folder: Path, vocabulary: object, *added: int) -> None:
    folder.mkdir(parents=True)
    values = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": number} for number in added]}
    (folder / "tokenizer.json").write_text(json.dumps(values))


def test_a_tokenizer_that_reaches_a_model_through_the_pipeline(tmp_path: Path) -> None:
    (one,) = reported(tmp_path, "byte", BYTES - 1)
    expected = "tokenizer `byte` has 259 tokens, but the vocabulary of the model of `trainer` has only 258"
    assert (one.message, one.severity) == (expected, "error")
    assert one.primary and one.primary.line == 3
    assert [span.line for span in one.seconds] == [6]


@pytest.mark.parametrize("vocabulary", [BYTES, BYTES + 1])
def test_a_padded_vocabulary_is_correct(tmp_path: Path, vocabulary: int) -> None:
    assert reported(tmp_path, "byte", vocabulary) == []


def test_a_component_with_a_tokenizer_makes_new_tokens(tmp_path: Path) -> None:
    tokenizer(tmp_path / "small", {"a": 0, "b": 1})
    large = "{tokenizer: small, model: {vocab_size: 1000}}"
    assert reported(tmp_path, "byte", 2, large) == []
    small = "{tokenizer: small, model: {vocab_size: 2}}"
    (one,) = reported(tmp_path, "byte", 2, small)
    assert one.message.endswith("of `sampler` has only 2") and one.primary and one.primary.line == 3
    (one,) = reported(tmp_path, "small", 1, "{tokenizer: small, model: {vocab_size: 2}}")
    assert one.message.endswith("of `trainer` has only 1") and one.primary and one.primary.line == 4


@pytest.mark.parametrize(
    ("vocabulary", "added", "count"),
    [({"a": 0, "b": 6}, (), 7), ({"a": 0}, (1, 9), 10), ([["a", 0.0], ["b", -1.0], ["c", -2.0]], (), 3)],
)
def test_the_highest_id_of_a_file(
    tmp_path: Path, vocabulary: object, added: tuple[int, ...], count: int
) -> None:
    tokenizer(tmp_path / "own", vocabulary, *added)
    assert reported(tmp_path, "own", count) == []
    (one,) = reported(tmp_path, "own", count - 1)
    assert f"has {count} tokens" in one.message


def test_a_tokenizer_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    tokenizer(tmp_path / "home" / "hub" / "models--some--name" / "snapshots" / "abc", {"a": 0, "b": 1})
    environ = {"HF_HOME": str(tmp_path / "home")}
    assert [one.code for one in reported(tmp_path, "some/name", 1, environ=environ)] == ["MC460"]
    assert reported(tmp_path, "some/other", 1, environ=environ) == []


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": []}', '{"model": {"vocab": {"a": "b"}}}', "1"])
def test_an_unknown_format_is_not_compared(tmp_path: Path, text: str) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tokenizer.json").write_text(text)
    assert reported(tmp_path, "own", 1) == []
