"""The recipes' own modules are found as a worker finds them: in the recipe's folder."""

import sys
from pathlib import Path

RECIPES = Path(__file__).parent.parent.parent / "recipes"
if str(RECIPES) not in sys.path:
    sys.path.insert(0, str(RECIPES))
