"""The shell script that runs a node on a host: the lines of `setup`, then `meshctl agent`.

The first line of its standard input is the token of the run. With `ship`, the next one is the size of an
archive (`shipping`), which follows, and which the agent unpacks in a new temporary folder. When the input
ends, everything that the script has started ends, also while the setup runs, and this folder is removed.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from meshctl.network.connection import TOKEN_VARIABLE

NO_MESHCTL, NO_SETUP, NO_CONNECTION = 96, 97, 255
"""Exit codes of the script. The last one is also that of ssh."""
REFUSED = 4
TAIL_BYTES = 4096
FOLDER = "meshctl_shipped"
"""The variable of the script with the temporary folder."""
REMOVE = f'for i in 1 2 3 4 5; do rm -rf "${FOLDER}" && break; sleep 1; done; '
"""Removes the folder. A process that is killed meanwhile may still write into it."""
RECEIVE = (
    f'{FOLDER}=$(umask 077; mktemp -d "${{TMPDIR:-/tmp}}/meshctl-shipped-XXXXXX") && IFS= read -r size || '
    f"exit {NO_CONNECTION}",
    f'head -c "$size" >"${FOLDER}/archive"',
    f'[ "$(wc -c <"${FOLDER}/archive")" -eq "$size" ] || {{ rm -rf "${FOLDER}"; '
    f'echo "error: the recipe\'s folder was not received whole" >&2; exit {REFUSED}; }}',
)


def script_of(setup: Sequence[str], argv: Sequence[str], is_shipped: bool = False) -> str:
    """Returns the shell script of a host. A subshell ends the whole process group when the connection
    ends. It is no child of the agent, which kills its children."""
    lines = [
        f"IFS= read -r {TOKEN_VARIABLE} && export {TOKEN_VARIABLE} || exit {NO_CONNECTION}",
        *(RECEIVE if is_shipped else ()),
        "exec 3<&0 </dev/null",
        f"( {{ trap '' TERM; cat <&3; kill -TERM 0; {REMOVE if is_shipped else ''}}} >/dev/null 2>&1 & )",
        "exec 3<&-",
    ]
    agent = shlex.join(argv) + (f' --shipped "${FOLDER}"' if is_shipped else "")
    return "\n".join([*lines, *node_lines(setup, agent, is_shipped)])


def node_lines(setup: Sequence[str], agent: str, is_shipped: bool = False) -> list[str]:
    """Returns the lines of shell that run the setup on a node and become the agent. `agent` is its command
    line, whose first word is `meshctl`."""
    lines = [
        "cd" if is_shipped else f"cd {shlex.quote(os.getcwd())} 2>/dev/null",
    ]
    for line in setup:
        failed = shlex.quote(f"error: {line}")
        lines += [line, f"[ $? -eq 0 ] || {{ echo {failed} >&2; exit {NO_SETUP}; }}"]
    folder = shlex.quote(str(Path(sys.executable).parent))
    lines += [
        f"PATH=$PATH:{folder}; export PATH",
        f"command -v {agent.split()[0]} >/dev/null || exit {NO_MESHCTL}",
        f"exec {agent}",
    ]
    return lines


def refusals(where: str, key: str, problem: str) -> dict[int, str]:
    """Returns exit code -> the reason why a node did not start. `where` names its host, `key` is that of the
    engine in a recipe, and `problem` the last error in its output."""
    return {
        NO_MESHCTL: f"{where} has no meshctl: install it there, or activate it in `{key}.setup`",
        NO_SETUP: f"{where} has failed in `{key}.setup`: {problem}",
        2: f"{where}: {problem}",
        REFUSED: f"{where}: {problem}",
    }


def last_error(log: Path) -> str:
    """Returns the last line of a log that begins with `error: `, without that, or else its last line."""
    try:
        lines = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return [*lines[-1:], *errors][-1] if lines else "it has ended without a message"
