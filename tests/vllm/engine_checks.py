"""Checks of the sampler with the engine. The interpreter of `make vllm` runs them, which has no pytest:

    .venv-vllm/bin/python -m tests.vllm.engine_checks FILE

FILE gets name -> "passed", or the traceback, as JSON. Under torchrun, all ranks run the checks of a world.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import sleep
from typing import Any

import torch
from torch import nn

from meshctl import Batch, DeviceMesh
from meshctl.runtime.batch.batch import Ragged
from meshctl.runtime.rank_context import RankContext
from meshctl.sampling.continuous import Request
from meshctl.vllm import Sampler, SamplerError
from tests.agents.worlds import HERE, agent, questions

CONFIG = {
    "model_type": "llama",
    "vocab_size": 259,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
}
TIED = {**CONFIG, "tie_word_embeddings": True}
UNTIED = {**CONFIG, "tie_word_embeddings": False}
TOLERANCE = 1e-3
"""The maximum difference of log-probabilities in nats."""


@contextmanager
def sampler(
    config: dict[str, Any] | str = TIED, weights: nn.Module | None = None, **options: Any
) -> Iterator[Sampler]:
    """Returns a context with a sampler, which has the weights of a model. A process has one at a time."""
    defaults = {"tokenizer": "byte", "max_new_tokens": 8, "kv_cache_bytes": 1 << 26}
    place = options.pop("place", None)
    made = Sampler(config, **{**defaults, **options})
    made._context = place
    made.setup()
    try:
        if weights is not None:
            made.load_weights(iter(stored(weights)))
        yield made
    finally:
        made.close()


def model(config: dict[str, Any], seed: int) -> nn.Module:
    """Returns a model of transformers with random weights, whose distributions are far from uniform."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval().requires_grad_(False)
    for parameter in made.parameters():
        parameter.mul_(5)
    return made  # type: ignore[no-any-return]


def stored(of: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Returns the weights as the files of the model have them: a tied head is not among them."""
    tied = of.config.tie_word_embeddings  # type: ignore[union-attr]
    return [(name, one) for name, one in of.state_dict().items() if not (tied and name == "lm_head.weight")]


def prompts(count: int = 6, first: int = 0) -> Batch:
    rows = [torch.arange(65, 68 + number % 4) + number for number in range(first, first + count)]
    return Batch({"prompt_ids": Ragged.of(rows)}, ids=torch.arange(first, first + count))


def worst_difference(of: nn.Module, batch: Batch, temperature: float) -> float:
    """Returns the largest difference between the sampled log-probabilities and those of the model."""
    worst = 0.0
    columns = (batch[name].rows() for name in ("input_ids", "labels", "sampled_logprobs"))
    for ids, labels, found in zip(*columns, strict=True):
        logprobs = (of(input_ids=ids[None]).logits[0, :-1].double() / temperature).log_softmax(-1)
        wanted = logprobs.gather(1, ids[1:, None])[:, 0]
        is_sampled = labels[1:] != -100
        worst = max(worst, (wanted - found[1:])[is_sampled].abs().max().item())
        assert not found[0] and not found[1:][~is_sampled].any()
    return worst


def syncs_change_the_log_probabilities() -> None:
    for config, temperature in product((TIED, UNTIED), (1.0, 0.7)):
        first, second = model(config, 1), model(config, 2)
        with sampler(config, first, temperature=temperature, group_size=2) as one:
            assert worst_difference(first, one.sample(prompts()), temperature) < TOLERANCE
            one.load_weights(iter(stored(second)))
            again = one.sample(prompts())  # the same prompts, which the prefix cache knows
            assert worst_difference(second, again, temperature) < TOLERANCE
            assert worst_difference(first, again, temperature) > 0.1


def running_answers_go_on_with_new_weights() -> None:
    first, second = model(TIED, 1), model(TIED, 2)
    with sampler(max_new_tokens=12) as one:
        step, loads, steps = one.generator._stepper.step, list[Thread](), count()

        def load(of: nn.Module, version: int) -> None:
            one.place.version = version
            one.load_weights(iter(stored(of)))

        def stepped() -> object:
            if next(steps) == 4:
                loads.append(Thread(target=load, args=(second, 7)))
                loads[0].start()
                while not one.generator._pauses:
                    sleep(0.001)
            return step()

        load(first, 3)
        one.generator._stepper.step = stepped  # type: ignore[assignment, method-assign]
        found = one.sample(prompts())
    columns = [found.columns[name].rows() for name in ("input_ids", "sampled_logprobs", "@versions")]
    assert {*torch.cat(columns[2]).tolist()} == {-1, 3, 7}
    for ids, logprobs, versions in zip(*columns, strict=True):
        for of, version in ((first, 3), (second, 7)):
            own = of(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            assert (own - logprobs[1:])[versions[1:] == version].abs().max() < TOLERANCE


def an_adapter_is_sent_alone() -> None:
    base, names = model(UNTIED, 1), ("self_attn.q_proj", "mlp.down_proj")
    with TemporaryDirectory() as folder, torch.no_grad():
        base.save_pretrained(folder)  # type: ignore[operator]
        with sampler(folder, lora={"r": 4, "alpha": 12}) as one:
            assert worst_difference(base, one.sample(prompts()), 1.0) < TOLERANCE
            for seed in (2, 3):
                adapted, sent = model(UNTIED, 1), {}
                for name, module in adapted.named_modules():
                    if name.endswith(names):
                        rows, columns = module.weight.shape  # type: ignore[union-attr, misc]
                        generator = torch.Generator().manual_seed(seed)
                        a, b = (torch.randn(*size, generator=generator) for size in ((4, columns), (rows, 4)))
                        module.weight += 3 * b @ (a / 20)  # type: ignore[operator, misc]
                        sent[f"base_model.model.{name}.lora_A.weight"] = a / 20
                        sent[f"base_model.model.{name}.lora_B.weight"] = b
                one.load_adapter(sent.items())
                found = one.sample(prompts())
                assert worst_difference(adapted, found, 1.0) < TOLERANCE
                assert worst_difference(base, found, 1.0) > 0.1
            assert "a sampler with `lora` loads adapters alone" in error_of(lambda: one.load_weights([]))


def the_distribution_is_truncated_before_the_log_probabilities() -> None:
    of = model(TIED, 1)
    with sampler(weights=of, top_k=3, temperature=2.0) as one:
        found = one.sample(prompts())
    columns = (found[name].rows() for name in ("input_ids", "labels", "sampled_logprobs"))
    for ids, labels, logprobs in zip(*columns, strict=True):
        best = (of(input_ids=ids[None]).logits[0, :-1] / 2).topk(3)
        new = (labels[1:] != -100).nonzero()[:, 0]
        wanted = best.values.log_softmax(-1)[new][best.indices[new] == ids[1:][new, None]]
        assert (wanted - logprobs[1:][new]).abs().max() < TOLERANCE


def given_texts_are_scored() -> None:
    """The scores are those of the last sync, also of a text that the prefix cache knows."""
    texts = [[65, 66, 67, 68], [70, 71], [65, 66, 67, 68, 69, 70]]
    with sampler(weights=model(TIED, 1)) as one:
        for seed in (1, 2):
            of = model(TIED, seed)
            one.load_weights(iter(stored(of)))
            one.sample(prompts())
            for text, found in zip(texts, one.engine.score(texts), strict=True):
                ids = torch.tensor([text])
                logprobs = of(input_ids=ids).logits[0, :-1].log_softmax(-1)
                wanted = logprobs.gather(1, ids[0, 1:, None])[:, 0]
                assert (wanted - torch.tensor(found)).abs().max() < TOLERANCE


def answers_do_not_depend_on_the_batch() -> None:
    with sampler(weights=model(TIED, 1), group_size=2) as one:
        together = one.sample(prompts(4))["input_ids"].rows()
        apart = {number: one.sample(prompts(1, number))["input_ids"].rows() for number in (3, 0, 2, 1)}
    for number in range(4):
        pairs = zip(together[2 * number : 2 * number + 2], apart[number], strict=True)
        assert all(torch.equal(first, second) for first, second in pairs)
    assert len({tuple(row.tolist()) for row in together}) == 8


def answers_end_with_their_stop() -> None:
    of = model(TIED, 1)
    with sampler(weights=of, temperature=0) as greedy:
        found = greedy.sample(prompts(1))
    [row] = found["input_ids"].rows()
    assert found["finish_reason"] == ["length"]
    token = next(token for token in row[3:].tolist() if token < 128)  # a character of its own
    end = row.tolist().index(token, 3) + 1
    for stop in (token, chr(token)):
        with sampler(weights=of, temperature=0, stop=[stop]) as one:
            found = one.sample(prompts(1))
        assert found["input_ids"][0].tolist() == row[:end].tolist(), (stop, found["input_ids"][0])
        assert found["finish_reason"] == ["stop"]


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except SamplerError as error:
        assert "\n" not in str(error)
        return str(error)
    raise AssertionError("no error")


def agents_train_on_the_tokens_of_the_engine() -> None:
    """Requests of several turns and of branches, whose prefixes the engine keeps; their limits and stop texts;
    and a request whose client has gone."""
    config = {**TIED, "max_position_embeddings": 512}
    of = model(config, 1)
    with sampler(config, of, max_new_tokens=24, place=RankContext("sampler", serves=True)) as one:
        for function in ("turns", "branches"):
            with (
                TemporaryDirectory() as run,
                agent(one, Path(run), function=f"{HERE}.{function}", group_size=2) as made,
            ):
                batch = made.run(questions("hi", "hello"))
            assert len(batch) == (4 if function == "turns" else 20)
            assert worst_difference(of, batch, 1.0) < TOLERANCE
        prompt, texts = [65, 66, 67], [chr(letter) for letter in range(97, 123)]
        requests = [
            Request(prompt, [seed], most, stop)
            for seed in range(8)
            for most, stop in ((3, ()), (24, tuple(texts)))
        ]
        answers = one.generator.submit(requests).result()
        assert all(len(answer.tokens) <= 3 for answer in answers[::2])
        ended = one.tokenizer.decode_rows([answer.tokens for answer in answers[1::2]], is_plain=True)
        stopped = [said for said in ended if set(texts) & set(said)]
        # A letter behind an incomplete character is found with the character.
        assert stopped and not any(set(texts) & set(said[:-4]) for said in stopped)
        gone = one.generator.submit([Request(prompt, [1, 2])])
        assert gone.cancel() and len(one.sample(prompts())) == 6 and one.generator.is_idle


def an_incomplete_sync_is_refused() -> None:
    sent = stored(model(TIED, 1))
    with sampler() as one:
        assert "does not send 2 of the" in error_of(lambda: one.load_weights(iter(sent[:-2])))


def a_process_has_one_engine() -> None:
    with sampler():
        assert "a process has one engine of vLLM" in error_of(sampler().__enter__)


def an_unsupported_model_is_one_message() -> None:
    for config, reason in (
        ({**CONFIG, "model_type": "nonsense"}, "transformers has no `nonsense` model that generates text"),
        ({**CONFIG, "architectures": ["UnknownForCausalLM"]}, "UnknownForCausalLM"),
        ({**CONFIG, "max_position_embeddings": 64}, "max_model_len"),
    ):
        found = error_of(sampler(config, engine={"max_model_len": 96}).__enter__)
        assert reason in found and "cannot serve the model: " in found


def a_failure_while_it_generates_is_one_message() -> None:
    with sampler({**CONFIG, "head_dim": 8}) as one:  # vLLM on CPU has no attention for it
        found = error_of(lambda: one.sample(prompts(1)))
    assert "cannot generate: " in found


def limits_are_those_of_the_model() -> None:
    for config in (TIED, UNTIED):
        with sampler(config) as one:
            assert (one.engine.max_length, one.engine.vocabulary_size) == (128, 259)
            assert one.engine.is_tied == (config is TIED)


def ranks_sample_what_one_rank_samples() -> None:
    """Checks dp or tp on the ranks of torchrun against the answers in a file that one rank wrote."""
    sizes, expected = json.loads(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
    one = Sampler(TIED, tokenizer="byte", max_new_tokens=8, kv_cache_bytes=1 << 26)
    one.use_mesh(DeviceMesh.from_sizes(**sizes, device_type="cpu"))
    one.setup()
    of = model(TIED, 1)
    one.load_weights(iter(stored(of)))
    dp = one.mesh.size("dp")
    start = one.rank // one.mesh.size("tp")
    numbers = list(range(start, 5, dp))  # the shares of dp ranks differ
    for number in numbers:
        assert one.sample(prompts(1, number))["input_ids"][0].tolist() == expected[number]
    one.close()
    assert one.collective("world").all_gather_object(one.rank) == list(range(one.world_size))


CHECKS: tuple[Callable[[], None], ...] = (
    syncs_change_the_log_probabilities,
    running_answers_go_on_with_new_weights,
    an_adapter_is_sent_alone,
    the_distribution_is_truncated_before_the_log_probabilities,
    given_texts_are_scored,
    answers_do_not_depend_on_the_batch,
    answers_end_with_their_stop,
    agents_train_on_the_tokens_of_the_engine,
    an_incomplete_sync_is_refused,
    a_process_has_one_engine,
    an_unsupported_model_is_one_message,
    a_failure_while_it_generates_is_one_message,
    limits_are_those_of_the_model,
)


def result_of(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return "passed"


def expected_answers() -> list[list[int]]:
    with sampler(weights=model(TIED, 1)) as one:
        return [row.tolist() for row in one.sample(prompts(5))["input_ids"].rows()]


def main() -> None:
    file = Path(sys.argv[1])
    if len(sys.argv) > 2:
        results: dict[str, Any] = {"world": result_of(ranks_sample_what_one_rank_samples)}
        file = file.with_suffix(f".{torch.distributed.get_rank()}")
    else:
        results = {check.__name__: result_of(check) for check in CHECKS}
        results["answers"] = expected_answers()
    file.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
