"""The recipe's folder, copied to nodes that share no file system with the launcher (`engine.NAME.ship`).

    archive = pack(folder, runs, {"plan.json": TEXT})     on the launcher: an anonymous file
    unpack(FOLDER / "archive", FOLDER)                    on the node: FOLDER/code, FOLDER/plan.json

Left out are the files of version control, caches, virtual environments, the folder of runs, and what
`.meshctlignore` in the folder lists: one pattern a line, for a path below the folder or for a name in it.
"""

from __future__ import annotations

import fnmatch
import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO, cast

from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Plan
from meshctl.recipe.code.classes import Class, Code
from meshctl.run.directory import RunDir, write_whole
from meshctl.text.english import size

SHIPPED_BYTES_MAX = 256 << 20
"""Maximum size of the copied files together."""
IGNORE_FILE = ".meshctlignore"
IGNORED = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "*.pyc",
    ".venv",
    "venv",
    "node_modules",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
)
ARCHIVE = "archive"
CODE = "code"
"""The folder in the archive with the content of the recipe's folder."""
BLOCK_BYTES = 1 << 16
LARGEST = 3
"""The number of entries that a message about the size names."""


def pack(folder: Path, runs: Path, more: Mapping[str, str]) -> BinaryIO:
    """Returns an anonymous file with a compressed archive of a folder and further files. `runs` is the folder
    of runs. Raises `CannotStart`."""
    archive = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
    try:
        with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
            for path in shipped_files(folder, runs):
                tar.add(path, f"{CODE}/{path.relative_to(folder)}", recursive=False)
            for file, text in more.items():
                data = text.encode()
                entry = tarfile.TarInfo(file)
                entry.size, entry.mode = len(data), 0o600
                tar.addfile(entry, io.BytesIO(data))
    except OSError as error:
        archive.close()
        raise CannotStart(f"`ship` cannot copy {error.filename}: {error.strerror}") from error
    archive.seek(0)
    return archive


def send_archive(archive: BinaryIO, pipe: IO[bytes]) -> None:
    """Writes the size of an archive as a line, and the archive, into an unbuffered pipe. Ends early if
    another thread closes the pipe, or its reader ends."""
    with suppress(OSError, ValueError):
        position, end = 0, os.fstat(archive.fileno()).st_size
        pipe.write(f"{end}\n".encode())
        while position < end:
            block = os.pread(archive.fileno(), BLOCK_BYTES, position)
            position += pipe.write(block)


def check_code(plan: Plan, path: Sequence[str]) -> None:
    """Raises `CannotStart` if the class of a component is neither in the recipe's folder, which is the first
    one of `path`, nor installed."""
    folder, *others = map(Path, path)
    installed = [Path(one).resolve() for one in sys.path if one and Path(one).resolve() not in others]
    code = Code(tuple(path), tuple(sys.path))
    for component in plan.components:
        found = code.find(component.target)
        file = Path(found.file).resolve() if isinstance(found, Class) else folder
        if not any(file.is_relative_to(one) for one in (folder.resolve(), *installed)):
            raise CannotStart(
                f"`{component.target}` is in {file}, which `ship` does not copy: it copies the folder of the "
                f"recipe, {folder}"
            )


def check_size(folder: Path, runs: Path) -> None:
    """Raises `CannotStart` if a folder is too large to be copied, or has a link out of it."""
    sizes: dict[str, int] = {}
    """Name in the folder -> bytes."""
    for path in shipped_files(folder, runs):
        if not path.is_symlink():
            name = path.relative_to(folder).parts[0]
            sizes[name] = sizes.get(name, 0) + path.stat().st_size
    if sum(sizes.values()) > SHIPPED_BYTES_MAX:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST]
        raise CannotStart(
            f"`ship` would copy {size(sum(sizes.values()))} from {folder} to each node, and "
            f"{size(SHIPPED_BYTES_MAX)} are allowed; the largest are {', '.join(largest)}: list what the run "
            f"does not need in {folder / IGNORE_FILE}"
        )


def shipped_files(folder: Path, runs: Path) -> Iterator[Path]:
    """Yields the files and links of a folder that are copied. Raises `CannotStart` for a link that leads out
    of it."""
    patterns = [*IGNORED, *_own_patterns(folder)]
    root = folder.resolve()
    for place, folders, files in os.walk(folder):
        here = Path(place)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(
            name
            for name in folders
            if name not in links
            and not is_ignored((here / name).relative_to(folder), patterns)
            and (here / name).resolve() != runs.resolve()
            and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted([*files, *links]):
            path = here / name
            if is_ignored(path.relative_to(folder), patterns):
                continue
            is_inside = not path.is_symlink() or (
                not os.path.isabs(os.readlink(path)) and path.resolve().is_relative_to(root)
            )
            if not is_inside:
                raise CannotStart(
                    f"{path} is a link out of the recipe's folder, which `ship` does not copy: list it in "
                    f"{folder / IGNORE_FILE}, or copy its target"
                )
            if path.is_symlink() or path.is_file():
                yield path


def is_ignored(path: Path, patterns: list[str]) -> bool:
    """Returns whether a pattern matches a path below the folder, or its last name."""
    return any(fnmatch.fnmatch(path.name, one) or fnmatch.fnmatch(str(path), one) for one in patterns)


def _own_patterns(folder: Path) -> list[str]:
    try:
        lines = (folder / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise CannotStart(f"{folder / IGNORE_FILE} cannot be read: {error}") from error
    return [line.strip().rstrip("/") for line in lines if line.strip() and not line.startswith("#")]


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks an archive into a folder, and deletes it. Entries that would be outside of the folder, devices
    and links out of it are refused. Raises `OSError` and `tarfile.TarError`."""
    with tarfile.open(archive, mode="r:gz") as tar:
        tar.extractall(folder, filter="data")
    (folder / CODE).mkdir(exist_ok=True)
    archive.unlink()


def begin_run(shipped: Path, plan: Path) -> Path:
    """Unpacks the archive in the folder `shipped`, makes the folder of the code the working directory, and
    writes the files of the run directory of this node, in which `plan` is the plan. Returns its path. Raises
    `OSError`, `ValueError` and `tarfile.TarError`."""
    unpack(shipped / ARCHIVE, shipped)
    run = RunDir(plan.expanduser().absolute().parent)
    if run.lock.exists():
        raise ValueError(f"{run.path} is the run directory of the launcher; `ship_to` names another folder")
    run.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    (run.path / "logs").mkdir(exist_ok=True)
    write_whole(run.plan, (shipped / run.plan.name).read_text(encoding="utf-8"), private=True)
    code = shipped / CODE
    run.write_start(replace(RunDir(shipped).read_start(), path=(str(code),)))
    os.chdir(code)
    return run.plan
