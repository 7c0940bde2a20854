"""Generates the files that `init` writes, a recipe and its Python file, from a few choices. It reads only
shipped files.

    choice = Choice("grpo", device="cuda", ranks=8, layout="fsdp")
    texts = files(choice, "first")         {"first.yaml": ..., "first.py": ...}

The templates are `components/starters/KIND.yaml` and `KIND.py`. The Python file is copied. In the recipe,
words between `@` are replaced. The kinds of `RECIPES` have the recipes of the folder `recipes/` as templates,
whose components are ready-made. Instead of a Python file they have data.
"""

from __future__ import annotations

import json
import keyword
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from math import lcm

from meshctl.dataclass import dataclass
from meshctl.package import PACKAGE_DIR
from meshctl.text.english import counted, listed

KINDS = {
    "train": "train one model",
    "grpo": "rollout, judge and train: reinforcement learning (GRPO)",
    "distill": "a teacher and a student",
    "script": "a script of your own, written for torchrun",
    "sft": "fine-tune a Hugging Face model on chats",
    "sft_lora": "the same with an adapter (LoRA)",
    "dpo": "a Hugging Face model learns preferences (DPO)",
    "reward_model": "a Hugging Face model learns to score answers",
    "grpo_hf": "a Hugging Face model learns from rewards (GRPO)",
    "grpo_vllm": "the same with vLLM as the sampler",
    "grpo_free": "the same with rollouts of their own pace",
    "agent": "an agent with tools, which speaks the OpenAI protocol",
    "ppo": "the same with a critic (PPO)",
    "distill_on_policy": "a student learns from a teacher on its own answers",
}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
RECIPES = {
    "sft": ("rot13/chats.jsonl",),
    "sft_lora": ("rot13/chats.jsonl",),
    "dpo": ("rot13/pairs.jsonl",),
    "reward_model": ("rot13/pairs.jsonl",),
    **dict.fromkeys(
        ("grpo_hf", "grpo_vllm", "grpo_free", "ppo"), ("alphabet/prompts.jsonl", "alphabet/reward.py")
    ),
    "agent": (
        *("calculator/agent.py", "calculator/sums.jsonl", "calculator/exam.jsonl"),
        *(f"calculator/tokenizer/{name}" for name in TOKENIZER),
    ),
    "distill_on_policy": ("rot13/pairs.jsonl", "rot13/chats.jsonl", "rot13/reward.py"),
}
"""Kind with a recipe of the folder `recipes/` -> its data."""
ROLLOUTS = {
    **dict.fromkeys(("grpo_hf", "grpo_vllm", "ppo"), "rollouts"),
    "grpo_free": "free",
    "agent": "agent",
    "distill_on_policy": "distill",
}
"""Kind of `RECIPES` with the group `rollout` beside `train`, and mostly with `judge` -> the config group with
these."""
FREE = ("grpo_free", "agent")
"""The kinds whose group `rollout` runs ahead, on devices of its own, and has no judge beside it."""
NAMES = {"grpo_hf": "grpo", "grpo_vllm": "grpo"}
"""Kind -> name of its recipe in the folder `recipes/`, where it differs."""
VLLM_PYTHON = ".venv-vllm/bin/python"
"""The interpreter of the group `rollout` of the kind `grpo_vllm`, beside the recipe."""
RECIPE_DEVICE, RECIPE_RANKS, RECIPE_SAMPLES = "cpu", 2, 32
"""The devices and the samples of a batch in `conf/scale/laptop.yaml`."""
TEACHER_SAMPLES = 6
"""The samples of a batch of the teacher in `conf/distill/laptop.yaml`."""
MAX_RECIPE_RANKS = 100
"""Maximum number of ranks of these recipes: the batches of held-out data have 100 samples."""
RECIPE_EXTRAS = {"agent": "hf,agents"}
"""Kind -> the extras of meshctl with the libraries of its recipe, where they are not `hf`."""
DEVICES = {"cpu": "processes", "cuda": "NVIDIA, or AMD with ROCm", "npu": "Ascend", "mps": "Apple"}
LAYOUTS = {
    "fsdp": ("one model, split over all ranks", "{fsdp_size: auto}"),
    "dp": ("a copy on each rank, gradients averaged (DDP)", "{dp_size: auto}"),
    "hsdp": ("two copies, each split over half of the ranks", "{dp_size: 2, fsdp_size: auto}"),
}
"""Layout -> (description, its `parallel`)."""
MAX_RANKS = 100_000
SAMPLES = {"train": 256, "grpo": 64, "distill": 256}
"""Kind -> minimum number of samples of a batch."""
MAX_EVEN_SAMPLES = 4096
"""Maximum number of samples that is chosen to give all ranks of all groups equal shares."""
COMMANDS = ("validate", "show-topology", "launch")


class WrongChoice(ValueError):
    """Choices from which no recipe can be generated. The message names valid ones."""


@dataclass(frozen=True)
class Choice:
    kind: str = "train"
    device: str = "cpu"
    ranks: int = 2
    """Number of devices, or on cpu of processes, of all groups. A judge is one more process on cpu."""
    layout: str = ""
    """Layout of the group that trains; empty for the default."""
    script: str = ""
    """Path of the user's script, relative to the recipe's folder; empty for one that `init` writes."""

    @property
    def shares(self) -> dict[str, int]:
        """The number of ranks of each group."""
        half = max(1, self.ranks // 2)
        if self.kind == "distill_on_policy":
            quarter = max(1, self.ranks // 4)
            return {"rollout": quarter, "teacher": quarter, "train": max(1, self.ranks - 2 * quarter)}
        if self.kind in ("grpo", *ROLLOUTS):
            return {"rollout": half, "train": max(1, self.ranks - half)}
        if self.kind == "distill":
            return {"teacher": half, "student": max(1, self.ranks - half)}
        return {"train": self.ranks}

    @property
    def trained(self) -> int:
        """The number of ranks of the group that trains."""
        return list(self.shares.values())[-1]

    @property
    def has_judge(self) -> bool:
        return self.kind in {"grpo", *ROLLOUTS} - {*FREE}

    @property
    def workers(self) -> int:
        return sum(self.shares.values()) + self.has_judge


def check(choice: Choice) -> None:
    """Raises `WrongChoice` if no recipe can be generated from the choices."""
    _known("kind", choice.kind, KINDS)
    _known("device", choice.device, DEVICES)
    if not 1 <= choice.ranks <= MAX_RANKS:
        raise WrongChoice(f"the number of ranks must be from 1 to {MAX_RANKS:,}, not {choice.ranks:,}")
    if choice.kind in RECIPES and choice.ranks > MAX_RECIPE_RANKS:
        raise WrongChoice(f"{choice.kind} has held-out data for at most {MAX_RECIPE_RANKS} ranks")
    if choice.device == "mps" and choice.ranks > 1:
        raise WrongChoice(f"a machine has one mps device, not {choice.ranks}")
    is_shared = choice.device != "cpu" and choice.kind not in FREE
    if not is_shared and choice.ranks < len(choice.shares):
        raise WrongChoice(
            f"{choice.kind} has the groups {listed(choice.shares)}: on {choice.device} it needs at least "
            f"{len(choice.shares)} ranks"
        )
    if choice.layout and choice.kind == "script":
        raise WrongChoice("a script has a layout of its own: do not give one")
    if choice.script and choice.kind != "script":
        raise WrongChoice(f"a script is only for the kind `script`, not {choice.kind}")
    if choice.layout:
        _known("layout", choice.layout, LAYOUTS)
        if choice.layout not in layouts(choice):
            group, ranks = list(choice.shares)[-1], counted(choice.trained, "rank")
            raise WrongChoice(
                f"{choice.layout} does not fit the {ranks} of `{group}` on {choice.device}; "
                f"available: {listed(layouts(choice))}"
            )


def _known(what: str, word: str, options: Mapping[str, object]) -> None:
    if word not in options:
        raise WrongChoice(f"{what} `{word}` does not exist; available: {listed(options)}")


def layouts(choice: Choice) -> list[str]:
    """Returns the layouts that fit the number of ranks. The first is the default."""
    if choice.device == "mps" or choice.trained == 1:
        return ["dp"]
    return [name for name in LAYOUTS if name != "hsdp" or choice.trained % 2 == 0]


def stem_of(name: str) -> str:
    """Returns the name of a recipe without its suffix. Raises `WrongChoice` if it is not a valid name of a
    run."""
    stem = re.sub(r"\.ya?ml$", "", name)
    if re.fullmatch(r"\w[\w.-]*", stem) and len(stem.encode()) <= 100:
        return stem
    shown = name if name.isprintable() else ascii(name)
    near = re.sub(r"[^\w.-]+", "-", stem).strip("-.")[:40]
    raise WrongChoice(
        f"`{shown[:60]}` is not a valid name of a run: use letters, digits, `-`, `_` and `.`"
        + (f", like `{near}`" if near else "")
    )


def module_of(stem: str, taken: Iterable[str] = ()) -> str:
    """Returns a module name for a recipe's Python file. The module must not hide another one, because the
    recipe's folder is first on the import path."""
    name = re.sub(r"[^0-9A-Za-z_]", "_", stem)
    name = f"job_{name}" if not name[0].isalpha() else name
    hides = keyword.iskeyword(name) or name in sys.stdlib_module_names or name in set(taken)
    return f"{name}_job" if hides else name


def installed(name: str, path: Iterable[str]) -> bool:
    """Returns whether a module of this name is on the path. Imports nothing."""
    return name == "meshctl" or PathFinder.find_spec(name, list(path)) is not None


def files(choice: Choice, stem: str, module: str, shown: str, heading: str = "") -> dict[str, str]:
    """Returns file name -> text. `shown` is the recipe's path, quoted for a shell. `heading` is the first
    line of the recipe."""
    check(choice)
    if choice.kind in RECIPES:
        return _recipe_files(choice, stem, module, shown, heading)
    words = _words(choice, stem, module, shown)
    text = re.sub(r"@([A-Z]+)@", lambda found: words[found[1]], _shipped(f"{choice.kind}.yaml"))
    found = {f"{stem}.yaml": heading + text}
    if not choice.script:
        found[f"{module}.py"] = _shipped(f"{choice.kind}.py")
    return found


def data(kind: str) -> dict[str, str]:
    """Returns file name -> text of the data of a kind."""
    return {name: _shipped_recipe(name) for name in RECIPES.get(kind, ())}


def _recipe_files(choice: Choice, stem: str, module: str, shown: str, heading: str) -> dict[str, str]:
    """Returns the recipe, and for devices that no shipped scale has, a scale with these."""
    recipe = NAMES.get(choice.kind, choice.kind)
    layout = choice.layout or layouts(choice)[0]
    words = {
        r"^#.*`make .*\n": "",  # a command of a checkout
        r"^name: .*$": f"name: {quoted(stem)}",
        r"(?<=layout@components\.trainer\.parallel: )fsdp$": layout,
    }
    scale = {}
    if choice.kind in ROLLOUTS or (choice.device, choice.ranks) != (RECIPE_DEVICE, RECIPE_RANKS):
        words[r"(?<=^  - scale: )laptop *"] = f"{module}_devices  "
        scale = {f"conf/scale/{module}_devices.yaml": _scale(choice)}
    if choice.kind in ROLLOUTS:
        scale[f"conf/{ROLLOUTS[choice.kind]}/{module}_devices.yaml"] = _rollouts(choice)
    if choice.kind == "grpo_vllm":
        words[r"(?<=^  - sampler: )hf  "] = "vllm"
    text = _shipped_recipe(f"{recipe}.yaml").replace(f"recipes/{recipe}.yaml", shown)
    for pattern, word in words.items():
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return {f"{stem}.yaml": heading + text, **scale}


def _scale(choice: Choice) -> str:
    group = _group(choice, "train", choice.trained)
    samples = max(RECIPE_SAMPLES, choice.ranks)
    more = f"vars: {{samples: {samples}}}\n" if samples > RECIPE_SAMPLES else ""
    return (
        "# @package _global_\n"
        "# The tiny model of the scale `laptop` on other devices. With `node8` in its place it is Qwen3-8B.\n"
        "defaults:\n  - laptop\n  - _self_\n\n"
        f"groups:\n  train: {group}\n{more}"
    )


def _rollouts(choice: Choice) -> str:
    python = VLLM_PYTHON if choice.kind == "grpo_vllm" else ""
    groups = [f"  rollout: {_group(choice, 'rollout', choice.shares['rollout'], python)}\n"]
    stages, teachers = "", choice.shares.get("teacher", 0)
    if teachers:
        groups.append(f"  teacher: {_group(choice, 'teacher', teachers)}\n")
    if teachers > TEACHER_SAMPLES:
        stages = f"pipeline: {{learn: {{stages: {{chats: {{samples: {teachers}}}}}}}}}\n"
    others = "groups that sample and teach" if teachers else "group that samples"
    return (
        "# @package _global_\n"
        f"# The {others}, on other devices than those of `laptop`.\n"
        "defaults:\n  - laptop\n  - _self_\n\n"
        f"groups:\n{''.join(groups)}{stages}"
    )


def _shipped(name: str) -> str:
    return (PACKAGE_DIR / "components" / "starters" / name).read_text(encoding="utf-8")


def _shipped_recipe(name: str) -> str:
    """Returns the text of a file of the folder `recipes/`, which a wheel has in the package, and a checkout
    beside it."""
    homes = (PACKAGE_DIR / "recipes", PACKAGE_DIR.parent / "recipes")
    file = next((home / name for home in homes if (home / name).is_file()), homes[0] / name)
    return file.read_text(encoding="utf-8")


def _words(choice: Choice, stem: str, module: str, shown: str) -> dict[str, str]:
    groups = {name.upper(): _group(choice, name, ranks) for name, ranks in choice.shares.items()}
    if choice.kind == "script":
        program = choice.script or f"{module}.py"
        more = "" if choice.script else f", args: [--device, {choice.device}]"
        groups["TRAIN"] = f"{groups['TRAIN'][:-1]}, program: {quoted(program)}{more}}}"
    layout = choice.layout or layouts(choice)[0]
    return groups | {
        "NAME": quoted(stem),
        "MODULE": module,
        "FILE": shown,
        "COMMANDS": "\n".join(f"#   meshctl {command} {shown}" for command in COMMANDS),
        "WHERE": "processes on cpu" if choice.device == "cpu" else f"{choice.device} devices",
        "LAYOUT": f", parallel: {LAYOUTS[layout][1]}" if choice.trained > 1 else "",
        "SAMPLES": str(_samples(choice)),
    }


def _group(choice: Choice, name: str, ranks: int, python: str = "") -> str:
    """Returns a group as a YAML mapping. If two groups use one device, the second is colocated with the
    first."""
    first = next(iter(choice.shares))
    shared = f", colocate: {first}" if name != first and sum(choice.shares.values()) > choice.ranks else ""
    interpreter = f", python: {python}" if python else ""
    return f"{{ranks: {ranks}, device_type: {choice.device}{shared}{interpreter}}}"


def _samples(choice: Choice) -> int:
    """Returns a number of samples that gives every rank at least one sample, and if possible the same
    number."""
    least = SAMPLES.get(choice.kind, 0)
    each = lcm(*choice.shares.values())
    each = each if each <= MAX_EVEN_SAMPLES else max(choice.shares.values())
    return -(-least // each) * each


def quoted(text: str) -> str:
    """Returns a text as a YAML scalar, with quotes only if it would otherwise not be read as this text."""
    bare = re.fullmatch(r"[A-Za-z_./][\w./-]*", text, re.ASCII) and re.search(r"[A-Za-z]", text)
    words = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
    if bare and text.lower() not in words and not text.lower().startswith((".inf", ".nan")):
        return text
    return json.dumps(text, ensure_ascii=False)
