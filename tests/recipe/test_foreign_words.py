"""Keys of other systems in the place where a user writes them: what the help of the report suggests."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import yaml

from tests.recipe.correct_recipes import TEXTS, loaded

BLOCKS = yaml.safe_load(TEXTS["blocks.yaml"].replace(" on:", ' "on":'))
EVALUATION, MINIBATCHES = "with `every: STEPS`", "`repeat: {times: ROUNDS, over: STAGE, size: SAMPLES}`"


def helps(*path: str, key: str, value: Any = 3) -> list[str]:
    """Returns the helps of the errors after `key` was added to the mapping at `path` of a correct recipe."""
    recipe = deepcopy(BLOCKS)
    mapping = recipe
    for name in path:
        mapping = mapping[name]
    mapping[key] = value
    report = loaded("blocks.yaml", yaml.safe_dump(recipe, sort_keys=False)).report
    return [found.help for found in report.errors]


CASES = [
    *[(("run",), word, 3, EVALUATION) for word in ("eval_every", "eval_steps", "test_freq", "eval_strategy")],
    *[((), word, 3, EVALUATION) for word in ("eval_every", "val_check_interval")],
    *[((), word, 3, MINIBATCHES) for word in ("ppo_epochs", "minibatch_size")],
    (("pipeline", "epochs"), "ppo_mini_batch_size", 3, MINIBATCHES),
    (("run",), "early_stopping_patience", 3, "`run.stop: {on: STAGE.NAME, patience: 3}`"),
    (("run",), "early_stopping", {"on": "eval.exam.loss"}, "`stop`"),
    ((), "early_stopping", {"on": "eval.exam.loss"}, "`stop` here, and goes under `run`"),
    (("run", "checkpoint"), "save_best", 3, "`best`"),
    (("run", "checkpoint"), "monitor", 3, "`on` here, and goes under `run.checkpoint.best`"),
    ((), "num_epochs", 3, "`epochs` here, and goes under `run`"),
    ((), "learning_rate", 3, "an argument of a component, `lr`"),
    ((), "dataset", 3, "an argument of a component, `path`"),
    ((), "data", 3, "an argument of a component, `path`"),
    ((), "finetuning_type", 3, "under `vars`"),
    (("run",), "save_steps", 3, "`run.checkpoint: {every: STEPS}`"),
    (
        ("components", "sampler"),
        "remote_class",
        "first",
        "in a group of its own, `{ranks: 1, colocate: GROUP}`",
    ),
    (
        ("components", "sampler"),
        "execute_on",
        "first",
        "in a group of its own, `{ranks: 1, colocate: GROUP}`",
    ),
    # A value in place of a mapping
    (("pipeline", "epochs"), "repeat", 3, "{times: 3, over: STAGE, size: 128}"),
    (("run",), "stop", 3, "{on: STAGE.NAME, patience: 3}"),
    (("run", "checkpoint"), "best", "eval.exam.loss", "{on: STAGE.NAME}"),
    (("run",), "checkpoint", 50, "{every: 50}"),
]


@pytest.mark.parametrize(("path", "key", "value", "suggestion"), CASES)
def test_a_key_of_another_system_is_answered_with_the_one_here(
    path: tuple[str, ...], key: str, value: Any, suggestion: str
) -> None:
    found = helps(*path, key=key, value=value)
    assert any(suggestion in help for help in found), found
