"""The download of models and datasets: into the cache, once, with progress, and with one line if it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub")

from meshctl.engines.node.hub_download import MODULE
from meshctl.hub_cache import has_dataset
from tests.engines.node.hub_server import serving
from tests.environments import OURS, environment
from tests.hang import HANG_S
from tests.paths import ROOT

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"weights" * 100,
    "pytorch_model.bin": b"other",
    "consolidated.safetensors": b"again",
    "original/model.safetensors": b"again",
}
CHILD = """
import json, sys
from meshctl.engines.checks.models import Download
from meshctl.engines.node.hub_download import download_all
sys.exit(download_all([Download(*json.loads(sys.argv[1]))], lambda message: print(json.dumps(message))))
"""


def environment_of(home: Path, url: str) -> dict[str, str]:
    limits = dict.fromkeys(("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"), str(int(HANG_S)))
    return {"HF_HOME": str(home), "HF_ENDPOINT": url, "PATH": "/usr/bin:/bin", **limits}


def downloaded(home: Path, url: str, name: str, kind: str = "model") -> tuple[int, list[dict[str, Any]]]:
    """Downloads in a process, because the library reads the environment once."""
    command = [sys.executable, "-c", CHILD, json.dumps([name, "actor", kind])]
    environ = environment_of(home, url)
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


ROWS = b'{"text": "ab"}\n{"text": "cd"}\n'
READ = """
from meshctl.data import Text
print(Text("some/someRows", "byte", shuffle=False).next(range(2))["input_ids"].values.tolist())
"""


def files(home: Path) -> set[str]:
    return {path.name for path in home.glob("hub/models--some--name/snapshots/*/*")}


def test_a_model_is_downloaded_in_one_format(tmp_path: Path) -> None:
    with serving({"some/name": FILES}) as hub:
        code, reports = downloaded(tmp_path, hub.url, "some/name")
    assert code == 0 and reports[0] == {"name": "some/name", "received": 0, "total": 0}
    assert files(tmp_path) == {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}


def test_a_tokenizer_is_downloaded_without_weights(tmp_path: Path) -> None:
    with serving({"some/name": FILES}) as hub:
        assert downloaded(tmp_path, hub.url, "some/name", "tokenizer")[0] == 0
    assert files(tmp_path) == {"config.json", "tokenizer.json", "chat_template.jinja"}


def test_a_model_without_safetensors_is_downloaded_too(tmp_path: Path) -> None:
    older = {"config.json": b"{}", "pytorch_model.bin": b"weights"}
    with serving({"some/name": older}) as hub:
        assert downloaded(tmp_path, hub.url, "some/name")[0] == 0
    assert files(tmp_path) == {"config.json", "pytorch_model.bin"}


@pytest.mark.parametrize(
    ("is_reachable", "reason"),
    [(True, "the hub does not know it, or it is private"), (False, "Connection refused")],
)
def test_a_failure_is_one_line(tmp_path: Path, is_reachable: bool, reason: str) -> None:
    with serving({}) as hub:
        url = hub.url if is_reachable else "http://127.0.0.1:9"
        code, reports = downloaded(tmp_path, url, "some/name")
    error = reports[-1]["error"]
    assert code == 1 and "\n" not in error
    expected = f"model `some/name` of `actor` is not in the cache of the hub, {tmp_path / 'hub'}, and could "
    assert error.startswith(f"{expected}not be downloaded from {url}: ") and reason in error


def test_a_dataset_is_downloaded_and_then_read_without_a_request(tmp_path: Path) -> None:
    with serving({"datasets/some/someRows": {"train.jsonl": ROWS, "test.jsonl": b'{"text": "ef"}\n'}}) as hub:
        code, reports = downloaded(tmp_path, hub.url, "some/someRows", "dataset")
        assert code == 0 and {report["name"] for report in reports} == {"some/someRows"}
        assert hub.downloads("train.jsonl") == hub.downloads("test.jsonl") == 1
        requests = len(hub.requests)
        environ = environment_of(tmp_path, hub.url)
        command = [sys.executable, "-c", READ]
        read = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT)
        assert read.stdout == "[97, 98, 258, 99, 100, 258]\n"
        assert len(hub.requests) == requests
    assert has_dataset("some/someRows", environ) and not has_dataset("some/other", environ)


def test_a_dataset_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with serving({}) as hub:
        code, reports = downloaded(tmp_path, hub.url, "some/rows", "dataset")
    error = reports[-1]["error"]
    expected = f"dataset `some/rows` of `actor` is not in the cache of datasets, {tmp_path / 'datasets'}, and"
    assert code == 1 and "\n" not in error and error.startswith(expected)
    assert "doesn't exist on the Hub" in error


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
