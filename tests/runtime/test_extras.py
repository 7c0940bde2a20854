"""The message where a library of an extra is missing."""

from __future__ import annotations

import re
import sys

import pytest

from meshctl.package import install_command
from meshctl.runtime.extras import MissingExtra, extra


def test_a_missing_library_is_named_with_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra) as raised, extra("hf"):
        import transformers  # noqa: F401
    assert str(raised.value) == f"transformers is not installed: {install_command('hf')}"


@pytest.mark.parametrize(("library", "path"), [("transformers", "rows.jsonl"), ("pyarrow", "rows.parquet")])
def test_a_source_names_what_it_needs(
    library: str, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from meshctl.data import Text

    if library != "transformers":
        pytest.importorskip("transformers")
    file = tmp_path_factory.mktemp("rows") / path
    file.write_text("{}")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        MissingExtra, match=f"^{library} is not installed: {re.escape(install_command('hf'))}$"
    ):
        Text(str(file), "byte")
