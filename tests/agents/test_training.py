"""Training on episodes: the log-probabilities of their tokens, and one count for each episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from meshctl import Batch
from meshctl.hf import Model, Sampler
from meshctl.hf.outputs import with_estimates
from meshctl.losses import find
from meshctl.losses.advantages import find as find_advantage
from meshctl.runtime.batch.batch import Ragged
from meshctl.sampling.answers import EPISODE, VERSION, VERSIONS
from tests.agents.worlds import HERE, agent, questions, rows
from tests.hf.test_sampler import CONFIG

LONG: dict[str, Any] = {**CONFIG, "max_position_embeddings": 512}


@pytest.mark.parametrize("function", ["turns", "branches"])
def test_a_model_computes_the_log_probabilities_of_the_sampler(function: str, tmp_path: Path) -> None:
    sampler = Sampler(LONG, tokenizer="byte", max_new_tokens=16, dtype="float64")
    model = Model(LONG, dtype="float64")
    with agent(sampler, tmp_path, function=f"{HERE}.{function}", group_size=2) as made:
        with sampler.generator.loading(4):
            pass
        batch = made.run(questions("hi", "hello"))
        again = made.run(questions("hi", "hello"))
    assert rows(again, "input_ids") == rows(batch, "input_ids")  # the same step, samples and weights
    assert len({tuple(row) for row in rows(batch, "labels")}) == len(batch)
    found = model.old_logprobs(batch)["old_logprobs"]
    sampled = batch["sampled_logprobs"].values
    assert (found.values - sampled).abs().max() < 1e-10 and (sampled != 0).sum() > 100
    assert batch[VERSION].tolist() == [4] * len(batch) and set(batch[VERSIONS].values.tolist()) == {-1, 4}


def answers(lengths: list[int], rewards: list[float]) -> Batch:
    """Rows of so many labels, behind one token of a prompt."""
    tokens = [torch.arange(1, length + 2) for length in lengths]
    labels = [torch.cat([torch.tensor([-100]), row[1:]]) for row in tokens]
    columns = {"input_ids": Ragged.of(tokens), "labels": Ragged.of(labels), "rewards": torch.tensor(rewards)}
    return Batch(columns)


ONE = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 0]]
"""Two samples with two episodes each, of which the first has two rows."""


@pytest.mark.parametrize("name", ["grpo", "group_mean", "rloo", "whitened"])
def test_the_advantages_are_those_of_one_row_for_each_episode(name: str) -> None:
    data = Model(CONFIG).collective("world")
    branched = answers([2, 4, 6, 3, 3], [1.0, 1.0, 0.0, 0.5, 2.0])
    branched = Batch({**branched.columns, EPISODE: torch.ones(5)}, ids=torch.tensor(ONE), group_depth=1)
    plain = answers([6, 6, 3, 3], [1.0, 0.0, 0.5, 2.0])
    ids = torch.tensor([one[:2] for one in ONE if one[2] == 0])
    plain = Batch(plain.columns, ids=ids, group_depth=1)
    loss, advantage = find("grpo"), find_advantage(name)
    found = with_estimates(branched, loss, advantage, data)
    wanted = with_estimates(plain, loss, advantage, data)
    assert torch.allclose(found["advantages"][[0, 2, 3, 4]], wanted["advantages"])
    assert found["advantages"][1] == found["advantages"][0]
    assert found["episode_tokens"].tolist() == [6, 6, 6, 3, 3] and "episode_tokens" not in wanted


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo"])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_an_episode_counts_once_however_many_rows_it_has(loss: str, aggregation: str) -> None:
    """The sum and the units of an episode in two rows are those of one row with all of its labels."""
    values = torch.linspace(-2, -1, 9, dtype=torch.float64)
    inputs = {"mask": torch.ones(9), "advantages": torch.tensor([1.0] * 6 + [-0.5] * 3)}
    inputs |= {"logprobs": values, "old_logprobs": values, "sampled_logprobs": values - 0.1}

    def summed(lengths: list[int], **further: torch.Tensor) -> tuple[float, float]:
        index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        given = {**inputs, "sample_index": index, "sequence_tokens": torch.tensor(lengths), **further}
        found = find(loss, aggregation=aggregation)(given)
        return float(found.total), float(found.count)

    one = summed([6, 3])
    episodes = {"episode_tokens": torch.tensor([6.0, 6, 3]), "episode_rows": torch.tensor([2.0, 2, 1])}
    assert summed([2, 4, 3], **episodes) == pytest.approx(one)
    assert aggregation == "token" or summed([2, 4, 3]) != pytest.approx(one)
