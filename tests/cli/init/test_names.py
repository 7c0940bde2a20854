"""`meshctl init`: names of recipes, and texts in YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.cli.init import Options, init
from meshctl.cli.load import plan_of
from meshctl.recipe.templates import (
    WrongChoice,
    module_of,
    quoted,
    stem_of,
)
from tests.cli.init.initialized import names, validated

# Names


@pytest.mark.parametrize(
    ("name", "recipe", "module"),
    [
        ("first.yaml", "first.yaml", "first"),
        ("grpo.v2", "grpo.v2.yaml", "grpo_v2"),
        ("a-b", "a-b.yaml", "a_b"),
        ("7b", "7b.yaml", "job_7b"),
        ("torch", "torch.yaml", "torch_job"),
        ("meshctl", "meshctl.yaml", "meshctl_job"),
        ("random", "random.yaml", "random_job"),
        ("class", "class.yaml", "class_job"),
        ("größe", "größe.yaml", "gr__e"),
        ("no", "no.yaml", "no"),
        ("1e3", "1e3.yaml", "job_1e3"),
        ("it's here/x", "it's here/x.yaml", "x"),
        ("./x", "x.yaml", "x"),
        ("x/", "x/train.yaml", "train"),
        ("there", "there/train.yaml", "train"),
        (".", "train.yaml", "train"),
    ],
)
def test_names(name: str, recipe: str, module: str, here: Path) -> None:
    (here / "there").mkdir()
    assert init(name, Options("train")) == 0
    target = here / recipe
    assert names(here) - {str(Path(recipe).parent / "recipe.schema.json")} == {
        recipe,
        str(Path(recipe).with_name(f"{module}.py")),
    }
    validated(str(target))
    plan = plan_of(str(target), []).plan
    assert plan.name == target.stem and plan.component("trainer").target == f"{module}.Trainer"


def test_a_package_of_the_same_name_does_not_hide_its_classes(here: Path) -> None:
    (here / "first").mkdir()
    (here / "first" / "__init__.py").touch()
    assert init("./first.yaml", Options("train")) == 0
    assert plan_of("first.yaml", []).plan.component("trainer").target == "first_job.Trainer"


@pytest.mark.parametrize(
    "name",
    ["a b", "-x", "a\nb", "a=b", "~x", "x" * 300, "a\0b", "\x1b[31m", "..yaml", "*", "+a", "@", "a:b", "'"],
)
def test_odd_names_are_answered(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(name, Options()) == 2
    output, wrong = capsys.readouterr()
    assert output == "" and wrong.startswith("error: ") and wrong.count("\n") == 1 and "\x1b" not in wrong
    assert names(here) == set()


def test_a_name_is_proposed() -> None:
    with pytest.raises(WrongChoice, match=r"is not a valid name of a run: .*, like `my-run-1`"):
        stem_of("my run, 1!")
    assert module_of("a.b", ["a_b"]) == "a_b_job"


ODD_TEXTS = [
    "no",
    "On",
    "1",
    "1e3",
    "a b",
    'a"b',
    "a\\b",
    "a\tb",
    "null",
    "~",
    "",
    "a: b",
    "#a",
    ".inf",
    "é",
    "12:30",
    "-",
    "0x1f",
    "./-x",
]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_text_stays_text_in_yaml(text: str) -> None:
    import yaml

    assert yaml.safe_load(f"[{quoted(text)}]") == [text]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (
            Options("grop"),
            "kind `grop` does not exist; available: `train`, `grpo`, `distill`, `script`, `sft`, `sft_lora`, `dpo`, `reward_model`, `grpo_hf`, `grpo_vllm`, `ppo` and `distill_on_policy`",
        ),
        (Options("sft", ranks=101), "sft has held-out data for at most 100 ranks"),
        (Options(device="tpu"), "device `tpu` does not exist; available: `cpu`, `cuda`, `npu` and `mps`"),
        (Options(ranks=0), "the number of ranks must be from 1 to 100,000, not 0"),
        (Options(layout="tp"), "layout `tp` does not exist; available: `fsdp`, `dp` and `hsdp`"),
        (
            Options("grpo", ranks=1),
            "grpo has the groups `rollout` and `train`: on cpu it needs at least 2 ranks",
        ),
        (
            Options("distill_on_policy", ranks=2),
            "distill_on_policy has the groups `rollout`, `teacher` and `train`: on cpu it needs at least 3 ranks",
        ),
        (
            Options("grpo", ranks=2, layout="fsdp"),
            "fsdp does not fit the 1 rank of `train` on cpu; available: `dp`",
        ),
        (
            Options("train", ranks=3, layout="hsdp"),
            "hsdp does not fit the 3 ranks of `train` on cpu; available: `fsdp` and `dp`",
        ),
        (Options(device="mps", ranks=2), "a machine has one mps device, not 2"),
        (Options("script", layout="dp"), "a script has a layout of its own: do not give one"),
        (Options("train", script="x.py"), "a script is only for the kind `script`, not train"),
        (Options(script="none.py"), "script `none.py` does not exist"),
        (Options(script="a\0b"), "script `a?b` does not exist"),
    ],
)
def test_choices_that_make_no_recipe(
    asked: Options, why: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("first", asked) == 2
    assert capsys.readouterr() == ("", f"error: {why}\n")
    assert names(here) == set()
