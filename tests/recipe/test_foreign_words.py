"""Keys of other systems in the place where a user writes them: what the help of the report suggests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from meshctl.recipe.load import load
from tests.recipe.mutations.correct_recipes import FOLDER

BLOCKS = yaml.load(
    (FOLDER / "blocks.yaml").read_text(encoding="utf-8").replace(" on:", ' "on":'), yaml.SafeLoader
)
EVALUATION, MINIBATCHES = "with `every: STEPS`", "`repeat: {times: ROUNDS, over: STAGE, size: SAMPLES}`"


def helps(*path: str, key: str, value: Any = 3) -> list[str]:
    """Returns the helps of the errors after `key` was added to the mapping at `path` of a correct recipe."""
    recipe = yaml.safe_load(yaml.safe_dump(BLOCKS, sort_keys=False))
    mapping = recipe
    for name in path:
        mapping = mapping[name]
    mapping[key] = value
    held = {str(Path(FOLDER, "blocks.yaml").resolve()): yaml.safe_dump(recipe, sort_keys=False).encode()}
    report = load("blocks.yaml", [], FOLDER, environ={}, held=held).report
    return [found.help for found in report.errors]


@pytest.mark.parametrize(
    ("path", "key", "suggestion"),
    [
        *[
            (("run",), word, EVALUATION)
            for word in ("eval_every", "eval_steps", "test_freq", "eval_strategy")
        ],
        *[((), word, EVALUATION) for word in ("eval_every", "val_check_interval")],
        *[((), word, MINIBATCHES) for word in ("ppo_epochs", "minibatch_size")],
        (("pipeline", "epochs"), "ppo_mini_batch_size", MINIBATCHES),
        (("run",), "early_stopping_patience", "`run.stop: {on: STAGE.NAME, patience: 3}`"),
        (("run",), "early_stopping", "`stop`"),
        ((), "early_stopping", "`stop` here, and goes under `run`"),
        (("run", "checkpoint"), "save_best", "`best`"),
        (("run", "checkpoint"), "monitor", "`on` here, and goes under `run.checkpoint.best`"),
        ((), "num_epochs", "`epochs` here, and goes under `run`"),
        ((), "learning_rate", "an argument of a component, `lr`"),
        ((), "dataset", "an argument of a component, `path`"),
        ((), "data", "an argument of a component, `path`"),
        ((), "finetuning_type", "under `vars`"),
        (("run",), "save_steps", "`run.checkpoint: {every: STEPS}`"),
    ],
)
def test_a_key_of_another_system_is_answered_with_the_one_here(
    path: tuple[str, ...], key: str, suggestion: str
) -> None:
    found = helps(*path, key=key, value={"on": "eval.exam.loss"} if key == "early_stopping" else 3)
    assert any(suggestion in help for help in found), found


@pytest.mark.parametrize(
    ("path", "key", "value", "suggestion"),
    [
        (("pipeline", "epochs"), "repeat", 3, "{times: 3, over: STAGE, size: 128}"),
        (("run",), "stop", 3, "{on: STAGE.NAME, patience: 3}"),
        (("run", "checkpoint"), "best", "eval.exam.loss", "{on: STAGE.NAME}"),
        (("run",), "checkpoint", 50, "{every: 50}"),
    ],
)
def test_a_value_in_place_of_a_mapping_is_answered_with_a_mapping(
    path: tuple[str, ...], key: str, value: Any, suggestion: str
) -> None:
    assert any(suggestion in help for help in helps(*path, key=key, value=value))
