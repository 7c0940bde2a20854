"""Fixtures for the tests of buffers."""

from __future__ import annotations

import pytest

from meshctl.runtime.transports.buffers import mapped_concat

MAPPED_MIN_BYTES = 1 << 16
"""Smallest concatenation that is mapped in these tests, so that small tensors are enough."""


@pytest.fixture(autouse=True)
def maps_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_concat, "MIN_BYTES", MAPPED_MIN_BYTES)
