"""The English of messages."""

import pytest

from meshctl.text.english import MAX_LETTERS, MAX_LISTED, counted, did_you_mean, listed, nearest


def test_counts_agree_with_their_noun() -> None:
    assert [counted(count, "rank") for count in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


@pytest.mark.parametrize(
    ("words", "text"), [("", ""), ("a", "`a`"), ("ab", "`a` and `b`"), ("abc", "`a`, `b` and `c`")]
)
def test_lists(words: str, text: str) -> None:
    assert listed(words) == text


def test_a_long_list_counts_the_rest() -> None:
    text = listed(map(str, range(MAX_LISTED + 3)))
    assert text.endswith(", `10` and 4 more") and text.count("`") == 2 * (MAX_LISTED - 1)


def test_the_nearest_word_is_proposed_and_else_all_of_them() -> None:
    assert did_you_mean("TRIAN", ["train", "rollout"]) == "did you mean `train`?"
    assert did_you_mean("x", ["train"]) == "available: `train`"
    assert did_you_mean("x", []) == "" == nearest("x", ["train"])


def test_a_word_that_is_too_long_is_compared_with_nothing() -> None:
    assert nearest("a" * (MAX_LETTERS + 1), ["a" * MAX_LETTERS]) == ""
