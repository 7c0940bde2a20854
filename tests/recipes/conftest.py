"""The recipes' own modules are found as a worker finds them: in the recipe's folder."""

import sys

from tests.paths import RECIPES as RECIPES

if str(RECIPES) not in sys.path:
    sys.path.insert(0, str(RECIPES))
