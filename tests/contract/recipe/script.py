"""A program of the contract test's run. It prints the names of the variables that a launcher sets."""

import json
import os
import sys

PREFIXES = ("MESHCTL_", "MASTER_")
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
names = sorted(name for name in os.environ if name.startswith(PREFIXES) or name in TORCHRUN)
filled = sys.argv[1:] == ["--out", os.environ["MESHCTL_RUN_DIR"]]
print(json.dumps({"names": names, "run_dir_is_filled": filled}))
