"""The rules about tokens: the tokenizers of sources and the vocabulary of models, and the length of sequences and
the positions of models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.diagnostics import Diagnostic
from tests.recipe.rules import facts

CLASSES = """
    from meshctl import Batch, Component, endpoint
    from meshctl.data import source
    from meshctl.hf import sampler
    class Source(source.Source):
        def __init__(self, tokenizer: str = "byte", max_length: int | None = None) -> None: ...
        @endpoint
        def next(self, samples: range) -> Batch | None: ...
    class Chats(Source): ...
    class Packed(Source):
        def __init__(self, max_length: int | None = None, pack: bool = False) -> None: ...
    class Silent(Component):
        def __init__(self, max_length: int) -> None: ...
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
RECIPE = """\
groups: {{train: {{ranks: 2, device_type: cpu}}}}
components:
  source: {{_target_: mine.{source}, group: train, args: {{{args}}}}}
  sampler: {{_target_: mine.Sampler, group: train, args: {sampler}}}
  judge: {{_target_: mine.Judge, group: train}}
  trainer: {{_target_: mine.Trainer, group: train, args: {{model: {model}}}{more}}}
pipeline:
  prompts: {{call: source.next, samples: 64}}
  rollouts: {{call: sampler.sample, in: prompts}}
  scored: {{call: judge.score, in: rollouts}}
  metrics: {{call: trainer.step, in: {taken}}}
"""


def reported(
    folder: Path, code: str, environ: dict[str, str] | None = None, **given: str
) -> list[Diagnostic]:
    recipe = RECIPE.format(
        **{"source": "Source", "sampler": "{model: {}}", "more": "", "taken": "scored", **given}
    )
    return facts.reported(folder, recipe, [code], environ=environ or {}, mine=CLASSES)


def vocabulary(
    folder: Path, tokenizer: str, size: int, sampler: str = "{model: {}}", **environ: str
) -> list[Diagnostic]:
    given = {"args": f"tokenizer: {tokenizer}", "model": f"{{vocab_size: {size}}}", "sampler": sampler}
    return reported(folder, "MC460", environ, **given)


def tokenizer(folder: Path, vocabulary: object, *added: int) -> None:
    folder.mkdir(parents=True)
    values = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": number} for number in added]}
    (folder / "tokenizer.json").write_text(json.dumps(values))


def test_a_tokenizer_that_reaches_a_model_through_the_pipeline(tmp_path: Path) -> None:
    (one,) = vocabulary(tmp_path, "byte", 258)
    expected = "tokenizer `byte` has 259 tokens, but the vocabulary of the model of `trainer` has only 258"
    assert (one.message, one.severity, facts.lines(one)) == (expected, "error", [3, 6])
    assert vocabulary(tmp_path, "byte", 259) == vocabulary(tmp_path, "byte", 260) == []


def test_a_component_with_a_tokenizer_makes_new_tokens(tmp_path: Path) -> None:
    tokenizer(tmp_path / "small", {"a": 0, "b": 1})
    own = "{{tokenizer: small, model: {{vocab_size: {}}}}}"
    assert vocabulary(tmp_path, "byte", 2, own.format(1000)) == []
    (one,) = vocabulary(tmp_path, "byte", 2, own.format(2))
    assert one.message.endswith("of `sampler` has only 2") and facts.lines(one)[0] == 3
    (one,) = vocabulary(tmp_path, "small", 1, own.format(2))
    assert one.message.endswith("of `trainer` has only 1") and facts.lines(one)[0] == 4


@pytest.mark.parametrize(
    ("words", "added", "count"),
    [({"a": 0, "b": 6}, (), 7), ({"a": 0}, (1, 9), 10), ([["a", 0.0], ["b", -1.0], ["c", -2.0]], (), 3)],
)
def test_the_highest_id_of_a_file(tmp_path: Path, words: object, added: tuple[int, ...], count: int) -> None:
    tokenizer(tmp_path / "own", words, *added)
    assert vocabulary(tmp_path, "own", count) == []
    (one,) = vocabulary(tmp_path, "own", count - 1)
    assert f"has {count} tokens" in one.message


def test_a_tokenizer_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    tokenizer(tmp_path / "home" / "hub" / "models--some--name" / "snapshots" / "abc", {"a": 0, "b": 1})
    home = {"HF_HOME": str(tmp_path / "home")}
    assert len(vocabulary(tmp_path, "some/name", 1, **home)) == 1
    assert vocabulary(tmp_path, "some/other", 1, **home) == []


@pytest.mark.parametrize(
    ("source", "model", "adds"),
    [
        ("tokens: [<a>, <b>]", "tokens: [<a>, <b>]", ""),
        ("tokens: [<a>]", "top_logprobs: 2", "`<a>` to `texts` and none to `actor`"),
        ("shuffle: true", "tokens: [<a>]", "none to `texts` and `<a>` to `actor`"),
        ("tokens: [<b>, <a>]", "tokens: [<a>, <b>]", "`<b>` and `<a>` to `texts` and `<a>` and `<b>` to `actor`"),
    ],
)  # fmt: skip
def test_a_model_adds_the_tokens_of_its_sources(tmp_path: Path, source: str, model: str, adds: str) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    recipe = f"""
groups: {{train: {{ranks: 1, device_type: cpu}}}}
components:
  texts: {{_target_: meshctl.data.Text, group: train, args: {{path: texts.jsonl, tokenizer: byte, {source}}}}}
  actor: {{_target_: meshctl.hf.Model, group: train, args: {{model: {{model_type: llama}}, tokenizer: byte, {model}}}}}
pipeline:
  batch: {{call: texts.next, samples: 2}}
  metrics: {{call: actor.update, in: batch}}
"""
    found = [one for one in facts.reported(tmp_path, recipe) if one.code == "MC460"]
    expected = f"`tokens` adds {adds}, so that they have other ids"
    assert [(one.message, one.severity) for one in found] == [(expected, "error")] * bool(adds)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": []}', '{"model": {"vocab": {"a": "b"}}}', "1"])
def test_an_unknown_format_is_not_compared(tmp_path: Path, text: str) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tokenizer.json").write_text(text)
    assert vocabulary(tmp_path, "own", 1) == []


LONG = "max_length: 2048"


@pytest.mark.parametrize(
    ("source", "args", "model", "more", "count"),
    [
        ("Source", LONG, "{max_position_embeddings: 1024}", "", 1),
        ("Chats", LONG, "{n_positions: 1024}", "", 1),
        ("Packed", LONG, "{max_position_embeddings: 1024}", "", 1),
        ("Source", LONG, "{max_position_embeddings: 1024, rope_parameters: {rope_theta: 1.0}, rope_scaling: null}", "", 1),
        ("Source", "max_length: 1024", "{max_position_embeddings: 1024}", "", 0),
        ("Source", "", "{max_position_embeddings: 1024}", "", 0),
        ("Source", LONG, "{num_attention_heads: 8}", "", 0),
        ("Source", 'max_length: "2048"', "{max_position_embeddings: 1024}", "", 0),
        ("Source", 'max_length: "${oc.env:LENGTH}"', "{max_position_embeddings: 1024}", "", 0),
        ("Silent", LONG, "{max_position_embeddings: 1024}", "", 0),
        ("Packed", f"{LONG}, pack: true", "{max_position_embeddings: 1024}", "", 0),
        ("Source", LONG, "{max_position_embeddings: 1024, rope_scaling: {factor: 4.0}}", "", 0),
        ("Source", LONG, "{max_position_embeddings: 1024, rope_parameters: {full_attention: {factor: 8}}}", "", 0),
        ("Source", "", "{max_position_embeddings: 1024}", ", model: {sequence_length: 1025}", 1),
        ("Source", "", "{max_position_embeddings: 1024}", ", model: {sequence_length: 1024}", 0),
    ],
)  # fmt: skip
def test_sequences_that_are_longer_than_the_positions(
    tmp_path: Path, source: str, args: str, model: str, more: str, count: int
) -> None:
    given = {"source": source, "args": args, "model": model, "more": more, "taken": "[prompts, scored]"}
    found = reported(tmp_path, "MC441", {"LENGTH": "2048"}, **given)
    assert [one.severity for one in found] == ["warning"] * count
    if count and args:
        expected = "sequences of up to 2048 tokens exceed the 1024 positions of the model of `trainer`"
        assert (found[0].message, facts.lines(found[0])) == (expected, [3, 6])
