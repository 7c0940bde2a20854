"""The rule about the options of a loss and of its advantage."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.diagnostics import Diagnostic
from meshctl.text.english import listed
from tests.recipe.rules import facts

RECIPE = """
groups: {{train: {{ranks: 1, device_type: cpu}}}}
components:
  chats: {{_target_: meshctl.data.Chat, group: train, args: {{path: rows.jsonl, tokenizer: byte}}}}
  actor: {{_target_: meshctl.hf.Model, group: train, args: {{model: {{model_type: llama}}, {args}}}}}
pipeline:
  batch: {{call: chats.next, samples: 4}}
  metrics: {{call: actor.update, in: batch}}
"""
MINE = """
from functools import partial
from typing import Literal
Kind = Literal["a", "b"]
def own(logprobs, mask, scale, *, weight: float = 1.0, names=(), kind: Kind = "a"): ...
bound = partial(own, scale=2.0)
def free(logprobs, **more): ...
"""
WHITENED = "advantage: whitened, advantage_options: {group: 1}"


def reported(folder: Path, args: str) -> list[Diagnostic]:
    (folder / "rows.jsonl").write_text('{"messages": []}\n')
    return facts.reported(folder, RECIPE.format(args=args), ["MC465", "MC508"], mine=MINE)


@pytest.mark.parametrize(
    ("args", "message", "help"),
    [
        ("loss: grpo, loss_options: {aggregation: tokens}", "`aggregation` of loss `grpo` must be", "did you mean `token`?"),
        ("loss: rloo, loss_options: {kl_estimator: k4}", "`kl_estimator` of loss `rloo` must be `k1`", ""),
        ("loss: value, loss_options: {aggregation: group}", "`aggregation` of loss `value` must be", ""),
        ("loss: grpo, loss_options: {clip: wide}", "`clip` of loss `grpo` must be a number", ""),
        ("loss: grpo, advantage: gae, advantage_options: {kl_estimator: k}", "`kl_estimator` of advantage `gae`", ""),
        ("loss: mine.own, loss_options: {kind: c}", "`kind` of loss `mine.own` must be `a` or `b`", ""),
        ("loss: mine.bound, loss_options: {weight: much}", "`weight` of loss `mine.bound` must be a number", ""),
        ("loss: grpo, loss_options: {kll: 0.1}", "loss `grpo` of `actor` has no option `kll`", "did you mean `kl`?"),
        ("loss: cross_entropy, loss_options: {kl: 1}", "loss `cross_entropy` of `actor` has no option `kl`", ""),
        ("loss: mine.own, loss_options: {wieght: 1}", "loss `mine.own` of `actor` has no option `wieght`", "did you mean `weight`?"),
        ("loss: mine.own, loss_options: {scale: 1}", "loss `mine.own` of `actor` has no option `scale`", "available: "),
        ("loss: grpo, advantage_options: {epz: 1}", "advantage `grpo` of `actor` has no option `epz`", "did you mean `eps`?"),
        (f"loss: grpo, {WHITENED}", "advantage `whitened` of `actor` has no option `group`", ""),
        ("loss: grpo", "", ""),
        ("loss: dapo, loss_options: {kl: 0.1, clip_high: 0.3}", "", ""),
        ("loss: mine.own, loss_options: {weight: 2, names: [a], kind: b}", "", ""),
        ("loss: mine.bound, loss_options: {scale: 3.0}", "", ""),
        ("loss: mine.free, loss_options: {}", "", ""),
        ("loss: grpo, loss_options: null", "", ""),
    ],
)  # fmt: skip
def test_options(tmp_path: Path, args: str, message: str, help: str) -> None:
    found = reported(tmp_path, args)
    assert len(found) == bool(message), found
    for one in found:
        assert (one.code, one.severity) == ("MC465" if "has no option" in message else "MC508", "error")
        assert one.message.startswith(message) and one.help.startswith(help) and facts.lines(one)[0] == 5


def test_the_rule_agrees_with_the_losses(tmp_path: Path) -> None:
    """The rule and `find` reject an option for the same reason."""
    from meshctl.losses import LossError, advantages, find
    from meshctl.losses.loss import LOSSES

    for name in LOSSES:
        (one,) = reported(tmp_path, f"loss: {name}, loss_options: {{nothing: 1}}")
        match = f"`{name}` has no option `nothing`; its options, .* are (.*)"
        with pytest.raises(LossError, match=match) as found:
            find(name, nothing=1)
        options = str(found.value).rpartition(" are ")[2]
        names = [] if options == "none" else options.split(", ")
        if 0 < len(names) <= 3:
            assert one.help == f"available: {listed(names)}"
        assert bool(names) == (one.help != "it has no options")
    assert advantages.find("grpo", eps=1e-4)
