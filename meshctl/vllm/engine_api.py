"""All of vLLM that meshctl uses. `tests/vllm/test_engine.py` pins it.

Only `vllm.Sampler` imports this module, when it builds the engine, after `options.prepare`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import torch
import vllm
from safetensors.torch import save_file
from torch import Tensor
from vllm.config import WeightTransferConfig
from vllm.config.lora import MaxLoRARanks
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.sampling_params import RequestOutputKind
from vllm.transformers_utils.config import try_get_generation_config
from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

from meshctl.sampling.continuous import Answer, Sampling
from meshctl.vllm.options import EngineOptions, Sampled, SamplerError, model_folder

ADAPTER = "adapter"
BACKEND = "meshctl"
"""The name under which `Transfer` is registered."""


@dataclass
class _NoInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """A transfer needs no connection: the weights arrive on a route of meshctl."""


@dataclass
class _Chunk(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A part of the weights."""

    weights: Sequence[tuple[str, Tensor]]


class Transfer(WeightTransferEngine[_NoInfo, _Chunk]):  # type: ignore[misc]
    """Loads weights that this process has received. They have the names and shapes of a checkpoint on disk.

    vLLM repacks the weights of a layer once all of them have arrived.
    """

    init_info_cls, update_info_cls = _NoInfo, _Chunk

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._expected = {name for name, _ in self.model.named_parameters()}
        self._loaded: set[str] | None = None

    def init_transfer_engine(self, init_info: _NoInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)
        self._loaded = set()

    def receive_weights(self, update_info: _Chunk) -> None:
        names = self.model.load_weights(update_info.weights)
        if names is None or self._loaded is None:  # some models do not return what they have loaded
            self._loaded = None
        else:
            self._loaded |= names

    def finish_weight_update(self) -> None:
        missing = sorted(self._expected - self._loaded) if self._loaded is not None else []
        if missing:
            raise SamplerError(
                f"the sync does not send {len(missing)} of the {len(self._expected)} parameters of the "
                f"engine, the first of them `{missing[0]}`"
            )
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


WeightTransferEngineFactory.register_engine(BACKEND, Transfer)


class CpuExecutor(ExecutorWithExternalLauncher):  # type: ignore[misc]
    """The executor of torchrun for tp on a CPU, without the shared memory of vLLM.

    vLLM gives this memory the same name in all runs on a machine, which would then read the tensors of each
    other, and a killed process leaves it behind. vLLM uses torch.distributed instead where the names differ
    between ranks.
    """

    def _distributed_args(self) -> tuple[str, int, int]:
        method, rank, local_rank = super()._distributed_args()
        return f"{method}{rank}", rank, local_rank


_open: list[Engine] = []
"""The engine of this process, until it is closed. vLLM would destroy all process groups of torch with it."""


class Engine:
    """An engine of vLLM with one model.

    If tp is larger than 1, all ranks of a tp group call every method together, with equal arguments.
    """

    def __init__(self, options: EngineOptions) -> None:
        """Builds the engine. All ranks of torch's world call this together. Raises `SamplerError` if vLLM
        does not support the model or an argument."""
        if _open:
            raise SamplerError(
                "a process has one engine of vLLM, because engines share tensors: a group has one "
                "`vllm.Sampler`"
            )
        self._has_own_world = not torch.distributed.is_initialized()
        shown = f"model `{options.model}`" if isinstance(options.model, str) else "the model"
        failure = _errors(f"vLLM {vllm.__version__} cannot serve {shown}")
        with failure, _launched_as(options), model_folder(options.model) as folder:
            self._llm = vllm.LLM(**_arguments(options, folder))
        self._llm.init_weight_transfer_engine({"init_info": {}})
        self._adapter: LoRARequest | None = None
        self._adapter_rank = options.lora_rank
        _open.append(self)

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a prompt and its answer together."""
        found: int = self._llm.model_config.max_model_len
        return found

    @property
    def vocabulary_size(self) -> int:
        found: int = self._llm.model_config.get_vocab_size()
        return found

    @property
    def end_tokens(self) -> list[int]:
        """The ids of the tokens that end an answer, as the files of the model state them."""
        config = self._llm.model_config
        stated = try_get_generation_config(config.model, False) or config.hf_text_config
        found = getattr(stated, "eos_token_id", None)
        return [found] if isinstance(found, int) else list(found or ())

    @property
    def is_tied(self) -> bool:
        """True if the output layer has the weights of the embedding."""
        return bool(getattr(self._llm.model_config.hf_text_config, "tie_word_embeddings", False))

    @property
    def version(self) -> str:
        """The version of the weights."""
        found: str = self._llm.get_weight_version()
        return found

    def add(self, name: str, prompt: Sequence[int], sampling: Sampling, seed: int) -> None:
        """Adds a request, whose answer has this name. Raises `SamplerError` if vLLM refuses it."""
        with _errors(f"vLLM {vllm.__version__} cannot generate"):
            self._llm.llm_engine.add_request(
                name,
                {"prompt_token_ids": list(prompt)},
                _parameters(sampling, seed),
                lora_request=self._adapter,
            )

    def step(self) -> list[tuple[str, Sampled]]:
        """Runs one step of the scheduler, and returns the answers that have ended, by name. Raises
        `SamplerError` if vLLM fails."""
        with _errors(f"vLLM {vllm.__version__} cannot generate"):
            outputs = self._llm.llm_engine.step()
        return [(one.request_id, _answer(one.outputs[0])) for one in outputs if one.finished]

    def abort(self, names: Sequence[str]) -> None:
        self._llm.llm_engine.abort_request(list(names))

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns the log-probability of each token of each text but its first, at temperature 1. A text is
        shorter than `max_length`, because the engine generates a token after it."""
        prompts = [{"prompt_token_ids": list(one)} for one in texts]
        parameters = vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        with _errors(f"vLLM {vllm.__version__} cannot generate"):
            outputs = self._llm.generate(prompts, parameters, use_tqdm=False, lora_request=self._adapter)
        return [
            [entry[token].logprob for token, entry in zip(text[1:], output.prompt_logprobs[1:], strict=True)]
            for text, output in zip(texts, outputs, strict=True)
        ]

    # Weights

    def start_update(self) -> None:
        self._llm.start_weight_update()

    def update(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Loads a part of the weights. The tensors are read, and may be kept until `finish_update`."""
        self._llm.update_weights({"update_info": {"weights": weights}})

    def finish_update(self, version: str) -> None:
        """Ends the update of all weights, and forgets what was computed with the old ones."""
        self._llm.finish_weight_update(version)
        self._forget()

    def _forget(self) -> None:
        """Forgets what was computed with the old weights, also of running requests, which go on."""
        if not self._llm.reset_prefix_cache(reset_running_requests=True):
            raise SamplerError("vLLM cannot reset its prefix cache, which has values of the old weights")

    def load_adapter(self, tensors: Mapping[str, Tensor], alpha: float, version: str) -> None:
        """Loads an adapter in place of the last one. `tensors` have the names of the files of peft, `alpha`
        is its scale, and `version` that of its weights. Raises `SamplerError` if vLLM cannot load it."""
        config = {
            **{"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none"},
            **{"r": self._adapter_rank, "lora_alpha": alpha},
            "target_modules": sorted({name.split(".")[-3] for name in tensors}),
        }
        with TemporaryDirectory(prefix="meshctl-adapter-") as folder:  # vLLM reads adapters from files only
            Path(folder, "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
            whole = {name: one.detach().to("cpu").contiguous() for name, one in tensors.items()}
            save_file(whole, Path(folder, "adapter_model.safetensors"))
            with _errors(f"vLLM {vllm.__version__} cannot load the adapter"):
                self._llm.llm_engine.add_lora(LoRARequest(ADAPTER, 1, folder, load_inplace=True))
            self._adapter = LoRARequest(ADAPTER, 1, folder)
        self._llm.llm_engine.set_weight_version(version)
        self._forget()

    # Memory

    def sleep(self) -> None:
        """Releases the memory of the device. The weights move to CPU memory."""
        self._llm.sleep(level=1)

    def wake(self, *tags: str) -> None:
        """Restores the memory of the device: of everything, or only what `tags` name."""
        self._llm.wake_up(list(tags) or None)

    def close(self) -> None:
        """Releases the engine, unless torch's process groups are those of other components as well."""
        if self._has_own_world and self in _open:
            _open.remove(self)
            self._llm.llm_engine.engine_core.shutdown()


def _arguments(options: EngineOptions, folder: str) -> dict[str, Any]:
    is_cpu = options.device_type == "cpu"
    # Each executor runs the model in this process, and that of torchrun chooses the device.
    executor: Any = CpuExecutor if options.tp_size > 1 else "uni"
    executor = executor if is_cpu else "external_launcher"
    ranks = [one for one in get_args(MaxLoRARanks) if one >= options.lora_rank]
    lora = {"enable_lora": True, "max_loras": 1, "max_lora_rank": min(ranks)} if options.lora_rank else {}
    cache = {} if options.kv_cache_bytes is None else {"kv_cache_memory_bytes": options.kv_cache_bytes}
    return {
        "model": folder,
        "tokenizer": options.tokenizer or None,
        "skip_tokenizer_init": not options.tokenizer,
        "load_format": "auto" if isinstance(options.model, str) else "dummy",
        "hf_overrides": _overrides(options),
        "dtype": options.dtype,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "enforce_eager": is_cpu,
        "tensor_parallel_size": options.tp_size,
        "distributed_executor_backend": executor,
        "enable_sleep_mode": options.can_sleep,
        "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
        **cache,
        **lora,
        **options.further,
    }


@contextmanager
def _launched_as(options: EngineOptions) -> Iterator[None]:
    """Sets the variables of torchrun from which vLLM reads the rank and the device of this process."""
    wanted = {"RANK": str(options.rank), "LOCAL_RANK": str(options.device_index)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Turns an error of vLLM into a `SamplerError`, in place of a traceback through its code."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        raise SamplerError(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Returns the first line of an error that says what is wrong."""
    details = getattr(error, "errors", None)  # pydantic's first line only counts the errors
    text = str(details()[0]["msg"]) if callable(details) else str(error)
    lines = text.removeprefix("Value error, ").strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _overrides(options: EngineOptions) -> dict[str, Any]:
    """Returns the values that replace those of the model's config. A config of values names no class, and
    gets the one that transformers has for its architecture."""
    if isinstance(options.model, str) or "architectures" in options.model:
        return dict(options.config)
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    kind = {**options.model, **options.config}.get("model_type")
    if kind not in CLASSES:
        raise ValueError(f"transformers has no `{kind}` model that generates text")
    return {"architectures": [CLASSES[kind]], **options.config}


def _parameters(sampling: Sampling, seed: int) -> vllm.SamplingParams:
    return vllm.SamplingParams(
        seed=seed,
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        stop_token_ids=list(sampling.stop_tokens),
        stop=list(sampling.stop_texts),
        ignore_eos=True,  # the end tokens are in `stop_tokens`
        detokenize=bool(sampling.stop_texts),
        logprobs=0,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _answer(output: Any) -> Sampled:
    versions = [span.version for span in output.weight_versions or () for _ in range(span.start, span.end)]
    logprobs = output.logprobs
    firsts = [logprobs.logprobs[start] for start in logprobs.start_indices]
    return Sampled(Answer(list(output.token_ids), firsts, output.finish_reason), versions)
