"""Each loss with the source and the model that provide its inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from meshctl import Batch
from meshctl.data import Chat, Labelled, Pairs
from meshctl.data.source import Source
from meshctl.hf import Model
from meshctl.losses import LOSSES
from meshctl.losses.advantages import DEFAULTS

CONFIG = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 264}
PAIRS_LOSSES = ("dpo", "ipo", "simpo", "orpo", "bradley_terry")
OF_ROLLOUTS = (*DEFAULTS, "distill")


def model(**options: Any) -> Model:
    torch.manual_seed(0)
    made = Model(CONFIG, **options)
    made.setup()
    return made


def batch_of(folder: Path, loss: str) -> Batch:
    words = ["ab", "abc", "b", "cab"]
    if loss == "classification":
        rows = [{"text": word, "label": n % 2} for n, word in enumerate(words)]
    elif loss in PAIRS_LOSSES:
        rows = [{"prompt": word, "chosen": word.upper(), "rejected": word} for word in words]
    else:
        texts = [(word, word.upper()) for word in words]
        roles = ("user", "assistant")
        chats = [[{"role": r, "content": t} for r, t in zip(roles, pair, strict=True)] for pair in texts]
        rows = [{"messages": chat, "desirable": n % 2 == 0} for n, chat in enumerate(chats)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keep = ["desirable"] if loss == "kto" else []
    kinds: dict[str, type[Source]] = {"classification": Labelled, **dict.fromkeys(PAIRS_LOSSES, Pairs)}
    source = kinds.get(loss, Chat)(str(path), "byte", shuffle=False, keep=keep)
    batch = source.next(range(len(rows)))
    assert batch is not None
    return batch


@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in OF_ROLLOUTS])
def test_a_model_lowers_each_loss(loss: str, tmp_path: Path) -> None:
    batch = batch_of(tmp_path, loss)
    head = {"bradley_terry": "score", "classification": "classify"}.get(loss, "lm")
    trained = model(loss=loss, head=head, lr=1e-3)
    if loss in ("dpo", "ipo", "kto"):
        batch = batch.joined(model().ref_logprobs(batch))
    before = trained.evaluate(batch)["loss"]
    for _ in range(3):
        trained.update(batch)
    assert trained.evaluate(batch)["loss"] < before


def test_columns_do_not_replace_what_the_model_computes(tmp_path: Path) -> None:
    batch, trained = batch_of(tmp_path, "simpo"), model(loss="simpo")
    stale = Batch({name: torch.zeros(4) for name in ("chosen_logprobs", "rejected_logprobs")}, ids=batch.ids)
    assert trained.evaluate(batch.joined(stale)) == trained.evaluate(batch)
