"""The libraries, models and tokenizers that a node must have, as the classes of its components declare."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshctl import package
from meshctl.engines.checks import models
from meshctl.engines.checks.models import Download, check_libraries, downloads
from meshctl.engines.engine import CannotStart
from meshctl.package import installed_version
from meshctl.plan.model import Plan
from meshctl.plan.resolve import resolve
from meshctl.recipe.load import load
from tests.environments import OURS, environment

CODE = """
from meshctl import Component, endpoint
from meshctl.hf import Model
class Mine(Model): ...
class Plain(Component):
    MODEL = "args.model"
    def __init__(self, model, rows=""): ...
    @endpoint
    def go(self, batch): ...
"""


ONE_CPU = "{ranks: 1, device_type: cpu}"


def plan_of(folder: Path, actor: str, tokenizer: str = "byte", other: str = ONE_CPU) -> Plan:
    (folder / "mine.py").write_text(CODE)
    (folder / "texts.jsonl").write_text('{"text": "a"}\n')
    (folder / "recipe.yaml").write_text(
        f"groups: {{train: {{ranks: 2, device_type: cpu}}, other: {other}}}\n"
        "components:\n"
        "  texts: {_target_: meshctl.data.Text, group: train, args: {path: texts.jsonl, "
        f"tokenizer: '{tokenizer}'}}}}\n"
        f"  actor: {actor}\n"
        "pipeline: {batch: {call: texts.next, samples: 2}}\n"
    )
    loaded = load("recipe.yaml", [], folder, environ={})
    assert not loaded.report.errors, loaded.report.errors
    return resolve(loaded.recipe, loaded.endpoints)


def actor(model: str, target: str = "meshctl.hf.Model") -> str:
    return f"{{_target_: {target}, group: other, args: {{model: {model}}}}}"


def wanted(folder: Path, plan: Plan, **environ: str) -> tuple[Download, ...]:
    return downloads(plan, (str(folder),), {"HF_HOME": str(folder / "home"), **environ})


def snapshot(folder: Path, name: str, *files: str) -> Path:
    place = folder / "home" / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "abc"
    place.mkdir(parents=True)
    for file in files:
        (place / file).write_text("{}")
    return place


def test_names_of_the_hub_are_downloaded_once(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, actor("some/name"), "some/name")
    assert wanted(tmp_path, plan) == (Download("some/name", "actor", "model"),)
    plan = plan_of(tmp_path, actor("some/name", "mine.Plain"))
    assert wanted(tmp_path, plan) == (Download("some/name", "actor", "model"),), "a class without an extra"
    plan = plan_of(tmp_path, actor("some/name", "mine.Mine"), "other/name")
    assert [(one.name, one.kind) for one in wanted(tmp_path, plan)] == [
        ("other/name", "tokenizer"),
        ("some/name", "model"),
    ]
    assert [one.name for one in downloads(plan, (str(tmp_path),), {}, ["train"])] == ["other/name"]


def test_what_is_on_this_machine_is_not_downloaded(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    for file in ("config.json", "tokenizer.json"):
        (tmp_path / "llama" / file).write_text("{}")
    assert wanted(tmp_path, plan_of(tmp_path, actor("llama"), "llama")) == ()
    assert wanted(tmp_path, plan_of(tmp_path, actor("{model_type: llama}"))) == ()
    snapshot(tmp_path, "some/name", "config.json", "tokenizer.json", "model.safetensors")
    plan = plan_of(tmp_path, actor("some/name"), "some/name")
    assert wanted(tmp_path, plan, HF_HUB_OFFLINE="1") == ()
    (tmp_path / "some" / "rows").mkdir(parents=True)
    (tmp_path / "some" / "rows" / "a.jsonl").write_text('{"text": "a"}\n')
    for path in ("some/rows", "some/rows/*.jsonl", "texts.jsonl"):
        assert wanted(tmp_path, plan_of(tmp_path, texts(path)), HF_HUB_OFFLINE="1") == ()


def test_the_model_of_an_engine_alone_is_downloaded(tmp_path: Path) -> None:
    python = environment(tmp_path / "own", *OURS)
    plan = plan_of(
        tmp_path,
        "{_target_: meshctl.vllm.Sampler, group: other, args: {model: some/name, max_new_tokens: 4}}",
        other=f"{{ranks: 1, device_type: cpu, python: {python}}}",
    )
    assert wanted(tmp_path, plan) == (Download("some/name", "actor", "model", str(python)),)


def texts(path: str, target: str = "meshctl.data.Text") -> str:
    return f"{{_target_: {target}, group: other, args: {{path: {path}, tokenizer: byte}}}}"


def test_a_dataset_of_the_hub_is_downloaded_unless_it_is_streamed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, texts("some/moreRows"))
    expected = Download("some/moreRows", "actor", "dataset")
    assert wanted(tmp_path, plan) == (expected,)
    assert wanted(tmp_path, plan_of(tmp_path, texts("some/moreRows", "meshctl.data.TextStream"))) == ()
    own = "{_target_: mine.Plain, group: other, args: {model: {model_type: llama}, rows: some/moreRows}}"
    assert wanted(tmp_path, plan_of(tmp_path, own)) == ()
    with pytest.raises(
        CannotStart, match=r"^dataset `some/moreRows` of `actor` is not in the cache of datas"
    ):
        wanted(tmp_path, plan, HF_DATASETS_OFFLINE="1")
    stored = tmp_path / "home" / "datasets" / "some___more_rows" / "default" / "0.0.0"
    for folder, expected_here in (("abc.incomplete", (expected,)), ("abc", ())):
        (stored / folder).mkdir(parents=True)
        (stored / folder / "dataset_info.json").write_text("{}")
        assert wanted(tmp_path, plan, HF_HUB_OFFLINE="0") == expected_here
    assert wanted(tmp_path, plan, HF_HUB_OFFLINE="1") == ()


def test_a_snapshot_without_all_weights_is_downloaded(tmp_path: Path) -> None:
    place = snapshot(tmp_path, "some/name", "config.json")
    plan = plan_of(tmp_path, actor("some/name"))
    assert len(wanted(tmp_path, plan)) == 1
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    (place / "one.safetensors").write_text("")
    assert len(wanted(tmp_path, plan)) == 1
    (place / "two.safetensors").write_text("")
    assert wanted(tmp_path, plan) == ()


def test_offline_a_missing_model_is_refused_with_its_cache(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, actor("some/name"))
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        with pytest.raises(CannotStart) as refused:
            wanted(tmp_path, plan, **{variable: "1"})
        text = str(refused.value)
        assert text.startswith("model `some/name` of `actor` is not in the cache of the hub, ")
        assert str(tmp_path / "home" / "hub") in text and "`hf download some/name`" in text
        assert f"unset {variable}," in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./absent", "model `./absent` of `actor` does not exist: "),
        ("empty", "model `empty` of `actor`: the folder has none of config.json"),
    ],
)
def test_a_model_that_does_not_exist_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CannotStart, match="^" + message):
        wanted(tmp_path, plan_of(tmp_path, actor(name)))


def test_a_missing_extra_and_one_that_is_too_old_are_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, actor("{model_type: llama}", "mine.Mine"))
    check_libraries(plan, (str(tmp_path),))
    install = re.escape(package.install_command("hf"))
    with monkeypatch.context() as patch:
        patch.setattr(models, "missing_libraries", lambda extra: ("transformers", "peft"))
        with pytest.raises(
            CannotStart, match=f"^texts needs transformers, peft, .* not installed: {install}$"
        ):
            check_libraries(plan, (str(tmp_path),))
    older = {"transformers": "5.17.0", "peft": "99.0"}
    monkeypatch.setattr(
        package, "installed_version", lambda name, path=None: older.get(name) or installed_version(name, path)
    )
    needs = rf"^texts needs transformers [<>=.,\d]+ \(version 5\.17\.0 is installed\): {install}$"
    with pytest.raises(CannotStart, match=needs):
        check_libraries(plan, (str(tmp_path),))


def test_a_function_that_an_argument_names_needs_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "{_target_: meshctl.rewards.Function, group: other, args: {function: %s}}"
    monkeypatch.setattr(models, "missing_libraries", lambda extra: ("math-verify",) * (extra == "rewards"))
    check_libraries(plan_of(tmp_path, target % "format"), (str(tmp_path),))
    needs = (
        f"^actor needs math-verify, which is not installed: {re.escape(package.install_command('rewards'))}$"
    )
    with pytest.raises(CannotStart, match=needs):
        check_libraries(plan_of(tmp_path, target % "math"), (str(tmp_path),))
