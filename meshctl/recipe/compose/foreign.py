"""What Hydra and OmegaConf raise on a user's text; each place that calls them makes a diagnostic of it."""

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

FOREIGN = (HydraException, OmegaConfBaseException, ValueError, AssertionError)
