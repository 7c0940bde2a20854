"""The ready-made reward functions."""

from __future__ import annotations

from multiprocessing import Pipe
from typing import Any

import pytest

from meshctl.rewards.functions import FUNCTIONS, Choice, Scorer
from meshctl.rewards.texts import exact_match, length
from meshctl.rewards.texts import format as of_format
from meshctl.runtime.child_process import MessageError


@pytest.mark.parametrize(
    ("response", "solution", "options", "reward"),
    [
        (" 42\n", "42", {}, 1),
        ("42", 42, {}, 1),
        ("the 42", "42", {}, 0),
        ("Paris", "paris", {}, 0),
        ("Paris", "paris", {"ignore_case": True}, 1),
        ("7 #### 41 #### 42", "42", {"pattern": r"#### (\d+)"}, 1),
        ("so 41, no: 42.", "42", {"pattern": r"\d+"}, 1),
        ("none", "42", {"pattern": r"\d+"}, 0),
        ("x", "", {"pattern": "x(y)?"}, 1),
    ],
)
def test_exact_match(response: str, solution: object, options: dict[str, Any], reward: float) -> None:
    assert exact_match(response, solution, **options) == reward


@pytest.mark.parametrize(
    ("response", "options", "reward"),
    [
        ("<think>a\nb</think>\n<answer>c</answer>", {}, 1),
        (" <think></think><answer></answer> ", {}, 1),
        ("<answer>c</answer><think>a</think>", {}, 0),
        ("<think>a</think> so <answer>c</answer>", {}, 0),
        ("<think>a</think><answer>c</answer><answer>d</answer>", {}, 0),
        ("<think>a<think>b</think></think><answer>c</answer>", {}, 0),
        ("<a.b>c</a.b>", {"tags": ["a.b"]}, 1),
        ("<axb>c</axb>", {"tags": ["a.b"]}, 0),
        ("a\nb", {"pattern": "a.b"}, 1),
        ("a\nbc", {"pattern": "a.b"}, 0),
    ],
)
def test_format(response: str, options: dict[str, Any], reward: float) -> None:
    assert of_format(response, **options) == reward


@pytest.mark.parametrize(
    ("tokens", "options", "reward"),
    [
        (10, {"max_tokens": 10}, 0),
        (11, {"max_tokens": 10}, -1),
        (6, {"max_tokens": 10, "buffer_tokens": 4}, 0),
        (8, {"max_tokens": 10, "buffer_tokens": 4}, -0.5),
        (10, {"max_tokens": 10, "buffer_tokens": 4}, -1),
        (11, {"max_tokens": 10, "buffer_tokens": 4}, -1),
        (0, {"max_tokens": 10, "min_tokens": 4}, -1),
        (3, {"max_tokens": 10, "min_tokens": 4}, -0.25),
        (4, {"max_tokens": 10, "min_tokens": 4}, 0),
    ],
)
def test_length_counts_the_labels_of_the_answer(tokens: int, options: dict[str, Any], reward: float) -> None:
    assert length([-100, -100, *range(tokens)], **options) == reward


@pytest.mark.parametrize(
    ("response", "solution", "reward"),
    [
        ("so the answer is \\boxed{\\frac{1}{2}}", "0.5", 1),
        ("so the answer is $\\frac{2}{4}$", "\\boxed{\\frac12}", 1),
        ("it is 42.", 42, 1),
        ("it is 41.", "42", 0),
        ("$1 + x^2$", "x^2 + 1", 1),
        ("$\\{2, 1\\}$", "\\{1,2\\}", 1),
        ("I do not know", "42", 0),
        ("", "42", 0),
    ],
)
def test_math(response: str, solution: object, reward: float) -> None:
    pytest.importorskip("math_verify")
    scorer = Scorer([Choice("math")])
    assert scorer.score({"response": response, "solution": solution}).reward == reward


def test_a_solution_without_a_formula_is_a_failure() -> None:
    pytest.importorskip("math_verify")
    failure = Scorer([Choice("math")]).score({"response": "1", "solution": ""}).failure
    assert failure.startswith("`math` raised ValueError: no formula is found in the solution '' (math.py:")


def test_reasoning_gym_uses_the_verifier_of_the_task() -> None:
    library = pytest.importorskip("reasoning_gym")
    entry = library.create_dataset("chain_sum", seed=1, size=1)[0]
    plain, tagged = Scorer([Choice("reasoning_gym")]), Scorer([Choice("reasoning_gym", 1, {"tag": "answer"})])
    right = f" {entry['answer']}\n"
    assert plain.score({"response": right, "entry": entry}).reward == 1
    assert plain.score({"response": "x", "entry": entry}).reward == 0
    assert tagged.score({"response": f"so <answer>{right}</answer>", "entry": entry}).reward == 1
    assert tagged.score({"response": right, "entry": entry}).reward == 0


def test_a_verifier_knows_the_options_of_the_task() -> None:
    pytest.importorskip("reasoning_gym")
    entry: dict[str, Any] = {"question": "", "answer": "50 days"}
    entry["metadata"] = {"source_dataset": "time_intervals", "task_type": "date"}
    days = [{"max_date_difference_days": most} for most in (100, 1000)]
    scorer = Scorer([Choice("reasoning_gym")])
    scores = [scorer.score({"response": "40", "entry": {**entry, "options": one}}) for one in days]
    assert [one.reward for one in scores] == pytest.approx([0.9, 0.99])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_missing_library_is_named_with_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from meshctl.rewards.functions import FunctionError

    if name not in ("math", "reasoning_gym"):
        assert Scorer([Choice(name, 1, {"max_tokens": 9} if name == "length" else {})]).required[0]
        return
    library = {"math": "math_verify"}.get(name, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"meshctl.rewards.{name}", raising=False)
    with pytest.raises(FunctionError, match=rf"^function `{name}`: {library} is not installed: pip install"):
        Scorer([Choice(name)])


def test_only_plain_data_is_sent_to_a_process() -> None:
    from meshctl.runtime.child_process import receive, send

    one, other = Pipe()
    with one, other:
        value = {"a": [(1, (2,)), None, True, 1.5, b"x", -(2**90)], 3: "é"}
        send(one, value)
        assert receive(other) == value
        with pytest.raises(MessageError, match="a set is not plain data"):
            send(one, {1})
        one.close()
        with pytest.raises(EOFError):
            receive(other)
