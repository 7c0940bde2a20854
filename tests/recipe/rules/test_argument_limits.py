"""The rules about ranges of arguments, about arguments that exclude or need each other, and about devices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from meshctl.diagnostics import Diagnostic
from tests.recipe.rules import facts

RECIPE = """
groups: {{work: {{{group}}}}}
vars: {{temperature: {temperature}}}
components:
  sampler: {{_target_: {target}, group: work, args: {{{args}}}}}
  other: {{_target_: mine.Free, group: work, args: {{temperature: "${{components.sampler.args.temperature}}"}}}}
  third: {{_target_: mine.Free, group: work, args: {{temperature: "${{vars.temperature}}"}}}}
pipeline: {{batch: {{call: third.next, samples: 4}}}}
"""
MINE = """
from meshctl import Batch, Component, endpoint
from meshctl.hf import Sampler
class Free(Component):
    def __init__(self, temperature: float) -> None: ...
    @endpoint
    def next(self, samples: range) -> Batch: ...
class Wrong(Component):
    RANGES = {"args.temperature": "> 0"}
    def __init__(self, temperature: float) -> None: ...
class Own(Sampler):
    def __init__(self, temperature: float, **more) -> None: ...
"""
CODES = ("MC444", "MC457", "MC458", "MC459", "MC462", "MC463")
LLAMA, MODEL = (
    "temperature: 1.0, model: {model_type: llama}",
    "model: {model_type: llama}, tokenizer: byte, max_new_tokens: 4",
)
FUNCTION = "meshctl.rewards.Function"


def reported(
    folder: Path,
    args: str,
    target: str = "meshctl.hf.Sampler",
    temperature: str = "1.0",
    group: str = "ranks: 1, device_type: cpu",
) -> list[Diagnostic]:
    recipe = RECIPE.format(args=args, target=target, temperature=temperature, group=group)
    found = facts.reported(folder, recipe, mine=MINE)
    return [one for one in found if one.code in CODES or re.search("RANGES|on_error", one.message)]


@pytest.mark.parametrize("engine", ["hf", "vllm"])
@pytest.mark.parametrize(
    ("given", "message", "help"),
    [
        ("max_new_tokens: -1", "`max_new_tokens` of `sampler` is -1; it must be at least 1", ""),
        ("group_size: 0", "`group_size` of `sampler` is 0; it must be at least 1", "leave it out for the default, 1"),
        ("top_p: 95", "`top_p` of `sampler` is 95; it must be above 0 and at most 1", "leave it out for the default, 1.0"),
        ("stop: [7, '']", "`stop` of `sampler` is an empty text", ""),
        ("stop: [-7, '.']", "`stop` of `sampler` is -7; it must be at least 0", ""),
    ],
)  # fmt: skip
def test_numbers_of_samplers(tmp_path: Path, engine: str, given: str, message: str, help: str) -> None:
    args = f"temperature: 1.0, {MODEL.replace('max_new_tokens: 4', given) if 'max' in given else f'{MODEL}, {given}'}"
    (one,) = reported(tmp_path, args, f"meshctl.{engine}.Sampler")
    assert (one.code, one.message, one.help) == ("MC457", message, help) and facts.lines(one)[0] == 5


def test_where_a_value_is_reported(tmp_path: Path) -> None:
    message = "`temperature` of `sampler` is -1; it must be at least 0"
    (one,) = reported(tmp_path, f"{MODEL}, temperature: -1")  # once, although other components refer to it
    assert (one.message, facts.lines(one)) == (message, [5])
    (one,) = reported(tmp_path, f'{MODEL}, temperature: "${{vars.temperature}}"', temperature="-1")
    assert (one.message, facts.lines(one)) == (message, [5, 3])
    # The limits of the base class hold for the arguments that the constructor of a subclass does not name.
    (one,) = reported(tmp_path, f"{MODEL}, temperature: -1, top_p: 3", "mine.Own")
    assert one.message == "`top_p` of `sampler` is 3; it must be above 0 and at most 1"
    for value in ("0.7", '"${oc.env:T,-1}"', "hot"):
        assert reported(tmp_path, f"{MODEL}, temperature: {value}") == []
    (one,) = reported(tmp_path, "temperature: 1", "mine.Wrong")
    assert "RANGES" in one.message and "type hints" in one.message  # a declaration that was withdrawn


def test_arguments_that_exclude_each_other(tmp_path: Path) -> None:
    args = f"{LLAMA}, micro_batch: 2, micro_batch_tokens: 64"
    (one,) = reported(tmp_path, args, "meshctl.hf.Model")
    assert (one.code, one.help) == ("MC458", "leave one of them out")
    assert one.message == "`micro_batch` and `micro_batch_tokens` of `sampler` exclude each other"
    assert reported(tmp_path, args.replace("micro_batch: 2", "micro_batch: null"), "meshctl.hf.Model") == []


OPTIONS = "`optimizer_options"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lr: 1e38", "`lr` of `sampler` is 1e+38; it must be above 0 and at most 1e6"),
        ("optimizer_options: {weight_decay: -1}", f"{OPTIONS}.weight_decay` of `sampler` is -1; it must be at least 0"),
        ("optimizer_options: {betas: [0.9, 1]}", f"{OPTIONS}.betas` of `sampler` is 1; it must be at least 0 and below 1"),
    ],
)  # fmt: skip
def test_numbers_of_optimizers(tmp_path: Path, given: str, message: str) -> None:
    """The constructor refuses them too, as they may come from the environment."""
    from meshctl.hf import Model
    from meshctl.hf.options import ModelError

    (one,) = reported(tmp_path, f"{LLAMA}, {given}", "meshctl.hf.Model")
    assert (one.code, one.message) == ("MC457", message)
    values = {"lr": 1e38} if "1e38" in given else yaml.safe_load(f"{{{given}}}")
    with pytest.raises(ModelError, match=re.escape(message.replace(" of `sampler`", ""))):
        Model("any", **values)


@pytest.mark.parametrize(
    ("target", "args", "code", "message", "help"),
    [
        (FUNCTION, "function: math, timeout_s: 5, workers: 0", "MC462", "`timeout_s` of `sampler` needs `workers`", "set `workers`, or leave out `timeout_s`"),
        (FUNCTION, "workers: 1", "MC462", "`sampler` needs `function` or `functions`", "set `function` or `functions`"),
        (FUNCTION, "function: math, on_error: dorp", "MC508", "`on_error` of `meshctl.rewards.Function` must be a number or `drop`, not the text `dorp`", "did you mean `drop`?"),
        (FUNCTION, "function: math, timeout_s: 5", "", "", ""),
        (FUNCTION, "functions: {math: 1}, timeout_s: null, workers: 0", "", "", ""),
        ("meshctl.data.Text", "path: rows.jsonl, tokenizer: byte, pack: true", "MC462", "`pack` of `sampler` needs `max_length`", "set `max_length`, or leave out `pack`"),
        ("meshctl.vllm.Sampler", f"{MODEL}, engine: {{max_model_len: 9, tokenizer: byte}}", "MC463", "`engine.tokenizer` of `sampler` follows from other arguments or from the mesh", "leave it out"),
        ("meshctl.hf.Sampler", "model: {model_type: llama}, max_new_tokens: 4", "MC444", "`sampler` has no tokenizer: its model is a mapping of config values", "add `tokenizer` to its args: `byte`, a folder, or a name of the hub"),
    ],
)  # fmt: skip
def test_arguments_that_need_others(
    tmp_path: Path, target: str, args: str, code: str, message: str, help: str
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    found = [one for one in reported(tmp_path, args, target) if "temperature" not in one.message]
    assert [(one.code, one.message, one.help) for one in found] == ([(code, message, help)] if code else [])


def test_the_devices_of_the_group_are_supported(tmp_path: Path) -> None:
    args, cuda = f"{MODEL}, temperature: 1.0, sleep: true", "ranks: 2, device_type: cuda"
    (one,) = reported(tmp_path, args, "meshctl.vllm.Sampler")
    assert (one.code, one.message) == (
        "MC459",
        "`sleep` of `sampler` needs cuda, and the devices of `work` are cpu",
    )
    (one,) = reported(tmp_path, args, "meshctl.vllm.Sampler", group=f"{cuda}, gpus_per_worker: 2")
    assert (one.code, facts.lines(one)) == ("MC459", [2, 5])
    assert one.message == "`sampler` uses 1 device in each worker; one of `work` has 2"
    assert reported(tmp_path, args, "meshctl.vllm.Sampler", group=cuda) == []
