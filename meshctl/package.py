"""The folder in which this package is installed."""

from __future__ import annotations

from pathlib import Path

PACKAGE_DIR = Path(__file__).parent
