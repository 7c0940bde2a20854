"""Programs that do not end well, without a client: they ask once and do what the first word says."""

import json
import os
import signal
import subprocess
import sys
from urllib.request import Request, urlopen


def ask() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with urlopen(Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)) as reply:
        reply.read()


ask()
if sys.argv[1] == "exit":
    print("it cannot go on", file=sys.stderr)
    sys.exit(3)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "nan":
    print("NaN")
if sys.argv[1] == "spawn":
    child = subprocess.Popen(["sleep", "3600"])
    with open(os.path.join(sys.argv[2], "pid"), "w") as file:
        file.write(str(child.pid))
    while True:
        ask()
