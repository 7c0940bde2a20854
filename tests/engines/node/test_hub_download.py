"""The download of models and datasets: into the cache, once, with progress, and with one line if it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

from meshctl.engines.node.hub_download import MODULE
from meshctl.hub_cache import has_dataset
from tests.engines.node.hub_server import serving
from tests.environments import OURS, environment
from tests.hang import HANG_S
from tests.paths import ROOT

SMALL = {"config.json": b"{}", "tokenizer.json": b"{}", "chat_template.jinja": b"{{ messages }}"}
FILES = {
    **SMALL,
    "model.safetensors": b"weights" * 100,
    "pytorch_model.bin": b"other",
    "consolidated.safetensors": b"again",
    "original/model.safetensors": b"again",
}
OLDER = {"config.json": b"{}", "pytorch_model.bin": b"weights"}
ROWS = b'{"text": "ab"}\n{"text": "cd"}\n'
REPOSITORIES = {
    "some/name": FILES,
    "some/tokenizer": FILES,
    "some/older": OLDER,
    "datasets/some/someRows": {"train.jsonl": ROWS, "test.jsonl": b'{"text": "ef"}\n'},
}
CHILD = """
import json, sys
from meshctl.engines.checks.models import Download
from meshctl.engines.node.hub_download import download_all
for name, kind in json.loads(sys.argv[1]):
    found = []
    code = download_all([Download(name, "actor", kind)], found.append)
    print(json.dumps([code, found]))
from meshctl.data import Text
print(Text("some/someRows", "byte", shuffle=False).next(range(2))["input_ids"].values.tolist())
"""
"""Downloads one after another, in a process, because the library reads the environment once, and reads a dataset."""


def environment_of(home: Path, url: str) -> dict[str, str]:
    limits = dict.fromkeys(("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"), str(int(HANG_S)))
    return {"HF_HOME": str(home), "HF_ENDPOINT": url, "PATH": "/usr/bin:/bin", **limits}


def files(home: Path, name: str) -> set[str]:
    return {path.name for path in home.glob(f"hub/models--some--{name}/snapshots/*/*")}


def test_models_datasets_and_failures(tmp_path: Path) -> None:
    """A dataset that was downloaded is read without a request."""
    wanted = [
        ("some/name", "model"),
        ("some/tokenizer", "tokenizer"),
        ("some/older", "model"),
        ("some/other", "model"),
        ("some/someRows", "dataset"),
        ("some/rows", "dataset"),
    ]
    with serving(REPOSITORIES) as hub:
        environ = environment_of(tmp_path, hub.url)
        command = [sys.executable, "-c", CHILD, json.dumps(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT)
        *found, read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        assert [code for code, _ in found] == [0, 0, 0, 1, 0, 1]
        assert hub.downloads("train.jsonl") == hub.downloads("test.jsonl") == 1
        assert read == [97, 98, 258, 99, 100, 258] and "some/rows" in hub.requests[-1], (
            "nothing was asked for it"
        )
    assert has_dataset("some/someRows", environ) and not has_dataset("some/other", environ)
    assert files(tmp_path, "name") == {*SMALL, "model.safetensors"}, "one format"
    assert files(tmp_path, "tokenizer") == {*SMALL} and files(tmp_path, "older") == {*OLDER}
    assert found[0][1][0] == {"name": "some/name", "received": 0, "total": 0}
    assert {report["name"] for report in found[4][1]} == {"some/someRows"}
    for number, kind, cache, reason in (
        (3, "model", f"the hub, {tmp_path / 'hub'}", "the hub does not know it, or it is private"),
        (5, "dataset", f"datasets, {tmp_path / 'datasets'}", "doesn't exist on the Hub"),
    ):
        error = found[number][1][-1]["error"]
        start = f"{kind} `{wanted[number][0]}` of `actor` is not in the cache of {cache}, and could not be "
        assert (
            error.startswith(f"{start}downloaded from {hub.url}: ") and reason in error and "\n" not in error
        )


def test_the_interpreter_of_each_group_downloads(tmp_path: Path) -> None:
    pythons = [environment(tmp_path / name, *OURS) for name in ("one", "two")]
    names = ("some/name", "some/tokenizer")
    wanted = [
        {"name": name, "component": "actor", "kind": "model", "python": str(python)}
        for name, python in zip(names, pythons, strict=True)
    ]
    reader, writer = os.pipe()
    with serving(dict.fromkeys(names, FILES)) as hub, os.fdopen(reader) as reports:
        environ = environment_of(tmp_path, hub.url)
        command = [str(pythons[0]), "-m", MODULE, str(writer), json.dumps(wanted)]
        done = subprocess.run(command, env=environ, cwd=ROOT, pass_fds=[writer])
        os.close(writer)
        assert done.returncode == 0
        assert [report["name"] for report in map(json.loads, reports) if not report["total"]] == [*names]
        assert hub.downloads("model.safetensors") == 2
