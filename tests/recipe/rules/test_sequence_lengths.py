"""The rule about the length of sequences and the positions of models."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.load import load

CLASSES = """
    from meshctl import Batch, Component, endpoint
    from meshctl.data import source
    class Texts(source.Source):
        def __init__(self, max_length: int | None = None) -> None: ...
        @endpoint
        def next(self, samples: range) -> Batch | None: ...
    class Chats(Texts): ...
    class Packed(Texts):
        def __init__(self, max_length: int | None = None, pack: bool = False) -> None: ...
    class Silent(Component):
        def __init__(self, max_length: int) -> None: ...
        @endpoint
        def next(self, samples: range) -> Batch | None: ...
    class Trainer(Component):
        MODEL = "args.model"
        def __init__(self, model: dict) -> None: ...
        @endpoint
        def score(self, batch: Batch) -> Batch: ...
        @endpoint(collect="mean")
        def step(self, batch: Batch) -> dict[str, float]: ...
"""


def reported(
    folder: Path, source: str, model: str, more: str = "", environ: dict[str, str] | None = None
) -> list[Diagnostic]:
    (folder / "mine.py").write_text(dedent(CLASSES))
    (folder / "recipe.yaml").write_text(
        "groups: {train: {ranks: 2, device_type: cpu}}\n"
        "components:\n"
        f"  texts: {{_target_: mine.{source}, group: train}}\n"
        f"  trainer: {{_target_: mine.Trainer, group: train, args: {{model: {model}}}{more}}}\n"
        "pipeline:\n"
        "  batch: {call: texts.next, samples: 64}\n"
        "  scored: {call: trainer.score, in: batch}\n"
        "  metrics: {call: trainer.step, in: [batch, scored]}\n"
    )
    found = load("recipe.yaml", [], folder, environ=environ or {}).report.diagnostics
    return [one for one in found if one.code == "MC441"]


@pytest.mark.parametrize("source", ["Texts", "Chats", "Packed"])
@pytest.mark.parametrize("key", ["max_position_embeddings", "n_positions"])
def test_longer_sequences_of_a_source_are_reported_once_with_both_numbers(
    tmp_path: Path, source: str, key: str
) -> None:
    (one,) = reported(tmp_path, f"{source}, args: {{max_length: 2048}}", f"{{{key}: 1024}}")
    assert one.severity == "warning" and one.primary and one.primary.line == 3
    expected = "sequences of up to 2048 tokens exceed the 1024 positions of the model of `trainer`"
    assert one.message == expected
    assert [span.line for span in one.seconds] == [4]


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("Texts, args: {max_length: 1024}", "{max_position_embeddings: 1024}"),
        ("Texts", "{max_position_embeddings: 1024}"),
        ("Texts, args: {max_length: 2048}", "{num_attention_heads: 8}"),
        ('Texts, args: {max_length: "2048"}', "{max_position_embeddings: 1024}"),
        ('Texts, args: {max_length: "${oc.env:LENGTH}"}', "{max_position_embeddings: 1024}"),
        ("Silent, args: {max_length: 2048}", "{max_position_embeddings: 1024}"),
        ("Packed, args: {max_length: 2048, pack: true}", "{max_position_embeddings: 1024}"),
        ("Texts, args: {max_length: 2048}", "{max_position_embeddings: 1024, rope_scaling: {factor: 4.0}}"),
        (
            "Texts, args: {max_length: 2048}",
            "{max_position_embeddings: 1024, rope_parameters: {full_attention: {factor: 8}}}",
        ),
    ],
)
def test_nothing_is_reported(tmp_path: Path, source: str, model: str) -> None:
    assert reported(tmp_path, source, model, environ={"LENGTH": "2048"}) == []


def test_positions_without_a_factor_are_known(tmp_path: Path) -> None:
    model = "{max_position_embeddings: 1024, rope_parameters: {rope_theta: 10000.0}, rope_scaling: null}"
    assert len(reported(tmp_path, "Texts, args: {max_length: 2048}", model)) == 1


def test_the_length_that_the_recipe_states_counts_too(tmp_path: Path) -> None:
    model = "{max_position_embeddings: 1024}"
    assert len(reported(tmp_path, "Texts", model, ", model: {sequence_length: 1025}")) == 1
    assert reported(tmp_path, "Texts", model, ", model: {sequence_length: 1024}") == []
