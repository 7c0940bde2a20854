"""The reward of a task of reasoning-gym, by the task's own verifier."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import reasoning_gym as library

EXTRA = "rewards"


def reasoning_gym(response: str, entry: Mapping[str, Any], *, tag: str = "") -> float:
    """Returns the score of an answer, from 0 to 1.

    entry: a task, as `meshctl.rewards.Tasks` makes it: an entry of reasoning-gym, with the options of its
        dataset under `options`.
    tag: the answer is the text in the last `<TAG>...</TAG>` of the response; empty for the whole response.
    """
    answer = library.utils.extract_answer(response, tag) if tag else response.strip()
    options = json.dumps(entry.get("options", {}), sort_keys=True)
    verify = _verifier(entry["metadata"]["source_dataset"], options)
    return float(verify(answer, dict(entry)))


@cache
def _verifier(name: str, options: str) -> Callable[[str | None, dict[str, Any]], float]:
    """Returns the verifier of a dataset. Some depend on the options of the dataset."""
    found: Callable[[str | None, dict[str, Any]], float]
    found = library.create_dataset(name, **{"size": 1, "seed": 0, **json.loads(options)}).score_answer
    return found
