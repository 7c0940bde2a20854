"""The file that says which state differs between ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.run.varying_state import VaryingState

STATE = VaryingState({"dp": 2, "tp": 2}, {"noise": {"tp": 2}, "position": {"dp": 2, "tp": 2}})


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    STATE.write(tmp_path)
    assert VaryingState.read(tmp_path) == STATE
    assert VaryingState.read(tmp_path / "nowhere") == VaryingState()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"document": {}, "values": {"a": 1}}', '{"document": {"dp": "x"}}']
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "by_rank.json").write_text(text)
    with pytest.raises(ValueError, match=r"by_rank\.json is damaged"):
        VaryingState.read(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"dp": 2, "tp": 2}, ""),
        ({"dp": 4, "tp": 2}, "with dp 2 and cannot be loaded with dp 4: `position` differs along `dp`"),
        (
            {"dp": 2, "tp": 1},
            "with tp 2 and cannot be loaded with tp 1: `noise` and `position` differ along `tp`",
        ),
        (
            {"dp": 1, "tp": 1},
            "with tp 2 x dp 2 and cannot be loaded with tp 1 x dp 1: `noise` and `position` differ along "
            "`tp` and `dp`",
        ),
    ],
)
def test_changed_sizes_are_refused_where_a_value_differs_along_them(
    sizes: dict[str, int], reason: str
) -> None:
    found = STATE.refusal("actor", sizes.__getitem__)
    assert found == (f"the state of `actor` was saved {reason}" if reason else "")


def test_documents_alone_may_differ_along_a_dim_that_changes() -> None:
    """They differ where a stage of a pipeline has keys that others do not have."""
    assert VaryingState({"pp": 2}).refusal("actor", {"pp": 1}.__getitem__) == ""
