"""A program of the contract test's run. It prints its arguments and the names of the variables that a launcher sets."""

import json
import os
import sys

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
names = sorted(name for name in os.environ if name.startswith("MESHCTL_") or name in TORCHRUN)
filled = sys.argv[1:] == ["--out", os.environ["MESHCTL_RUN_DIR"]]
print(json.dumps({"names": names, "run_dir_is_filled": filled}))
