"""Files as keys with values and places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshctl.foreign.formula import Formula
from meshctl.foreign.model import Unreadable
from meshctl.foreign.source import read

SHELL = r"""#!/bin/bash
set -x
MODEL=Qwen/Qwen3-8B   # a comment
export GPUS=8
DIR="$HOME/data"
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    model.path="$MODEL" trainer.gpus=${GPUS} \
    'data.files=["a b","c"]' +a.b=1e-6 ~c.d= \
    data.dir=$DIR steps=$((2 * 3)) x.y=$(nproc)
trl sft --learning_rate 1e-5 --packing --bf16=true --lora-r 8 "$@"
"""


def test_a_shell_script_has_keys_places_and_what_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(SHELL)
    source = read([file])
    found = {one.key: one for one in source.given}
    values = {key: one.value for key, one in found.items() if not one.unknown}
    assert values == {
        **{"algorithm.adv_estimator": "grpo", "model.path": "Qwen/Qwen3-8B", "trainer.gpus": 8},
        **{"data.files": ["a b", "c"], "a.b": 1e-6, "c.d": None},
        **{"data.dir": "~/data", "steps": 6},
        **{"learning_rate": 1e-5, "packing": True, "bf16": True, "lora_r": 8},
    }
    assert {key: one.unknown for key, one in found.items() if one.unknown} == {"x.y": "$(nproc)"}
    assert (found["trainer.gpus"].span.line, found["trainer.gpus"].span.column) == (8, 38)
    assert {"verl.trainer.main_ppo", "trl", "sft"} <= {*source.words}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "a: {b: 1}\nc: [1, 2]\nd:\n  - e: x\n  - {e: y, f: 2}\n", {"a.b": (1, 1), "c": ([1, 2], 2), "d.0.e": ("x", 4), "d.1.e": ("y", 5), "d.1.f": (2, 5)}),
        ("a.toml", "[a]\nb = 1  # one\n[c.d]\n\"e\" = \"x\"\n", {"a.b": (1, 2), "c.d.e": ("x", 4)}),
        ("a.sh", "N=3; M=$N; A=${B:-\"${N}/x\"}; x h== e=$A g=$((2-2)) f=$(( (N + 2) * ${M} / 2 )); M=$N; x a=$M b='$N' c=\"$N$N\" d=a\\ b", {"a": (3, 1), "b": ("$N", 1), "c": (33, 1), "d": ("a b", 1), "e": ("3/x", 1), "f": (7, 1), "g": (0, 1), "h": ("=", 1)}),
        ("a.py", "from twinkle import DeviceGroup, TransformersModel\nN = 2\ng = [DeviceGroup(name='t', ranks=list(range(N)))]\nm = TransformersModel('x', remote_group='t')\nm.set_optimizer('SGD', lr=N * 2)\nprint(N)\n", {"TransformersModel.0": ("x", 4), "TransformersModel.remote_group.name": ("t", 3), "TransformersModel.remote_group.ranks": ([0, 1], 3), "TransformersModel.set_optimizer.0": ("SGD", 5), "TransformersModel.set_optimizer.lr": (4, 5)}),
    ],
)  # fmt: skip
def test_every_form_has_keys_and_lines(
    tmp_path: Path, name: str, text: str, expected: dict[str, Any]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert {one.key: (one.value, one.span.line) for one in read([file]).given} == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.yaml", None, "cannot be read: no such file"),
        ("a.yaml", b"a: [1", "`[` is not closed"),
        ("a.toml", b"a = ", "is not TOML"),
        ("a.py", b"def (", "is not Python"),
        ("a.sh", b"\xff\xfe", "is not UTF-8"),
        ("a.sh", b"x" * (1 << 21), "larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_message(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Unreadable) as error:
        read([file])
    assert message in error.value.diagnostic.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b * 2 + c", 9),
        ("a.b / 2", 2),
        ("a.b / 3", 4 / 3),
        ("'x' if c else 'y'", "x"),
        ("a.b % 3 == 0", False),
        ("missing * 2", None),
        ("missing or 3", None),
        ("given('missing') or 3", 3),
        ("key('d.0.e')", "z"),
        ("this in ['a', 'b'] and not false", True),
        ("{'rank': a.b}", {"rank": 4}),
        ("stem('x/y.z.py')", "y"),
        ("c / 0", None),
    ],
)
def test_a_formula(text: str, value: Any) -> None:
    assert Formula(text)({"a.b": 4, "c": 1, "d.0.e": "z", "this": "a"}) == value


def test_a_command_line_comes_before_files(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("x a.b=1")
    (tmp_path / "a.yaml").write_text("a: {b: 2, c: 3}")
    given = read([tmp_path / "a.sh", tmp_path / "a.yaml"]).given
    assert {one.key: one.value for one in given} == {"a.b": 1, "a.c": 3}


@pytest.mark.parametrize("text", ["__import__('os')", "a[0]", "lambda: 1", "(x := 1)", "open('f')", "1 +"])
def test_a_formula_executes_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="no formula"):
        Formula(text)({"a": 1})
    with pytest.raises(ValueError, match="no formula"):
        Formula(text)({})
