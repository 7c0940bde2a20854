"""The file that says which state differs between ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.run.checkpoints import VaryingState
from meshctl.topology.mesh import DeviceMesh

MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
STATE = VaryingState.of(MESH, ("dp", "tp"), {"noise": ("tp",), "position": ("dp", "tp")})


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    STATE.write(tmp_path)
    assert VaryingState.read(tmp_path) == STATE
    assert VaryingState.read(tmp_path / "nowhere") == VaryingState()
    VaryingState.of(MESH, (), {}).write(tmp_path)
    assert VaryingState.read(tmp_path) == VaryingState() and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"mesh": {}, "document": [], "values": {"a": 1}}',
        '{"mesh": {"dp": "x"}, "document": [], "values": {}}',
        '{"mesh": {"dp": 2}, "document": ["tp"], "values": {}}',
        '{"mesh": {"dp": 2}, "document": [], "values": {"a": [["dp"]]}}',
    ],
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "by_rank.json").write_text(text)
    with pytest.raises(ValueError, match=r"by_rank\.json is damaged"):
        VaryingState.read(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"dp_size": 2, "tp_size": 2}, ""),
        ({"dp_size": 2, "tp_size": 2, "pp_size": 3}, ""),
        (
            {"dp_size": 4, "tp_size": 2},
            "with dp 2 and cannot be loaded with dp 4: `position` differs along `dp` and `tp`",
        ),
        (
            {"dp_size": 2, "tp_size": 1},
            "with tp 2 and cannot be loaded with tp 1: `noise` and `position` differ along `tp` and `dp`",
        ),
        (
            {"fsdp_size": 2},
            "with tp 2 x dp 2 and cannot be loaded with tp 1 x dp 1: `noise` and `position` differ along "
            "`tp` and `dp`",
        ),
        (
            {"dp_size": 2, "tp_size": 2, "ulysses_size": 2},
            "with ulysses 1 and cannot be loaded with ulysses 2: `position` differs along `dp` and `tp`",
        ),
        (
            {"dp_size": 2, "tp_size": 2, "ep_size": 2},
            "with ep 1 and cannot be loaded with ep 2: `noise` and `position` differ along `tp` and `dp`",
        ),
    ],
)
def test_changed_sizes_are_refused_where_a_value_differs_along_them(
    sizes: dict[str, int], reason: str
) -> None:
    found = STATE.refusal("actor", DeviceMesh.from_sizes(**sizes))
    assert found == (f"the state of `actor` was saved {reason}" if reason else "")


def test_documents_alone_may_differ_along_a_dim_that_changes() -> None:
    """They differ where a stage of a pipeline has keys that others do not have."""
    state = VaryingState.of(DeviceMesh.from_sizes(pp_size=2), ("pp",), {})
    assert state.refusal("actor", DeviceMesh.from_sizes()) == ""
    assert state.changed(state.document, DeviceMesh.from_sizes()) == {"pp": 2}
    assert state.changed(state.document, DeviceMesh.from_sizes(pp_size=2, vpp_size=2)) == {"vpp": 1}
