"""Plans for tp, read from the source of an invented transformers and of the installed one."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from meshctl.recipe.code.modules import Sources, Unread
from meshctl.recipe.code.transformers_plans import EP_PLAN, plan_of

SOURCE = {
    "models/auto/auto_mappings.py": """
        CONFIG_MAPPING_NAMES = OrderedDict([("ocean_text", "not_a_folder")])
        SPECIAL_MODEL_TYPE_TO_MODULE_NAME = OrderedDict([("ocean_text", "ocean"), ("ocean_deep", "ocean")])
    """,
    "models/ocean/configuration_ocean.py": """
        from ...configuration_utils import PreTrainedConfig
        from ..river.configuration_river import RiverConfig
        class OceanTextConfig(PreTrainedConfig):
            model_type = "ocean_text"
            base_model_tp_plan = {"layers.*.q_proj": "colwise"}
        class OceanConfig(PreTrainedConfig):
            model_type = "ocean"
        class OceanDeepConfig(RiverConfig):
            model_type = "ocean_deep"
    """,
    "models/river/configuration_river.py": """
        class RiverConfig(PretrainedConfig):
            model_type = "river"
            base_model_tp_plan: dict[str, str] = {"layers.*.q_proj": "colwise"}
    """,
    "models/dry_lake/configuration_dry_lake.py": """
        class DryLakeConfig(Config):
            model_type = "dry-lake"
            base_model_tp_plan = {}
    """,
    "models/cloud/configuration_cloud.py": """
        class CloudConfig(Config):
            model_type = "cloud"
            base_model_tp_plan = None
    """,
    "models/rain/configuration_rain.py": """
        class RainConfig(Config):
            model_type = "rain"
            base_model_tp_plan = dict(PLAN)
    """,
    "models/mud/configuration_mud.py": "class MudConfig(:",
    "models/circle/configuration_circle.py": """
        class One(CircleConfig): ...
        class CircleConfig(One):
            model_type = "circle"
    """,
}
INSTALLED = Sources((), sys.path)


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    for name, text in SOURCE.items():
        file = tmp_path / "transformers" / name
        file.parent.mkdir(parents=True)
        file.write_text(dedent(text))
    return Sources((str(tmp_path),))


NOT_FOUND = "its config class was not found in transformers"


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        *((kind, True) for kind in ("river", "ocean_text", "ocean_deep")),
        *((kind, False) for kind in ("ocean", "dry-lake", "cloud", "circle")),
        ("rain", Unread("`base_model_tp_plan` of `RainConfig` is not a literal")),
        *((kind, Unread(NOT_FOUND)) for kind in ("mud", "absent", "../river", "")),
    ],
)
def test_the_plan_of_an_architecture(sources: Sources, model_type: str, expected: bool | Unread) -> None:
    plan = plan_of(sources, model_type)
    assert (plan if isinstance(plan, Unread) else bool(plan)) == expected


def test_without_transformers_every_plan_is_unknown(tmp_path: Path) -> None:
    assert plan_of(Sources((str(tmp_path),)), "llama") == Unread("transformers is not installed")


@pytest.mark.parametrize(
    "model_type",
    ["llama", "qwen3", "qwen3_moe", "gpt2", "phi3", "gemma3_text", "qwen3_vl_text", "openai-gpt"],
)
def test_the_source_of_the_installed_transformers_agrees_with_its_classes(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type)
    assert plan_of(INSTALLED, model_type) == (config.base_model_tp_plan or {})
    assert plan_of(INSTALLED, model_type, EP_PLAN) == (config.base_model_ep_plan or {})
