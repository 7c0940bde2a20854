"""Shapes are read from the headers of weight files, and files of another form are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.recipe.code.files import FILE, INDEX, shapes_of

COMMIT = "0123abcd"


def write(file: Path, **shapes: list[int]) -> None:
    tensors = {name.replace("_", "."): {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 16)


def test_one_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine" / FILE, a=[2, 3], h_0_attn_bias=[1, 1, 8, 8])
    assert shapes_of("mine", (str(tmp_path),), None) == {"a": (2, 3)}
    assert shapes_of("other", (str(tmp_path),), None) is None


def test_several_files_of_a_model_in_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / "models--some--model" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    write(folder / "one.safetensors", a=[2])
    write(folder / "two.safetensors", b=[])
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert shapes_of("some/model", (), tmp_path) == {"a": (2,), "b": ()}
    (folder / "two.safetensors").unlink()
    assert shapes_of("some/model", (), tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05\0\0",
        b"\xff" * 16,
        (2).to_bytes(8, "little") + b"[]",
        (7).to_bytes(8, "little") + b'{"a":1}',
        (20).to_bytes(8, "little") + b'{"a":{"shape":["x"]}}',
    ],
)
def test_another_file_has_no_shapes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert shapes_of(".", (str(tmp_path),), None) is None


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": "../b"}}'])
def test_another_index_has_no_shapes(tmp_path: Path, index: str) -> None:
    (tmp_path / INDEX).write_text(index)
    assert shapes_of(".", (str(tmp_path),), None) is None
