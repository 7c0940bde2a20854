"""The rule about heads that share kv heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.recipe.load import load
from meshctl.recipe.rules import models
from tests.recipe.rules.facts import facts_of
from tests.recipe.rules.test_models import recipe_of


@pytest.mark.parametrize("heads", range(1, 13))
@pytest.mark.parametrize("kv_heads", range(1, 9))
def test_kv_heads_divide_the_heads(heads: int, kv_heads: int) -> None:
    facts = facts_of(recipe_of(1, {}, [{"num_heads": heads, "num_kv_heads": kv_heads}]))
    found = [one for one in models.heads_share_kv_heads(facts) if one.code == "MC466"]
    assert bool(found) == (heads % kv_heads != 0)
    for one in found:
        nearest = int(one.help.partition("nearest that fit: ")[2].split(",")[0])
        others = [size for size in range(1, heads + 1) if heads % size == 0]
        assert heads % nearest == 0
        assert abs(nearest - kv_heads) == min(abs(size - kv_heads) for size in others)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("num_attention_heads: 6, num_key_value_heads: 4", "`trainer` has 6 heads for 4 kv heads"),
        ("num_attention_heads: 4", "`trainer` has 4 heads for 32 kv heads, the default of `qwen2`"),
        ("num_attention_heads: 4, num_key_value_heads: 2", None),
        ("num_attention_heads: 4, num_key_value_heads: null", None),
        ("num_attention_heads: 64", None),
    ],
)
def test_kv_heads_of_a_config_are_known_also_by_default(
    config: str, message: str | None, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "groups: {g: {ranks: 1, device_type: cpu}}\n"
        "components:\n"
        "  trainer:\n    _target_: meshctl.hf.Model\n    group: g\n"
        f"    args: {{model: {{model_type: qwen2, {config}}}}}\n"
        "pipeline: {metrics: {call: trainer.update, samples: 4}}\n"
    )
    found = load("recipe.yaml", (), tmp_path, environ={}).report.diagnostics
    assert [one.message for one in found if one.code == "MC466"] == ([message] if message else [])
