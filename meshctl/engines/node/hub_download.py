"""Downloads models, tokenizers and datasets of the Hugging Face hub to the caches of a node, before any
worker starts.

The download runs in a child of the node process, because the libraries start threads. For a component of a
group with another interpreter the child becomes that interpreter by exec, because the launcher's may lack
the libraries. The child (`forkserver.Task`) reports

    {"name": NAME, "received": BYTES, "total": BYTES}      progress; `total` grows while files are listed
    {"error": TEXT}                                        the reason why a name could not be downloaded
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from meshctl.engines.checks.models import Download
from meshctl.engines.node import forkserver
from meshctl.engines.node.worker_env import environ_of
from meshctl.hub_cache import missing_weights
from meshctl.package import install_command
from meshctl.run import process

MODULE = "meshctl.engines.node.hub_download"
TOKENIZER_PATTERNS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
WEIGHT_PATTERNS = ("*.safetensors",)
OTHER_WEIGHT_PATTERNS = ("*.bin",)
"""The files of the weights of models that have no safetensors files."""
IGNORED_PATTERNS = ("*/*", "consolidated*")
"""Other formats of the same weights."""
TITLE = "meshctl-fetch"
REPORT_S = 1.0
"""Minimum time between two reports of progress."""
Report = Callable[[dict[str, Any]], None]


def download_in_task(wanted: Sequence[Download], writer: int, python: str = sys.executable) -> int:
    """Downloads what components of this interpreter, `python`, need, and then executes the next interpreter
    for the others. Returns the exit code of the process."""
    others = [one for one in wanted if one.python != python]
    code = download_all([one for one in wanted if one.python == python], partial(forkserver.report, writer))
    if code == 0 and others:
        python = others[0].python
        os.set_inheritable(writer, True)
        words = [str(writer), json.dumps([asdict(one) for one in others])]
        os.execve(python, [python, "-P", "-m", MODULE, *words], environ_of(python, os.environ))
    return code


def download_all(wanted: Sequence[Download], report: Report) -> int:
    """Downloads one name after another. Returns 0, or 1 after it has reported an error."""
    for one in wanted:
        report({"name": one.name, "received": 0, "total": 0})
        try:
            download(one, report)
        except Exception as error:  # the library raises what its HTTP client, the hub and the disk raise
            report({"error": _failure(one, error)})
            return 1
    return 0


def download(one: Download, report: Report) -> None:
    """Downloads a model, a tokenizer, or all splits of the default config of a dataset, which it converts for
    the workers. A model without safetensors files is downloaded with its `.bin` files."""
    if one.kind == "dataset":
        import datasets

        datasets.disable_progress_bars()
        datasets.load_dataset(one.name)
        return
    from huggingface_hub import snapshot_download

    has_weights, ignored = one.kind == "model", list(IGNORED_PATTERNS)
    progress = _progress_class(one.name, report)
    patterns = [*TOKENIZER_PATTERNS, *(WEIGHT_PATTERNS if has_weights else ())]
    found = snapshot_download(one.name, allow_patterns=patterns, ignore_patterns=ignored, tqdm_class=progress)
    if has_weights and missing_weights(Path(found)):
        others = [*TOKENIZER_PATTERNS, *OTHER_WEIGHT_PATTERNS]
        snapshot_download(one.name, allow_patterns=others, ignore_patterns=ignored, tqdm_class=progress)


def _progress_class(name: str, report: Report) -> Any:
    """Returns a progress bar of the library that reports instead of drawing."""
    from tqdm import tqdm

    class Progress(tqdm):  # type: ignore[misc]
        reported_at, received = 0.0, 0

        def display(self, *_: object, **__: object) -> None:
            """Reports the bytes. The library also calls this method for its bars of written bytes and of
            files."""
            now = time.monotonic()
            is_due = self.unit == "B" and now - Progress.reported_at >= REPORT_S
            if is_due and self.n > Progress.received:
                Progress.reported_at, Progress.received = now, int(self.n)
                report({"name": name, "received": int(self.n), "total": int(self.total or 0)})

    return Progress


def _failure(one: Download, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{one.what} cannot be downloaded without {error.name}: {install_command('hf')}"
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    cause = error.__cause__ or error
    first = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    if isinstance(error, GatedRepoError):
        first = "access to it must be granted: log in with `hf auth login`"
    elif isinstance(error, RepositoryNotFoundError):
        first = "the hub does not know it, or it is private: log in with `hf auth login`"
    return (
        f"{one.what} is not in {one.cache(os.environ)}, and could not be downloaded from "
        f"{constants.ENDPOINT}: {first}"
    )


if __name__ == "__main__":
    process.set_title(TITLE)
    others = [Download(**one) for one in json.loads(sys.argv[2])]
    sys.exit(download_in_task(others, int(sys.argv[1]), others[0].python))
