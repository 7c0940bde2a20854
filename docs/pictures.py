"""Draws the pictures of the pages of docs/: `python docs/pictures.py` writes all of them.

A page names a picture as `![meshctl show-topology RECIPE OVERRIDES](FILE.svg)`. The recipe is a block of the
same page whose first line is a comment with the name of its file.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from meshctl.cli.load import plan_of
from meshctl.cli.show_topology import topology_of
from meshctl.view.pictures.svg import draw

DOCS = Path(__file__).parent
BLOCK = re.compile(r"^```(?:yaml|python)\n(# ([\w./]+)\n.*?)^```", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"^!\[meshctl show-topology (.+)\]\((.+\.svg)\)$", re.MULTILINE)


def write_files(page: str, folder: Path) -> None:
    """Writes the blocks of a page that have a file name to `folder`, the working directory. If one of them is
    `data.py`, runs it."""
    for text, name in BLOCK.findall(page):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    if (folder / "data.py").exists():
        runpy.run_path("data.py")


def drawn(page: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the file and the text of each picture of a page. `folder` has the page's files."""
    pictures = PICTURE.findall(page)
    if pictures and (folder / "one.yaml").exists():
        _write_base(folder)
    for words, file in pictures:
        recipe, *overrides = shlex.split(words)
        yield file, draw(topology_of(plan_of(str(folder / recipe), overrides)))


def _write_base(folder: Path) -> None:
    """Writes the config of the model that `one.yaml` exports to the folder `base`, as its reader has done."""
    config = plan_of(str(folder / "one.yaml"), []).plan.component("trainer").args["model"]
    (folder / "base").mkdir(exist_ok=True)
    (folder / "base" / "config.json").write_text(json.dumps(config), encoding="utf-8")


def main() -> None:
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if not PICTURE.search(page):
            continue
        with tempfile.TemporaryDirectory() as made:
            os.chdir(made)
            write_files(page, Path(made))
            for file, text in drawn(page, Path(made)):
                (DOCS / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
