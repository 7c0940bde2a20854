"""The way in. A shell asks for completions at every Tab, and is answered without the command line's own
machinery being loaded."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """An interrupt ends whatever is not better prepared for it, also while this is still being loaded."""
    try:
        _called()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _called() -> None:
    if sys.argv[1:2] == ["complete"] and len(sys.argv) > 2:
        from meshctl.cli.completion.line import complete

        sys.exit(complete(sys.argv[2:]))
    from meshctl.cli.app import main

    main()
