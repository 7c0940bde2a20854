"""The bytes of models on each rank, and of the models that share a device.

    memory on each rank
      A actor   4.1 GB weights + 4.1 gradients + 8.19 AdamW + 268 MB sync = 16.7 GB
      B critic  4.1 GB weights + 4.1 gradients + 8.19 AdamW = 16.4 GB
      C teacher 8.2 GB weights = 8.2 GB (pp 0: 8.2 GB, pp 1: 7.9 GB)
      D student 2.4 GB weights + 0.02 gradients + 0.04 AdamW = 2.46 GB (5 M of 601 M parameters are trained)
      train     33 GB of 80 GB on each device

The bytes are those of the rank with the most; with pp, the sum of each pp rank follows. With an adapter or
frozen parts, the number of trained parameters follows.
A component with devices to itself has no line of its device. If the collective operations of a component are
known, a line after that of its memory has what each rank sends:

                sends 3.1 GB all-gather (fsdp) + 1.55 GB reduce-scatter (fsdp) each micro-batch, 131 kB
                all-reduce (tp) each token
"""

from __future__ import annotations

from collections.abc import Sequence

from meshctl.text.english import size
from meshctl.topology.memory import ComponentMemory, DeviceMemory, Memory, Move
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.styled import Line, styled, words_of, wrapped

HEADING = "memory on each rank"
INDENT = "  "


def in_full(memory: Memory, marks: Marks, width: int) -> list[Line]:
    """Returns the parts and the sum of each component, and the sum of each device with several."""
    alone = {one.components[0]: one for one in memory.devices if _is_of_one(one)}
    rows: list[tuple[Line, list[str]]] = []
    for each in memory.components:
        name = Line(marks.letter(each.component), " ", marks.name(each.component))
        rows.append((name, _parts(each, alone.get(each.component))))
        rows += [(Line(""), _sent(each.moves))] if each.moves else []
    rows += [
        (Line(styled(_groups(one), "bold")), _device(one)) for one in memory.devices if not _is_of_one(one)
    ]
    wide = min(max(name.width for name, _ in rows), width // 3)
    made: list[Line] = []
    for name, text in rows:
        words = [Line(styled(word)) for word in text]
        lines = wrapped(words, width - wide - 2 * len(INDENT), " ")
        heads = [name.fit(wide).padded(wide), *[Line(" " * wide)] * (len(lines) - 1)]
        made += [Line(INDENT, head, INDENT, line) for head, line in zip(heads, lines, strict=True)]
    return made


def in_lines(memory: Memory, marks: Marks) -> list[Line]:
    """Returns the sum of each device."""
    return [
        Line(INDENT, styled(_groups(one), "bold"), INDENT, " ".join(_device(one))) for one in memory.devices
    ]


def sums(memory: ComponentMemory) -> list[str]:
    """Returns the parts of a component: `4.1 GB weights`, `4.1 gradients`, `8.19 AdamW`, `268 MB sync`. A
    unit that is the same as the one before is left out."""
    named = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        memory.optimizer_name: memory.optimizer,
        "sync": memory.sync,
    }
    texts, last = [], ""
    for name, count in named.items():
        if count is None:
            texts.append(f"unknown {name}")
        elif count:
            number, unit = size(count).split()
            texts.append(f"{number}{f' {unit}' * (unit != last)} {name}")
            last = unit
    return texts


def _parts(memory: ComponentMemory, device: DeviceMemory | None) -> list[str]:
    if memory.unknown:
        return [str(word.text) for word in words_of(f"unknown: {memory.unknown}")]
    first, *others = sums(memory)
    texts = [first, *(f"+ {text}" for text in others)]
    of_stages = ", ".join(f"pp {rank}: {size(count)}" for rank, count in enumerate(memory.stages))
    of = f" of {size(device.device_memory)}" if device and device.device_memory else ""
    if others or of:
        texts.append(f"{'=' if memory.is_complete else '>'} {size(memory.total)}{of}")
    if memory.trained:
        trained, every = (size(one).removesuffix("B").strip().replace("G", "B") for one in memory.trained)
        texts.append(f"({trained} of {every} parameters are trained)")
    return [*texts, f"({of_stages})"] if of_stages else texts


def _sent(moves: Sequence[Move]) -> list[str]:
    """Returns what a rank sends, in words: first the bytes of a micro-batch, then those of a token."""
    texts = []
    for per_token, unit in ((False, "micro-batch"), (True, "token")):
        parts = [
            f"{size(one.bytes)} {one.operation} ({one.dim})" for one in moves if one.per_token == per_token
        ]
        texts += [f"{' + '.join(parts)} each {unit}"] if parts else []
    return f"sends {', '.join(texts)}".split()


def _is_of_one(one: DeviceMemory) -> bool:
    return len(one.components) == 1 and (one.is_complete or not one.device_memory)


def _device(one: DeviceMemory) -> list[str]:
    least = "" if one.is_complete else "at least "
    of = f" of {size(one.device_memory)}" if one.device_memory else ""
    place = "in each process" if one.device_type == "cpu" else "on each device"
    return [f"{least}{size(one.total)}{of}", *place.split()]


def _groups(one: DeviceMemory) -> str:
    return " + ".join(one.groups)
