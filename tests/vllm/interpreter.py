"""The interpreter of `make vllm`, and the mark of the tests that need it."""

from __future__ import annotations

import pytest

from tests.paths import ROOT

BIN = ROOT / ".venv-vllm" / "bin"
needs_vllm = pytest.mark.skipif(
    not (BIN / "python").exists(), reason="the interpreter .venv-vllm is missing: `make vllm` sets it up"
)
