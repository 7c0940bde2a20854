"""How long a peer may stay that has not authenticated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshctl.network import strangers
from meshctl.network.strangers import CROWDED_S, STRANGER_S, overdue

NOW = 1000.0
SHORT, LONG = NOW - CROWDED_S / 2, NOW - CROWDED_S * 2


def peer(host: str, began: float) -> Any:
    return SimpleNamespace(connection=SimpleNamespace(peer_host=host), began=began)


@pytest.mark.parametrize(
    ("peers", "dropped"),
    [
        ([("a", LONG), ("a", LONG), ("b", LONG)], []),
        ([("a", NOW - STRANGER_S - 1), ("a", LONG)], [0]),
        ([("a", LONG), ("b", LONG), ("a", SHORT), ("a", LONG)], [0, 3]),
        ([("a", SHORT), ("a", SHORT), ("a", SHORT), ("b", LONG)], []),
    ],
    ids=["there is room", "it is late", "the host with most makes room", "none of it is late"],
)
def test_which_peers_are_dropped(
    peers: list[tuple[str, float]], dropped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "STRANGERS_MAX", 4)
    made = [peer(*one) for one in peers]
    found = [id(one) for one in overdue(made, NOW)]
    assert [number for number, one in enumerate(made) if id(one) in found] == dropped
