"""`hf.Model`: a model of transformers on its component's mesh.

    actor: {_target_: meshctl.hf.Model, group: train, parallel: {fsdp_size: 4, tp_size: 2},
            args: {model: Qwen/Qwen3-8B, lr: 1e-5, lora: {r: 16}}}

The same class serves as actor, critic, reference, reward model, teacher and student. A subclass may
override `build`, `forward` and `loss`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from meshctl.argument_limits import check_arguments
from meshctl.data.tokenizer import Tokenizer
from meshctl.hf import checks, peft_api, transformers_api, weights
from meshctl.hf.building import Build, build
from meshctl.hf.companions import copy_companions
from meshctl.hf.context_parallel import ContextParallel, DividedOutputs
from meshctl.hf.logits import ChunkedHead, OutputsWithoutLogits, SharedOutputs, shared_logits
from meshctl.hf.options import ModelError, Sizes, dtype_of
from meshctl.hf.outputs import (
    REF,
    SIDES,
    OfTexts,
    Outputs,
    inputs_of,
    logprob_columns,
    prefixes_of,
    reference_columns,
    renamed,
    score_columns,
    teacher_columns,
    value_columns,
    with_estimates,
    with_label_numbers,
)
from meshctl.hf.parity import ParityCheck
from meshctl.hf.peft_api import Lora
from meshctl.hf.pipeline import Passes, PipelinePasses, by_tokens, inference
from meshctl.hf.router_loss import RouterLoss
from meshctl.hf.stages import of_all_stages
from meshctl.hf.texts import Texts, check_borders, check_positions, joined, texts_of
from meshctl.hf.training import LearningRates, Sums, Trainer, make_optimizer, not_finite
from meshctl.hf.transformers_api import HEADS, DiskFormat, outline
from meshctl.hf.weights import FILE_BYTES, export, export_adapter, load_stored, stored_weights
from meshctl.labels import IGNORED
from meshctl.losses import Loss, LossSum, advantages, find
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.collectives.collective import Collective
from meshctl.runtime.component import Component, endpoint
from meshctl.topology.memory import Selection


class Model(Component):
    """A model with the endpoints of all roles in training."""

    EXTRA = "hf"
    MODEL: ClassVar = ("args.model", "args.config")
    LAYOUTS: ClassVar = {
        "dims": ("pp", "dp", "fsdp", "cp", "tp", "ulysses", "ep", "vpp"),
        "excludes": (("pp", "cp"), ("pp", "ulysses"), ("pp", "ep")),
        "tp_plan": "transformers",
        "lora_styles": "meshctl.hf.peft_api.STYLES",
        "tied_shards": "equal",
        "attention": "transformers",
        "experts": "transformers",
        "ulysses": "heads",
        "pp_plan": "transformers",
        "split": "args.split",
        "cache": "args.share_prompts",
        "without": {
            "args.attention": ("cp", "ulysses"),
            "args.config.output_router_logits": ("pp",),
            "args.compile": ("pp", "cp", "ulysses"),
            "args.share_prompts": ("pp", "cp", "ulysses", "sequence_parallel"),
        },
    }
    RETURNS: ClassVar = {
        "logprobs": ("logprobs", "chosen_logprobs", "rejected_logprobs"),
        "old_logprobs": ("old_logprobs", "old_chosen_logprobs", "old_rejected_logprobs"),
        "ref_logprobs": (
            "ref_logprobs",
            "ref_sequence_logprobs",
            "ref_chosen_logprobs",
            "ref_rejected_logprobs",
        ),
        "teacher_logprobs": (
            "teacher_logprobs",
            {"args.top_logprobs": ("teacher_top_ids", "teacher_top_logprobs")},
        ),
        "values": ("values",),
        "scores": ("scores", "chosen_scores", "rejected_scores"),
    }

    def __init__(
        self,
        model: str | Mapping[str, Any],
        *,
        head: str = "lm",
        num_labels: int | None = None,
        config: Mapping[str, Any] | None = None,
        tokenizer: str = "",
        tokens: Sequence[str] = (),
        export: Mapping[str, bool] | None = None,
        dtype: str = "float32",
        compute_dtype: Literal["bfloat16"] | None = None,
        attention: str | None = None,
        experts: str | None = None,
        lora: Mapping[str, Any] | None = None,
        freeze: Sequence[str] = (),
        train: Sequence[str] = (),
        loss: str = "cross_entropy",
        loss_options: Mapping[str, Any] | None = None,
        advantage: str | None = None,
        advantage_options: Mapping[str, Any] | None = None,
        temperature: float = 1.0,
        parity: str = "warn",
        top_logprobs: int | None = None,
        optimizer: str = "AdamW",
        lr: float = 1e-5,
        optimizer_options: Mapping[str, Any] | None = None,
        schedule: Mapping[str, Any] | None = None,
        clip: float | None = 1.0,
        micro_batch: int | None = None,
        micro_batch_tokens: int | None = None,
        logits_chunk_tokens: int | None = None,
        share_prompts: bool = False,
        skip_nonfinite: bool = False,
        activation_checkpointing: bool = False,
        compile: bool | Mapping[str, Any] = False,
        pipeline: Literal["1f1b", "gpipe"] = "1f1b",
        split: str | Sequence[int] = "count",
    ) -> None:
        """Stores and checks the arguments. The model itself is built in `setup`. Raises `ModelError` or
        `LossError` for invalid arguments.

        model: the folder of a model, a name of the hub, or config values with `model_type`. Config values
            produce random weights.
        head: `lm` for logits of the vocabulary; `score` for a critic or a reward model; `classify` for the
            labels of whole texts.
        num_labels: the number of labels with `head: classify`; None for that of the model's config.
        config: values that replace those of the model's config.
        tokenizer: the tokenizer of exports, `byte`, a folder, or a name of the hub. The default is that of
            the model's folder.
        tokens: tokens that are added to the tokenizer and to the embeddings, whose new rows are the mean of
            the others. Sources and samplers have an argument of the same name.
        export: `{adapter: true}` if exports have the adapter alone, in the format of peft.
        dtype: the dtype of the stored weights.
        compute_dtype: the dtype of the forward and backward passes, `bfloat16`; None for `dtype`.
        attention, experts: the names of the implementations of attention and of experts in transformers.
        lora: a mapping with the keys `r`, `alpha`, `target` and `dropout`, and with `from`, the folder of an
            adapter with which the training begins.
        freeze, train: patterns of the names of parameters or modules that are not trained, or that alone are
            trained, such as `model.layers.[0-3]`.
        loss, loss_options: a name of `meshctl.losses` or the dotted path of a function, and its options.
        advantage, advantage_options: a name of `meshctl.losses.advantages` or the dotted path of a function,
            and its options; None for the advantage of the loss's paper.
        temperature: divides the logits from which log-probabilities are computed, as a sampler's does.
        parity: `warn` or `error` if the sampler's log-probabilities differ from those of the same weights
            here by more than 0.1 nats in the mean; `off` to compare nothing.
        top_logprobs: the number of likeliest tokens in the columns of `teacher_logprobs`; None for none.
        optimizer, lr, optimizer_options: a class of `torch.optim` or its dotted path, the learning rate, and
            further arguments of the class.
        schedule: the `name`, `warmup` and `steps` of a schedule of transformers, and its further options.
            `steps` counts updates; without it, the schedule follows the steps of the run. A `warmup` below 1
            is a share of them.
        clip: the maximum norm of the gradient; None for no clipping.
        micro_batch, micro_batch_tokens: the maximum number of samples, or of tokens, of a micro-batch. An
            update accumulates the gradients of all micro-batches. The two arguments exclude each other.
        logits_chunk_tokens: the maximum number of tokens whose logits are in memory at the same time; None
            for all tokens of a micro-batch. The backward pass computes the logits again.
        share_prompts: whether texts of a micro-batch with the same tokens before their first label compute
            these tokens once, as the answers to one prompt do.
        skip_nonfinite: whether an update is skipped if its loss or gradient is not finite. Otherwise such an
            update raises `ModelError`. The weights do not change in either case.
        activation_checkpointing: whether the backward pass computes activations again.
        compile: whether to compile the model, or a mapping of options of `torch.compile`.
        pipeline: the schedule of pipeline stages, `1f1b` or `gpipe`. With `vpp_size`, the stages of a rank
            are interleaved. Without `micro_batch`, there are as many micro-batches as stages.
        split: how pipeline stages divide the layers: by `count`, by `cost` (with the head), or the number of
            layers of each stage.
        """
        check_arguments(checks.MODEL, locals(), ModelError)
        if head not in HEADS:
            raise ModelError(f"`head` is {' or '.join(HEADS)}, not `{head}`")
        if num_labels and head != "classify":
            raise ModelError("`num_labels` needs `head: classify`")
        names = (config or {}).get("id2label")
        if num_labels and isinstance(names, Mapping) and len(names) != num_labels:
            raise ModelError(f"`num_labels` is {num_labels}, and `config.id2label` has {len(names)} names")
        self.model, self.head, self.export_tokenizer = model, head, tokenizer
        self.config = dict(config or {}) | ({"num_labels": num_labels} if num_labels else {})
        self.tokens = tokens
        if tokens and not tokenizer and not isinstance(model, str):
            raise ModelError("`tokens` needs `tokenizer` with a model of config values")
        self.dtype = dtype_of(dtype)
        self.compute_dtype = dtype_of(compute_dtype) if compute_dtype else None
        if self.compute_dtype not in (None, torch.bfloat16):
            raise ModelError("`compute_dtype` is bfloat16, or left out")
        self.attention, self.experts = attention, experts
        self.lora, self.exports_adapter = Lora.of(lora) if lora else None, bool((export or {}).get("adapter"))
        self.selection = Selection(tuple(freeze), tuple(train))
        if self.exports_adapter and (not lora or head != "lm"):
            raise ModelError("`export: {adapter: true}` needs `lora` and `head: lm`")
        self.loss_function: Loss = find(loss, **(loss_options or {}))
        advantage = advantage or advantages.DEFAULTS.get(loss)
        self.advantage = advantages.find(advantage, **(advantage_options or {})) if advantage else None
        self.temperature, self.top_logprobs = temperature, top_logprobs
        self._parity = ParityCheck(parity if head == "lm" else "off")
        self.optimizer, self.optimizer_options = optimizer, {"lr": lr, **(optimizer_options or {})}
        self.schedule, self.clip = dict(schedule or {}), clip
        self.micro_batch, self.micro_batch_tokens = micro_batch, micro_batch_tokens
        self.logits_chunk_tokens, self.share_prompts = logits_chunk_tokens, share_prompts
        if (logits_chunk_tokens or share_prompts) and not (
            head == "lm" and type(self).forward is Model.forward
        ):
            name = "share_prompts" if share_prompts else "logits_chunk_tokens"
            raise ModelError(f"`{name}` needs `head: lm` and the `forward` of `hf.Model`")
        self.skip_nonfinite, self.activation_checkpointing = skip_nonfinite, activation_checkpointing
        self.compile, self.pipeline, self.split, self.has_checked_borders = compile, pipeline, split, False

    # Building

    def setup(self) -> None:
        self.module  # noqa: B018
        options = self.schedule or len(self.optimizer_options) > 1 or self.optimizer != "AdamW"
        if options or self.selection != Selection():
            self.trainer  # noqa: B018

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes.of(self.mesh)

    @cached_property
    def module(self) -> nn.Module:
        """The model with the shards of this rank, built at the first access. All ranks make the first access
        together, because it is a collective operation."""
        module = self.build()
        if self.activation_checkpointing:
            module.activation_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        if self.compile:
            module.compile(**(self.compile if isinstance(self.compile, Mapping) else {}))
        return module

    def build(self) -> nn.Module:
        """Builds the model on the component's mesh and returns it. All ranks call this method together."""
        needs_mesh = self.mesh.world_size > 1 or self.compute_dtype is not None
        return build(
            Build(
                self.model,
                self.head,
                self.config,
                self.dtype,
                self.compute_dtype,
                self._sequence.name if self._sequence else self.attention,
                self.experts,
                self.lora,
                self.selection,
                self.seed,
                self.sizes,
                self.torch_mesh if needs_mesh else None,
                self.device,
                self.split,
                self.mesh.dim_rank(self.rank, "pp"),
                self.extended_tokenizer.added if self.extended_tokenizer else range(0),
            )
        )

    @cached_property
    def extended_tokenizer(self) -> Tokenizer | None:
        """The tokenizer with the added tokens; None if there are none."""
        name = self.export_tokenizer or str(self.model)
        return Tokenizer(name, tokens=self.tokens) if self.tokens else None

    @cached_property
    def _passes(self) -> Passes:
        if self.sizes.pp == 1:
            return Passes(self._routers)
        dtype, pp = self.compute_dtype or self.dtype, self.collective("pp")
        return PipelinePasses(self.module, self.pipeline, pp, dtype, self.forward, self._texts)

    @cached_property
    def _sequence(self) -> ContextParallel | None:
        """The division of tokens over cp and ulysses; None if each rank has whole texts."""
        if self.sizes.cp * self.sizes.ulysses == 1:
            return None
        return ContextParallel(self.collective("cp"), self.collective("ulysses"), self.sizes.sequence)

    @cached_property
    def _routers(self) -> RouterLoss:
        return RouterLoss(self.module, self.collective("world"), self.sizes)

    @cached_property
    def _chunked_head(self) -> ChunkedHead:
        assert self.logits_chunk_tokens
        return ChunkedHead(self.module, self.logits_chunk_tokens, self.temperature)

    @cached_property
    def trainer(self) -> Trainer:
        named = [(name, one) for name, one in weights.parameters(self.module) if one.requires_grad]
        made = make_optimizer(self.optimizer, named, self.optimizer_options)
        rates = LearningRates(self.schedule, made, self.place)
        world, tp = self.collective("world"), self.collective("tp")
        return Trainer(self.module, named, made, rates, world, tp, self.sizes, self.clip)

    # What a subclass may override

    def forward(self, texts: Texts) -> Tensor:
        """Returns the logits, `[rows, longest, vocabulary]`. With `head: score` it returns the
        scores, `[rows, longest]`, and with `head: classify` the logits of labels, `[rows, longest,
        labels]`."""
        if self.head != "lm":
            found = transformers_api.scores_of(self.module, texts.inputs)
            return found[..., 0] if self.head == "score" else found
        found = self.module(**texts.inputs).logits
        assert isinstance(found, Tensor)
        return found

    def loss(self, batch: Batch) -> LossSum:
        """Returns the loss of a micro-batch, summed over its units. The micro-batch may be empty."""
        function = self.loss_function
        inputs = self.loss_inputs(batch, function.inputs)
        found = function(inputs)
        if found.total.requires_grad:  # `nothing` costs a gradient of the size of all logits
            return found
        return LossSum(found.total + inputs["nothing"], found.count, found.metrics)

    def loss_inputs(self, batch: Batch, names: Iterable[str]) -> dict[str, Any]:
        """Returns the inputs `names` of a loss, and the input `nothing`.

        An input is a column of the batch or an output of the model for the texts of the batch. A column of
        floats with one value for each token is aligned with `logprobs`. A name without either is left out.
        With `lora`, the base model without its adapter computes the outputs of the reference model. Without
        `lora`, these outputs must be columns. `nothing` is a 0-dim tensor with the value 0. A loss that does
        not depend on the model adds `nothing`, so that the backward pass can run.
        """
        names, prefixes = list(names), prefixes_of(names)
        sides = [self._texts(batch, prefix) for prefix in prefixes]
        own = self._outputs(sides)
        self._parity.add(own[0], batch)

        def reference() -> list[Outputs]:
            with torch.no_grad(), peft_api.without_adapters(self.module), self._routers.paused():
                return self._outputs(sides)

        return inputs_of(names, batch, own, reference if self.lora else None)

    def _texts(self, batch: Batch, prefix: str) -> Texts:
        texts = texts_of(batch, prefix, self.device, self.sizes.sequence)
        if limit := transformers_api.positions_of(self.module.config):
            check_positions(batch, prefix, texts, limit)
        return texts

    def _outputs(self, sides: list[Texts]) -> list[Outputs]:
        """Returns the outputs of the model for each element of `sides`. One forward pass computes all of
        them."""
        if len(sides) == 1:
            return [self._outputs_of(sides[0])]
        rows, both = sides[0].samples, self._outputs_of(joined(*sides))
        halves = (slice(0, rows), slice(rows, None)) if rows else (slice(0, None), slice(0, None))
        return [both.rows(half) for half in halves]

    def _outputs_of(self, texts: Texts) -> Outputs:
        texts = self._passes.continued(texts)
        if self.share_prompts:
            if self._routers.is_added:
                raise ModelError("`share_prompts` and `output_router_logits` exclude each other")
            logits, places = shared_logits(self.module, texts)
            return SharedOutputs(logits, texts, self.temperature, places)
        if self._sequence:
            return self._divided_outputs(self._sequence, texts)
        self._routers.expect(texts.is_real)
        if self.logits_chunk_tokens:
            raw = self._chunked_head.logprobs(texts.inputs, texts.labels[:, 1:])
            return OutputsWithoutLogits(raw, texts, self.temperature)
        return Outputs(self.forward(texts), texts, self.temperature, self.head)

    def _divided_outputs(self, sequence: ContextParallel, texts: Texts) -> Outputs:
        division = sequence.divide(texts)
        self._routers.expect(division.own(texts.is_real, 0))
        if self.logits_chunk_tokens:
            labels = division.own(texts.labels[:, 1:], IGNORED)
            own = self._chunked_head.logprobs(division.part.inputs, labels)
            outputs: Outputs = OutputsWithoutLogits(division.whole_of(own)[:, :-1], texts, self.temperature)
        else:
            raw = self.forward(division.part)
            outputs = DividedOutputs(raw, texts, self.temperature, self.head, division)
        sequence.check(self.module)
        return outputs

    # Endpoints

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        """Updates the weights once, and returns the metrics of the update.

        The metrics are `loss`, `grad_norm` before clipping, `lr`, `units` (the number of tokens, samples or
        pairs on all ranks), `skipped` (the number of skipped updates so far), the metrics of the loss, and
        for sampled answers those of `ParityCheck.measure`. A skipped update has the metrics `lr`, `units` and
        `skipped` only. Raises `ModelError` if the loss or the gradient is not finite, unless
        `skip_nonfinite` is set.
        """
        batch = self._with_estimates(batch)
        trainer, parts = self.trainer, self._parts(batch)
        self.module.train()
        with self._parity.measure(batch, self.step, self._data_ranks) as parity:
            finite = self._passes.train(parts, self._prefixes, self.loss, trainer)
        skipped = trainer.skipped
        found = self._routers.metrics(trainer.step())
        if trainer.skipped == skipped:
            self._parity.weights.changed()
        if trainer.skipped == skipped or not found["units"]:
            return found | parity
        if not self.skip_nonfinite:
            culprits = [part for part, is_finite in zip(parts, finite, strict=True) if not is_finite]
            cause = not_finite(culprits, batch, self._data_ranks)
            raise ModelError(
                f"the loss is {found['loss']:.4g} and the norm of its gradient "
                f"{found['grad_norm']:.4g}; {cause}; the weights were not changed"
            )
        return {name: found[name] for name in ("lr", "units", "skipped")}  # a metric that is NaN ends a run

    @endpoint(collect="mean")
    def evaluate(self, batch: Batch) -> dict[str, float]:
        """Returns the means of the loss and of its metrics over the batch of all ranks. The weights do not
        change."""
        sums, batch = Sums(), self._with_estimates(batch)
        with inference(self.module):
            for loss in self._passes.each(self._parts(batch), self._prefixes, self.loss):
                sums.add(loss)
        return sums.over_ranks(self.collective("world"), self.sizes.peers)[0]

    @endpoint
    def logprobs(self, batch: Batch) -> Batch:
        """Returns a ragged column `logprobs` with the log-probability of the label of each token.

        The value is 0 at the first token and where the label is -100. For pairs, the columns are
        `chosen_logprobs` and `rejected_logprobs`, `[pairs]`: the sums over each answer.
        """
        return self._columns(batch, logprob_columns)

    @endpoint
    def ref_logprobs(self, batch: Batch) -> Batch:
        """Returns the columns of `logprobs`, computed by the model without its adapter. Each name begins with
        `ref_`.

        For texts that are not packed, it also returns `ref_sequence_logprobs`, `[samples]`: the sums over
        each text.
        """
        with peft_api.without_adapters(self.module):
            return renamed(REF, self._columns(batch, reference_columns))

    @endpoint
    def old_logprobs(self, batch: Batch) -> Batch:
        """Returns the columns of `logprobs`. Each name begins with `old_`. A stage calls it before the first
        update with the batch."""
        return renamed("old_", self.logprobs(batch))

    @endpoint
    def teacher_logprobs(self, batch: Batch) -> Batch:
        """Returns the columns of `logprobs`. Each name begins with `teacher_`.

        With `top_logprobs: k`, it also returns ragged columns `teacher_top_ids` and `teacher_top_logprobs`,
        `[k]` for each token: the likeliest tokens in its place.
        """
        return renamed("teacher_", self._columns(batch, partial(teacher_columns, top=self.top_logprobs)))

    @endpoint
    def values(self, batch: Batch) -> Batch:
        """Returns a ragged column `values` with a score for each token. Raises `ModelError` without `head:
        score`."""
        return self._columns(batch, value_columns)

    @endpoint
    def scores(self, batch: Batch) -> Batch:
        """Returns a column `scores`, `[samples]`: the score of the last token of each text.

        For pairs, the columns are `chosen_scores` and `rejected_scores`, `[pairs]`. Raises `ModelError`
        without `head: score`.
        """
        return self._columns(batch, score_columns)

    def _columns(self, batch: Batch, of: OfTexts) -> Batch:
        """Returns the columns that the function `of` makes from the outputs of the model for a batch, or for
        both sides of its pairs."""
        sides = SIDES if f"{SIDES[0]}input_ids" in batch else ("",)

        def columns_of(part: Batch) -> Batch:
            outputs = self._outputs([self._texts(part, side) for side in sides])
            named = zip(sides, outputs, strict=True)
            made = {f"{side}{name}": column for side, one in named for name, column in of(one, side)}
            return Batch(made, ids=part.known_ids, group_depth=part.group_depth)

        with inference(self.module):
            return Batch.concat(self._passes.each(self._parts(batch, sides), sides, columns_of))

    def _label_logprobs(self, texts: Batch) -> Ragged:
        limit = self.micro_batch_tokens or 1  # otherwise one text at a time
        parts = list(by_tokens(texts, limit, ("",), self._data_ranks)) or [texts]

        def logprobs_of(part: Batch) -> Batch:
            [outputs] = self._outputs([self._texts(part, "")])
            return Batch(dict(logprob_columns(outputs, "")))

        with inference(self.module):
            logprobs: Ragged = Batch.concat(self._passes.each(parts, ("",), logprobs_of))["logprobs"]
        return logprobs

    @property
    def _prefixes(self) -> tuple[str, ...]:
        return prefixes_of(self.loss_function.inputs)

    @property
    def _data_ranks(self) -> Collective:
        return self.collective("data")

    def _with_estimates(self, batch: Batch) -> Batch:
        """Returns the batch with the inputs of the loss that are computed before its micro-batches."""
        if self.head == "classify":
            config: Any = self.module.config
            names = {name: number for number, name in config.id2label.items()}
            batch = with_label_numbers(batch, names, config.num_labels)
        batch = with_estimates(batch, self.loss_function, self.advantage, self._data_ranks)
        missing = {name for name in self.loss_function.inputs if name.startswith(REF) and name not in batch}
        if self.sizes.pp > 1 and self.lora and missing:  # the last stage alone cannot run the reference model
            found = self.ref_logprobs(batch)
            return batch.with_columns(**{name: found[name] for name in missing if name in found})
        return batch

    def _parts(self, batch: Batch, prefixes: tuple[str, ...] | None = None) -> list[Batch]:
        """Returns the micro-batches of a batch: at least one, and the same number on all ranks."""
        is_packed = "position_ids" in batch and "input_ids" in batch
        if is_packed and not self.has_checked_borders and self.head != "classify":
            self.has_checked_borders = True  # at first, because the check computes on packed texts, too
            of = value_columns if self.head == "score" else logprob_columns
            dtype = self.compute_dtype or self.dtype
            check_borders(self.module, dtype, lambda one: self._columns(one, of))
        if self.micro_batch_tokens:
            limit, texts = self.micro_batch_tokens, prefixes or self._prefixes
            parts = by_tokens(batch, limit, texts, self._data_ranks)
        else:
            stages = self.sizes.pp * self.sizes.vpp
            parts = self.micro_batches(batch, self.micro_batch or max(1, -(-batch.most // stages)))
        return list(parts) or [batch]

    # Weights

    @cached_property
    def _disk(self) -> DiskFormat:
        uses_cache: Any = self.module.exported_use_cache
        return DiskFormat(self.module.config, self.head, self.dtype, uses_cache)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the names and the shards of the weights, as the files of the model have them: one weight for
        each expert, where transformers fuses experts in memory. The adapter, if there is one, is merged into
        the weights. All ranks iterate together."""
        self._parity.sent(self.step, self._label_logprobs)
        return stored_weights(self._disk, weights.merged_weights(self.module))

    def load_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the tensors of `stream` into the weights. The names are those of `weights`. Each tensor is
        whole or the shard of this rank. Raises `ModelError` for an unknown name or another shape."""
        own = weights.held(self.module).items()
        load_stored(self._disk, {peft_api.plain_name(name): tensor for name, tensor in own}, stream)

    def adapter(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the names and the shards of the adapter's parameters. The names are those in the files of
        peft."""
        if self.lora is None:
            raise ModelError("`adapter` needs `lora`: this model has no adapter to send")
        self._parity.sent(self.step, self._label_logprobs)
        return weights.adapter_of(self.module)

    def load_adapter(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the tensors of `stream` into the adapter's parameters. Each tensor is whole or the shard of
        this rank. Raises `ModelError` for an unknown name or another shape."""
        weights.copy_named(dict(weights.adapter_of(self.module)), stream)

    @endpoint(collect="none")
    def export(self, folder: str | Path | None = None, file_bytes: int = FILE_BYTES) -> None:
        """Writes the config, the weights with the adapter merged, and the tokenizer, to a folder that
        `from_pretrained` can load.

        The tokenizer, its chat template and the generation config are those of the model's folder. With the
        argument `tokenizer`, the files of that tokenizer replace them.

        The default of `folder` is `exports/step-N` in the run directory, or `exports/NAME/step-N` if a run
        exports several components. All ranks call this method together,
        and each of them writes a part of the files. A file has at most `file_bytes`, or one tensor. No rank
        holds more than one file and one whole tensor.
        """
        path = Path(folder) if folder else self.run_dir / self.place.exports / f"step-{self.step}"
        if self.exports_adapter:
            self._export_adapter(path)
            return
        shapes, tensors = weights.outlines(self.module), weights.merged_weights(self.module)
        if self.mesh.size("pp") > 1:
            names = [*weights.outlines(outline(self.module.config, self.head))]
            shapes, tensors = of_all_stages(shapes, tensors, names, self.collective("pp"))
        export(self._disk, shapes, tensors, path, self.collective("world"), file_bytes)
        if self.rank == 0:
            copy_companions(self.model, self.export_tokenizer, self.config, path, self.extended_tokenizer)
        self.collective("world").barrier()

    def _export_adapter(self, path: Path) -> None:
        tensors, config = weights.adapter_of(self.module), cast(Any, self.module).adapter_config
        if self.mesh.size("pp") > 1 and self.lora:
            whole = outline(self.module.config, self.head)
            peft_api.inject(whole, self.lora)
            own = {name: one.to("meta") for name, one in weights.adapter_of(self.module)}
            names = [name for name, _ in weights.adapter_of(whole)]
            _, tensors = of_all_stages(own, tensors, names, self.collective("pp"))
        base = self.model if isinstance(self.model, str) else ""
        export_adapter(config, base, tensors, path, self.collective("world"))

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Returns the trained weights, the optimizer's state, and the numbers of updates and of skipped
        updates.

        The keys are the names of parameters, so a checkpoint can be resumed in any layout. With an adapter,
        the frozen weights are left out.
        """
        return self.trainer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.trainer.load_state_dict(state)
