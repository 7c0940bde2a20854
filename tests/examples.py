"""How many examples hypothesis tries where each of them costs milliseconds."""

from __future__ import annotations

from hypothesis import settings


def examples(few: int, many: int) -> int:
    """Returns `few` in `make test`, and `many` under `--hypothesis-profile=nightly`."""
    return many if settings.get_current_profile_name() == "nightly" else few
