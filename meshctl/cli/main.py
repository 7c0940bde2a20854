"""The way in. A shell asks for completions at every Tab, and is answered without the command line's own machinery being loaded."""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:2] == ["complete"] and len(sys.argv) > 2:
        from meshctl.cli.completion.line import complete

        sys.exit(complete(sys.argv[2:]))
    from meshctl.cli.app import main

    main()
