"""Packed texts are refused for exactly the architectures that do not keep them apart."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from meshctl.hf import Model
from meshctl.hf.logits import shared_logits
from meshctl.hf.options import ModelError
from meshctl.hf.texts import Texts
from meshctl.recipe.code.modules import Sources, Unread
from meshctl.recipe.code.transformers_plans import has_state, masks_borders
from meshctl.runtime.batch.batch import Batch, Ragged
from tests.hf.tiny_models import NotBuilt, config_of, model_of

SHORT = {
    "llama": True,
    "gemma3_text": True,
    "mixtral": True,
    "gpt2": True,
    "gpt_oss": False,
    "qwen3_5_text": False,
    "lfm2": False,
    "granitemoehybrid": False,
    "mamba": False,
    "opt": False,
    "bloom": False,
}
"""`model_type` -> whether it keeps packed texts apart."""
NOT_BUILT = {
    *("blenderbot", "blt", "git", "phi4_multimodal", "roc_bert"),  # a part has fixed sizes
    *("emu3", "mllama", "musicgen", "musicgen_melody"),  # its language model is no causal model
    *("dbrx", "prophetnet", "reformer", "xlstm", "xlnet", "xmod", "zamba"),  # its config has its own form
    *("dots1", "dots3_note", "dots3_note_text", "cohere_compass_text"),  # the same
    *("gemma4_assistant", "longcat_flash"),  # its sizes depend on each other
}
"""The architectures of which no tiny model is built."""
FIRST, SECOND = torch.arange(3, 11), torch.arange(30, 37)
INSTALLED = Sources((), sys.path)


@torch.no_grad()
def keeps_texts_apart(model: Any) -> bool:
    alone = torch.cat([model(input_ids=text[None]).logits[0] for text in (FIRST, SECOND)])
    positions = torch.cat([torch.arange(len(text)) for text in (FIRST, SECOND)])[None]
    packed = model(input_ids=torch.cat([FIRST, SECOND])[None], position_ids=positions).logits[0]
    return torch.allclose(packed, alone, atol=1e-4)


def is_allowed(config: Any) -> bool | Unread:
    kind = config.model_type
    state = has_state(INSTALLED, kind, getattr(config, "layer_types", None))
    return state if isinstance(state, Unread) else masks_borders(INSTALLED, kind) is True and not state


@pytest.mark.parametrize("kind", SHORT)
def test_some_architectures(kind: str) -> None:
    config = config_of(CONFIG_MAPPING[kind])
    assert keeps_texts_apart(model_of(config)) == is_allowed(config) == SHORT[kind]


@pytest.mark.slow_suite
def test_all_architectures() -> None:
    different, not_built = [], set()
    for kind in AutoModelForCausalLM._model_mapping:
        try:
            config = config_of(kind)
        except NotBuilt:
            not_built.add(kind.model_type)
            continue
        if is_allowed(config) not in (
            keeps_texts_apart(model_of(config)),
            Unread("its model was not found in transformers"),
        ):
            different.append(kind.model_type)
    assert (different, not_built) == ([], NOT_BUILT)


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, "float32") for kind in SHORT), ("llama", "bfloat16"), ("mamba", "bfloat16")]
)
def test_the_first_packed_batch(kind: str, dtype: str) -> None:
    """It is refused by the model itself, for what `validate` cannot read."""
    model = Model({**config_of(CONFIG_MAPPING[kind]).to_dict(), "model_type": kind}, dtype=dtype)
    model.setup()
    ids, positions = torch.cat([FIRST, SECOND]), torch.cat([torch.arange(8), torch.arange(7)])
    columns = {"input_ids": Ragged.of([ids]), "position_ids": Ragged.of([positions])}
    batch = Batch(columns, ids=torch.arange(1))
    if SHORT[kind]:
        model.evaluate(batch)
        assert model.module.training
    else:
        with pytest.raises(ModelError, match="does not keep packed texts apart"):
            model.update(batch)


def test_an_architecture_with_a_state_cannot_share_prompts() -> None:
    """The rule of `validate` about caches is that of `has_state`."""
    for kind, is_refused in {
        "llama": False,
        "gpt_oss": False,
        "opt": False,
        "bloom": False,
        "lfm2": True,
    }.items():
        config = config_of(CONFIG_MAPPING[kind])
        assert has_state(INSTALLED, kind, getattr(config, "layer_types", None)) == is_refused
        model, ids = model_of(config), torch.stack([FIRST[:7], SECOND])
        texts = Texts(
            ids, torch.where(torch.arange(7) < torch.tensor([[3], [4]]), -100, ids), torch.tensor([7, 7])
        )
        if is_refused:
            with pytest.raises(ModelError, match="cache"):
                shared_logits(model, texts)
            continue
        with torch.no_grad():
            (found, _), whole = shared_logits(model, texts), model(input_ids=ids).logits
        for row, start in enumerate((3, 4)):
            assert torch.allclose(found[row, : 7 - start], whole[row, start - 1 : 6], atol=1e-4), kind
