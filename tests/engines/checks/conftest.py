"""The checks of a machine."""

from __future__ import annotations

import pytest

from meshctl.engines.checks import (
    probe,
)
from tests.paths import ROOT


@pytest.fixture(autouse=True)
def found_by_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ROOT", str(ROOT))
