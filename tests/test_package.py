"""The name of the distribution: how it is installed here, its namesake, and no text that names somebody else's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import meshctl
from meshctl import package
from tests.environments import distribution
from tests.paths import ROOT

OURS = "meshctl-torch"
THIS = Path(__file__).relative_to(ROOT).as_posix()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, the only one on the import path, that has the package and no metadata."""
    site = tmp_path / "site"
    monkeypatch.setattr(package, "PACKAGE_DIR", site / "meshctl")
    monkeypatch.setattr(sys, "path", [str(site)])
    return site


def test_the_version_stands_once() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["name"] == package.DISTRIBUTION == OURS
    assert project["tool"]["hatch"]["version"] == {"path": "meshctl/__init__.py"}
    assert package.version_in(package.PACKAGE_DIR) == meshctl.__version__


def test_metadata_is_read_in_one_file() -> None:
    for file in package.PACKAGE_DIR.rglob("*.py"):
        reads = re.search(r"importlib(\.| import )metadata", file.read_text(encoding="utf-8"))
        assert bool(reads) == (file == package.PACKAGE_DIR / "package.py"), file


SENTENCE = "install it as you installed meshctl"


@pytest.mark.parametrize(
    ("source", "extra", "python", "command"),
    [
        ("a folder", "hf", "", "pip install -e '{here}/a folder[hf]'"),
        ("folder", "", "", "pip install -e {here}/folder"),
        ("folder", "hf,rewards", "/env/bin/python", "/env/bin/python -m pip install -e '{here}/folder[hf,rewards]'"),
        ("ours-1-py3-none-any.whl", "hf", "", "pip install '{here}/ours-1-py3-none-any.whl[hf]'"),
        ("lost.whl", "hf", "", f"{SENTENCE}, with the extra `hf`"),
        ("lost folder", "", "/env/bin/python", "install it for /env/bin/python as you installed meshctl"),
        ("https://example.org/meshctl_torch.whl", "hf,track", "", f"{SENTENCE}, with the extra `hf` and `track`"),
        ("", "hf", "", f"{SENTENCE}, with the extra `hf`"),
    ],
)  # fmt: skip
def test_how_an_extra_is_installed(
    site: Path, tmp_path: Path, source: str, extra: str, python: str, command: str
) -> None:
    for folder in ("a folder", "folder"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pyproject.toml").touch()
    (tmp_path / "ours-1-py3-none-any.whl").touch()
    url = source if "://" in source else (tmp_path / source).as_uri()
    distribution(site, OURS, "1", **({"direct_url": json.dumps({"url": url})} if source else {}))
    assert package.install_command(extra, python) == command.format(here=tmp_path)


def test_a_checkout_needs_no_metadata(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "PACKAGE_DIR", ROOT / "meshctl")
    assert package.install_command("hf") == f"pip install -e '{ROOT}[hf]'"
    assert package.missing_libraries("hf") == () and package.requirements() == []


def test_the_index_is_named_once_the_name_is_ours(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not package.REGISTERED
    monkeypatch.setattr(package, "REGISTERED", True)
    assert package.install_command("hf") == f"pip install '{OURS}[hf]=={meshctl.__version__}'"


def test_the_namesake_is_not_our_former_name(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(site, OURS, "1", "hydra-core>=1.3")
    assert package.namesake() == ""
    distribution(site, "meshctl", "2.7", "rich", "hydra-core-plugins")
    assert package.namesake() == "the distribution `meshctl` 2.7 (another tool)"
    former = site / "former"
    distribution(former, "meshctl", "0.1.0", "hydra-core<1.4,>=1.3.8")
    monkeypatch.setattr(sys, "path", [str(former)])
    assert package.namesake() == f"the distribution `meshctl` 0.1.0 (the former name of {OURS})"


def test_files_that_were_overwritten_are_named(tmp_path: Path) -> None:
    program = (
        "import meshctl\ndel meshctl._HOMES, meshctl.__getattr__\nfrom meshctl.cli.main import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 4 and done.stdout == ""
    expected = f"another distribution has overwritten files of meshctl: {package.reinstall_command()}"
    assert done.stderr == f"error: {expected}\n"


def texts() -> dict[str, str]:
    """Returns the texts of the project, without the history."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    listed = done.stdout.splitlines()
    found = {}
    for name in {*listed} - {"CHANGELOG.md", "docs/limits.md", THIS}:
        with suppress(OSError, UnicodeDecodeError):  # a link to a folder, or a picture
            found[name] = (ROOT / name).read_text(encoding="utf-8")
    return found


def test_no_text_installs_what_belongs_to_somebody_else() -> None:
    found = texts()
    assert {"README.md", "Makefile", "recipes/sft.yaml", "meshctl/package.py"} <= found.keys()
    wrong = re.compile(r"pip3?\s+install\s*.*\bmeshctl\b(?![-_]torch)|--force-" + "reinstall")
    assert [f"{name}: {match[0]}" for name, text in found.items() for match in wrong.finditer(text)] == []
