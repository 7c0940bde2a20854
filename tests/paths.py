"""Folders of the project that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "meshctl"
CONF = ROOT / "conf"
RECIPES = ROOT / "recipes"
RECIPE_GOLDEN = ROOT / "tests" / "recipe" / "golden"
LAUNCHED = ROOT / "tests" / "recipe" / "launched"
PLAN_GOLDEN = ROOT / "tests" / "plan" / "golden"
