"""The actor that runs a node of the plan in a Ray cluster. Ray sends this module by value, and it needs the
standard library only, because `meshctl` may be on the machine's PATH only after the setup."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress

TAIL_BYTES = 1 << 16


class MeshctlNode:
    def begin(self) -> None:
        """Does nothing. Its return shows that this process runs."""

    def run(
        self, script: str, token: str, environ: Mapping[str, str], archive: bytes | None = None
    ) -> tuple[int, str]:
        """Runs the script of a node (`remote`) as a child of this process. `archive` is the recipe's
        folder, if it is shipped. Returns its exit code, or the negative number of a signal, and the end of
        its output.

        The child ends with its standard input, which the kernel closes when this process dies. Ray sets
        OMP_NUM_THREADS to the CPUs of the whole node, and a worker is one process of several.
        """
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        path = os.pathsep.join([inherited.get("PATH", os.defpath), os.path.dirname(sys.executable)])
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["sh", "-c", script],
                env={**inherited, "PATH": path, **environ},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            assert process.stdin
            with suppress(OSError):  # it may have ended already
                process.stdin.write(f"{token}\n".encode())
                if archive is not None:
                    process.stdin.write(f"{len(archive)}\n".encode() + archive)
                process.stdin.flush()
            code = process.wait()
            with suppress(OSError):
                process.stdin.close()
            output.seek(max(0, output.seek(0, os.SEEK_END) - TAIL_BYTES))
            return code, output.read().decode(errors="replace")
