"""Runs micro-batches through a model that each rank can run whole, or through pipeline stages, with the
schedules of `torch.distributed.pipelining`. All data ranks have the same number of micro-batches.

    rank 0    F0 F1    B0 F2    B1 F3 ...        the embedding and the first layers
    rank 1       F0 B0    F1 B1    F2 ...        the other layers, the head, and the loss

All ranks of a pipeline receive the same samples, so only hidden states and their gradients are sent. The last
stage computes the outputs and losses of whole micro-batches, as one process does, and sends its results to
the other ranks. All endpoints therefore return the same on each rank. The shapes of micro-batches may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import CRITICAL, getLogger
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)
from torch.distributed.tensor import DTensor

from meshctl.hf.options import ModelError
from meshctl.hf.router_loss import RouterLoss
from meshctl.hf.sharding import local_of
from meshctl.hf.stages import StagedModel, Stages
from meshctl.hf.texts import Texts, joined
from meshctl.hf.training import Trainer
from meshctl.losses import LossSum
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.collectives.collective import Collective

T = TypeVar("T")
SCHEDULES: dict[str, tuple[Any, Any]] = {
    "1f1b": (Schedule1F1B, ScheduleInterleaved1F1B),
    "gpipe": (ScheduleGPipe, ScheduleLoopedBFS),
}
"""Value of `pipeline` -> the classes of torch for one stage on each rank, and for several (vpp)."""
getLogger("torch.distributed.pipelining").setLevel(CRITICAL)  # it prints schedules before an error is raised


class Passes:
    """Runs micro-batches one after another."""

    def __init__(self, routers: RouterLoss) -> None:
        self._routers = routers

    def continued(self, texts: Texts) -> Texts:
        """Returns the texts of a forward pass, as the model gets them."""
        return texts

    def each(
        self, parts: Iterable[Batch], prefixes: tuple[str, ...], compute: Callable[[Batch], T]
    ) -> list[T]:
        """Returns the results of `compute`, which runs the model once, for each micro-batch. It is called
        without gradients. `prefixes` are those of the columns with the texts that it uses."""
        return [compute(part) for part in parts]

    def train(
        self,
        parts: Sequence[Batch],
        prefixes: tuple[str, ...],
        loss: Callable[[Batch], LossSum],
        trainer: Trainer,
    ) -> list[Tensor]:
        """Accumulates the gradients of all micro-batches. Returns for each whether its loss is finite."""
        finite = []
        for number, found in enumerate(self._routers.added(parts, loss), 1):
            finite.append(torch.isfinite(found.total.detach()))
            trainer.backward(found, number == len(parts))
        return finite


class PipelinePasses(Passes):
    """Runs micro-batches through the stages of this rank and of its pp peers."""

    def __init__(
        self,
        model: Any,
        schedule: str,
        pp: Collective,
        dtype: torch.dtype,
        forward: Callable[[Texts], Tensor],
        texts_of: Callable[[Batch, str], Texts],
    ) -> None:
        """`dtype` is that of hidden states. `forward` runs the model, and `texts_of` returns the texts of a
        micro-batch in the columns with a prefix."""
        config = model.config.get_text_config()
        if getattr(config, "output_router_logits", False):
            raise ModelError("the loss of routers is not supported with pp; leave out `output_router_logits`")
        self._schedule, self._pp, self._dtype = schedule, pp, dtype
        self._model = StagedModel(model)
        self._stages = self._model.stages
        self._width = config.hidden_size
        self._forward, self._texts_of = forward, texts_of
        self._received: Tensor | None = None

    def continued(self, texts: Texts) -> Texts:
        """Returns the texts of the last stage with the hidden states that it has received for them. Raises
        `ModelError` for other texts, and for a second forward pass of the same micro-batch."""
        received, self._received = self._received, None
        if received is None or received.shape[:2] != texts.input_ids.shape:
            raise ModelError(
                "with pp, a loss runs the model once for each micro-batch, for the texts of its inputs"
            )
        return replace(texts, hidden=received)

    def each(
        self, parts: Iterable[Batch], prefixes: tuple[str, ...], compute: Callable[[Batch], T]
    ) -> list[T]:
        every, found = list(parts), {}

        def last(number: int) -> Tensor:
            found[number] = compute(every[number])
            return torch.zeros(())

        self._run(every, prefixes, last)
        return self._of_last(found)

    def train(
        self,
        parts: Sequence[Batch],
        prefixes: tuple[str, ...],
        loss: Callable[[Batch], LossSum],
        trainer: Trainer,
    ) -> list[Tensor]:
        every, found = self._padded(parts), {}

        def last(number: int) -> Tensor:
            made = loss(every[number])
            found[number] = LossSum(made.total.detach(), made.count, made.metrics)
            return made.total

        self._run(every, prefixes, last, is_training=True)
        losses = self._of_last(found)
        for one in losses:
            trainer.sums.add(one)
        self._add_tied(trainer)
        return [torch.isfinite(one.total) for one in losses[: len(parts)]]

    def _padded(self, parts: Sequence[Batch]) -> list[Batch]:
        """Returns the micro-batches, with empty ones at the end where the schedule needs more of them."""
        count, stages = len(parts), len(self._stages.layers)
        if self._schedule == "1f1b" and len(self._stages.own) == 1:
            count = max(count, stages)
        elif self._schedule == "1f1b":
            while count % max(1, count // self._pp.size):
                count += 1
        end = len(parts[0])
        return [*parts, *[parts[0].between(end, end) for _ in range(count - len(parts))]]

    def _of_last(self, found: Mapping[int, Any]) -> list[Any]:
        own = [found[number] for number in sorted(found)]
        plain = [
            [one.total, one.count, dict(one.metrics)] if isinstance(one, LossSum) else one for one in own
        ]
        arrived = self._pp.broadcast_object(plain, self._pp.size - 1)
        return [LossSum(*one) if isinstance(one, list) else one for one in arrived]

    def _run(
        self,
        parts: Sequence[Batch],
        prefixes: tuple[str, ...],
        last: Callable[[int], Tensor],
        is_training: bool = False,
    ) -> None:
        """Runs a schedule. `last` computes the result of the last stage for a micro-batch, which is its loss
        if `is_training`."""
        texts = [joined(*(self._texts_of(part, prefix) for prefix in prefixes)) for part in parts]
        shapes = [(*one.input_ids.shape, self._width) for one in texts]
        failures: list[Exception] = []

        def compute(stage: int, number: int, received: Tensor | None) -> Tensor:
            try:
                return self._computed(stage, number, texts[number], received, last)
            except Exception as error:
                failures.append(error)
                raise

        stages = [
            _Stage(_Module(stage, compute), stage, self._stages, self._pp, shapes, self._dtype)
            for stage in self._stages.own
        ]
        single, several = SCHEDULES[self._schedule if is_training else "gpipe"]
        options = {"loss_fn": (lambda output, target: output) if is_training else None, "scale_grads": False}
        count = len(parts)
        schedule = (
            several(stages, count, **options) if len(stages) > 1 else single(stages[0], count, **options)
        )
        numbers = torch.arange(count)
        try:
            schedule.step(number=numbers, target=numbers, return_outputs=False)
        except RuntimeError:
            if failures:  # torch has put it into an error of its own
                raise failures[0] from None
            raise

    def _computed(
        self, stage: int, number: int, texts: Texts, received: Tensor | None, last: Callable[[int], Tensor]
    ) -> Tensor:
        if stage < self._stages.last:
            whole = texts if received is None else replace(texts, hidden=received)
            return self._model.hidden(stage, lambda: self._forward(whole), received)
        assert received is not None
        self._received = received
        with self._model.last(received):
            return last(number)

    def _add_tied(self, trainer: Trainer) -> None:
        """Adds the gradients of the tied embedding in the first and in the last stage. Both get the same sum,
        so that both copies stay equal."""
        ends = 0, self._pp.size - 1
        if self._pp.rank not in ends:
            return
        other = ends[1] if self._pp.rank == ends[0] else ends[0]
        for parameter in trainer.shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if isinstance(parameter.grad, DTensor) and isinstance(parameter, DTensor):
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
            own = local_of(parameter.grad)
            if self._pp.rank == ends[0]:
                self._pp.send(own, other)
                own += self._pp.recv(other)
            else:
                arrived = self._pp.recv(other)
                self._pp.send(own, other)
                own += arrived


class _Module(nn.Module):
    """The module of a stage for torch. It hides the model, of which torch would drop gradients before each
    schedule, and whose FSDP it would control."""

    def __init__(self, stage: int, compute: Callable[[int, int, Tensor | None], Tensor]) -> None:
        super().__init__()
        self._stage, self._compute = stage, compute

    def forward(self, received: Tensor | None = None, *, number: Tensor) -> Tensor:
        return self._compute(self._stage, int(number), received)


class _Stage(PipelineStage):
    """A stage whose micro-batches have different shapes."""

    def __init__(
        self,
        module: nn.Module,
        number: int,
        stages: Stages,
        pp: Collective,
        shapes: Sequence[tuple[int, ...]],
        dtype: torch.dtype,
    ) -> None:
        hidden = torch.empty(shapes[0], dtype=dtype, device="meta", requires_grad=True)
        inputs = () if number == 0 else (hidden,)
        super().__init__(module, number, len(stages.layers), pp.device, inputs, (hidden,), group=pp.group)
        self._shapes, self._dtype = shapes, dtype
        self._runtime_validate = False  # it would compare all shapes with the first one

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        super()._setup_forward_recv_info(num_microbatches, has_backward)
        self._fit(self.args_recv_info)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        super()._setup_backward_recv_info(num_microbatches)
        self._fit(self.grad_recv_info)

    def _fit(self, infos: dict[int, tuple[Any, ...]]) -> None:
        for number, of_part in infos.items():
            for info in of_part:
                meta, shape = info.tensor_meta, self._shapes[number]
                if info.buffer is not None:
                    info.buffer = torch.empty(shape, dtype=self._dtype, device=self.device)
                elif meta is not None and hasattr(info, "allocate_buffer"):  # from torch 2.15 on
                    like = torch.empty(
                        shape, dtype=self._dtype, device="meta", requires_grad=meta.requires_grad
                    )
                    info.tensor_meta = type(meta).from_tensor(like)


def by_tokens(batch: Batch, limit: int, prefixes: tuple[str, ...], data: Collective) -> Iterator[Batch]:
    """Yields the micro-batches of a batch, in order. Each has at most `limit` tokens, or one longer sample.

    The tokens are those of the columns `input_ids` with each of `prefixes`. Ranks with fewer micro-batches
    yield empty ones at the end. The function is a collective operation over `data`: all data ranks call it.
    Raises `ModelError` if an `input_ids` column is not ragged.
    """
    total = torch.zeros(len(batch), dtype=torch.int64)
    for prefix in prefixes:
        column = batch[f"{prefix}input_ids"]
        if not isinstance(column, Ragged):
            raise ModelError(f"`micro_batch_tokens` needs a ragged column `{prefix}input_ids`")
        total += column.lengths.cpu()
    cuts = list(_cuts(total.tolist(), limit))
    count = int(data.all_reduce(torch.tensor(len(cuts), device=data.device), "max"))
    for start, stop in cuts:
        yield batch.between(start, stop)
    for _ in range(count - len(cuts)):
        yield batch.between(len(batch), len(batch))


def _cuts(lengths: list[int], limit: int) -> Iterator[tuple[int, int]]:
    start, tokens = 0, 0
    for row, length in enumerate(lengths):
        if tokens and tokens + length > limit:
            yield start, row
            start, tokens = row, 0
        tokens += length
    if lengths:
        yield start, len(lengths)


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Returns a context in which a model computes without gradients and dropout.

    After a forward pass without a backward pass, FSDP keeps some parameters unsharded. The end of the context
    shards these parameters again, and sets the model to its earlier mode.
    """
    is_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(is_training)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
