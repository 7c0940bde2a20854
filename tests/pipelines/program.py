"""A program beside components: `program.py RUN_DIR`. With `serve` it runs until it is terminated."""

import os
import signal
import sys
from pathlib import Path

if "serve" in sys.argv:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    while True:
        signal.pause()
(Path(sys.argv[1]) / f"program-{os.environ['RANK']}").touch()
