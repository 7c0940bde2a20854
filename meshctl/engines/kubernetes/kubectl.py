"""Calls kubectl, the client of Kubernetes, which knows the cluster and the user's credentials."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from meshctl.dataclass import dataclass

ANSWER_S = 60
"""Seconds within which kubectl must end."""
REQUEST = ("--request-timeout", "30s")
"""Options of commands that ask the API server once."""
MAX_ERROR = 400
"""Letters of kubectl's own message that are shown."""


class KubectlError(Exception):
    """kubectl is missing or has failed; the message is a sentence."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a context and a namespace; empty for those of its configuration."""

    context: str = ""
    namespace: str = ""

    def argv(self, *words: str) -> list[str]:
        """Returns the command line of a command."""
        options = [*(["--context", self.context] if self.context else [])]
        options += ["--namespace", self.namespace] if self.namespace else []
        return ["kubectl", *options, *words]

    def call(self, *words: str, given: str = "") -> str:
        """Runs a command with a standard input. Returns its output. Raises `KubectlError`."""
        argv = self.argv(*words)
        try:
            done = subprocess.run(
                argv, input=given, capture_output=True, text=True, errors="replace", timeout=ANSWER_S
            )
        except FileNotFoundError:
            raise KubectlError("kubectl is not installed, or not on the PATH") from None
        except OSError as error:
            raise KubectlError(f"kubectl cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise KubectlError(f"kubectl {words[0]} has not ended within {ANSWER_S} s") from None
        if done.returncode:
            raise KubectlError(f"kubectl {words[0]} has failed: {_message(done.stderr)}")
        return done.stdout

    def get(self, kind: str, *words: str) -> dict[str, Any] | None:
        """Returns an object, or a list of objects; None if it does not exist. Raises `KubectlError`."""
        try:
            text = self.call("get", kind, *words, "--ignore-not-found", "-o", "json", *REQUEST)
            found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        except ValueError:
            raise KubectlError("the answer of kubectl get is not JSON") from None
        return found

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Creates objects, or changes them. Raises `KubectlError`."""
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.call("apply", "-f", "-", *REQUEST, given=given)


def _message(stderr: str) -> str:
    """Returns kubectl's own error in one line, which may be the last one after warnings."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")] or lines[-1:]
    text = " ".join(errors) or "it has ended without a message"
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}..."
