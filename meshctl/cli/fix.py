"""`validate --fix`: changes what has one safe answer, says what, and looks again at what is left.

All of it is done in memory first, again and again, since one mistake may have hidden another. Then the files
are written, each whole or not at all: the recipe, and files of its own folder that it includes, but not what
meshctl ships, nor the recipe of a run. Every other character stays as it is. An override cannot be changed:
how it should read is printed. The text of standard input goes to stdout.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from meshctl.cli.load import Looked
from meshctl.cli.output import silence, why
from meshctl.diagnostics import Diagnostic, Fix, Report
from meshctl.recipe.compose.folders import contents, is_dir, real, shipped
from meshctl.recipe.compose.overrides import is_override
from meshctl.recipe.compose.yaml_reader import MAX_BYTES
from meshctl.recipe.fixes import chosen, fixed
from meshctl.view.reports import STDIN
from meshctl.view.reports.text import shown

ROUNDS = 20
"""One after the other, mistakes that hide others."""
Held = Mapping[str, bytes]
Look = Callable[[Held], Looked]


@dataclass(frozen=True)
class Mended:
    looked: Looked
    """What is left."""
    done: tuple[Diagnostic, ...] = ()
    """What is no longer wrong."""
    before: Held = field(default_factory=dict)
    """The texts that were changed, by their real paths."""
    after: Held = field(default_factory=dict)


def fix(recipe: str, look: Look, held: Held) -> tuple[Looked, tuple[Diagnostic, ...]]:
    """What is left, and what is no longer wrong. `held` has what is read in place of files."""
    result = mended(recipe, look, held)
    if recipe == STDIN:
        ((path, data),) = held.items()
        _print(
            result.after.get(path, data) if len(data) <= MAX_BYTES else b""
        )  # of more, only the beginning was read
    elif failed := _written(result):
        print(f"error: {shown(failed)}", file=sys.stderr)
        return look(held), ()
    for line in told(recipe, result):
        print(shown(line), file=sys.stderr)
    return result.looked, result.done


def mended(recipe: str, look: Look, held: Held) -> Mended:
    """Looks and changes, again and again, in memory."""
    result = Mended(look(held), before=held, after=held)
    for _ in range(ROUNDS):
        files = _own(recipe, result.looked.report)
        right = chosen(result.looked.report.diagnostics, files)
        fixes = {fix for found in right for fix in found.fixes}
        paths = {files[fix.span.file]: fix.span.file for fix in fixes}
        before = {**_texts(path for path in paths if path not in result.before), **result.before}
        try:
            texts = {**before, **result.after}
            after = {**texts, **{path: _changed(texts[path], fixes, file) for path, file in paths.items()}}
        except (KeyError, ValueError):  # somebody else has changed it, or it cannot be read any more
            break
        looked = look(after) if after != texts else result.looked
        if after == texts or looked.code > max(result.looked.code, 1):
            break
        result = Mended(looked, (*result.done, *right), before, after)
    return result


def _own(recipe: str, report: Report) -> dict[str, str]:
    """The files of a report that may be changed -> their real paths."""
    cwd = Path.cwd()
    if is_dir(cwd / recipe):
        return {}
    home, ours, itself = real((cwd / recipe).parent), real(shipped()), real(cwd / recipe)
    paths = {file: real(cwd / file) for file, _ in report.sources if not is_override(file)}
    return {
        file: path
        for file, path in paths.items()
        if not _below(path, ours) and (path == itself or _below(path, home))
    }


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _texts(paths: Iterable[str]) -> dict[str, bytes]:
    texts = {}
    for path in paths:
        with suppress(OSError):
            texts[path] = contents(Path(path), MAX_BYTES)
    return texts


def _changed(data: bytes, fixes: Iterable[Fix], file: str) -> bytes:
    return fixed(data.decode(), (fix for fix in fixes if fix.span.file == file)).encode()


def told(recipe: str, result: Mended) -> Iterator[str]:
    """What was done, and what could be done by whoever reads it."""
    for fix in dict.fromkeys(fix for found in result.done for fix in found.fixes):
        yield f"fixed {fix.span.file}:{fix.span.line}:{fix.span.column}: {_change(fix)}"
    report = result.looked.report
    left = dict.fromkeys(
        fix
        for found in chosen(report.diagnostics, (file for file, _ in report.sources))
        for fix in found.fixes
    )
    for file, lines in report.sources:
        fixes = [fix for fix in left if fix.span.file == file]
        if fixes and is_override(file):
            yield f"{file} should be: {shlex.quote(fixed(lines[0], fixes))}"
        for fix in fixes if not is_override(file) else ():
            reason = (
                "a run keeps its recipe"
                if is_dir(Path(recipe))
                else f"the file is not in the folder of {recipe}"
            )
            yield f"not fixed {file}:{fix.span.line}:{fix.span.column}: {_change(fix)}: {reason}"


def _change(fix: Fix) -> str:
    if fix.was.isspace():
        return "spaces in place of tabs"
    return f"`{fix.was}` -> `{fix.text}`" if fix.text else f"`{fix.was}` is gone"


# Writing


def _written(result: Mended) -> str:
    """Writes files whole or not at all; why one could not be."""
    for path, data in result.after.items():
        try:
            if _texts([path]) != {path: result.before[path]}:
                return f"`{path}` is not written: somebody else has changed it"
            _replace(Path(path), data)
        except OSError as error:
            return f"`{path}` cannot be written: {why(error)}"
    return ""


def _replace(path: Path, data: bytes) -> None:
    """Beside the file, and then in its place, with its owner and its permissions."""
    there = path.stat()
    if not os.access(path, os.W_OK):
        raise PermissionError(0, "permission denied")
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            with suppress(OSError):  # only root may give a file to somebody else
                os.fchown(handle, there.st_uid, there.st_gid)
            os.fchmod(handle, there.st_mode & 0o7777)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def _print(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
