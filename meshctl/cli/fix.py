"""`validate --fix`: applies the fixes of diagnostics, checks again, and reports the remaining diagnostics.

Fixes are first applied in memory, in a few rounds, because one mistake can hide another. Then each file is
replaced at once: the recipe and the files of its folder that it includes, but no file of meshctl and no
recipe of a run directory. For a wrong override, the correct override is printed. The fixed text of a recipe
from standard input is written to stdout.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from meshctl.cli.load import CheckResult
from meshctl.cli.output import refuse, silence, why
from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Fix, Report
from meshctl.recipe.compose.folders import contents, is_dir, real, shipped
from meshctl.recipe.compose.yaml_reader import MAX_BYTES
from meshctl.recipe.compose.yaml_tree import is_override
from meshctl.recipe.fixes import apply, compatible
from meshctl.view.reports import STDIN
from meshctl.view.reports.text import shown

MAX_ROUNDS = 10
Texts = Mapping[str, bytes]
"""Real path of a file -> its content."""
Check = Callable[[Texts], CheckResult]
"""Checks the recipe, with these texts in place of the content of the files."""


@dataclass(frozen=True)
class Fixed:
    left: CheckResult
    """The check after the fixes."""
    done: tuple[Diagnostic, ...]
    """The diagnostics whose fixes were applied."""
    before: Texts
    """The texts of all files that were changed."""
    after: Texts


def fix(recipe: str, check: Check, held: Texts) -> tuple[CheckResult, tuple[Diagnostic, ...]]:
    """Fixes a recipe. Returns the check after the fixes and the fixed diagnostics. `held` maps real paths to
    texts that are used in place of files."""
    result = _fixed(recipe, check, held)
    if recipe == STDIN:
        ((path, data),) = held.items()
        _print(result.after[path] if len(data) <= MAX_BYTES else b"")  # only a part of a longer text was read
    elif failed := _write(result):
        refuse(failed)
        return check(held), ()
    for line in _report(recipe, result):
        print(shown(line), file=sys.stderr)
    return result.left, result.done


def _fixed(recipe: str, check: Check, held: Texts) -> Fixed:
    """Checks and applies fixes in memory until no fix is left."""
    result = Fixed(check(held), (), held, held)
    for _ in range(MAX_ROUNDS):
        files = _own_files(recipe, result.left.report)
        fixable = compatible(result.left.report.diagnostics, files)
        fixes = [fix for found in fixable for fix in found.fixes]
        before = _with_files(result.before, {files[fix.span.file] for fix in fixes})
        after = {**before, **result.after}
        try:
            for file in {fix.span.file for fix in fixes}:
                text = after[files[file]].decode()
                after[files[file]] = apply(text, (fix for fix in fixes if fix.span.file == file)).encode()
        except (KeyError, ValueError):  # the file has been changed or removed meanwhile
            break
        if not fixes or (left := check(after)).code > max(result.left.code, 1):
            break
        result = Fixed(left, (*result.done, *fixable), before, after)
    return result


def _own_files(recipe: str, report: Report) -> dict[str, str]:
    """Returns file name -> real path, for the files of a report that may be changed."""
    path = Path.cwd() / recipe
    if is_dir(path):
        return {}
    home, ours = real(path.parent), real(shipped())
    paths = {file: real(Path.cwd() / file) for file, _ in report.sources if not is_override(file)}
    return {
        file: found
        for file, found in paths.items()
        if not _is_below(found, ours) and (found == real(path) or _is_below(found, home))
    }


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _with_files(texts: Texts, paths: set[str]) -> dict[str, bytes]:
    found = dict(texts)
    for path in paths - texts.keys():
        with suppress(OSError):
            found[path] = contents(Path(path), MAX_BYTES)
    return found


def _report(recipe: str, result: Fixed) -> Iterator[str]:
    """Yields a line for each applied fix, and for each fix that only the user can make."""
    for fix in _fixes(result.done):
        yield f"fixed {_change(fix)}"
    report = result.left.report
    if report.diagnostics and not result.done and not any(found.fixes for found in report.diagnostics):
        yield "fixed nothing: no finding has exactly one safe correction"
    is_run = is_dir(Path(recipe))
    reason = (
        "--fix does not change the recipe of a run"
        if is_run
        else f"the file is not in the folder of {recipe}"
    )
    left = _fixes(compatible(report.diagnostics, dict(report.sources)))
    for file, lines in report.sources:
        fixes = [fix for fix in left if fix.span.file == file]
        if is_override(file):
            yield from [f"{file} must be changed to: {shlex.quote(apply(lines[0], fixes))}"] if fixes else []
        else:
            yield from (f"not fixed {_change(fix)}: {reason}" for fix in fixes)


def _fixes(diagnostics: Sequence[Diagnostic]) -> list[Fix]:
    return list(dict.fromkeys(fix for found in diagnostics for fix in found.fixes))


def _change(fix: Fix) -> str:
    change = f"`{fix.was}` -> `{fix.text}`" if fix.text else f"`{fix.was}` removed"
    if fix.was.isspace():
        change = "tabs -> spaces"
    return f"{fix.span.file}:{fix.span.line}:{fix.span.column}: {change}"


# Writing


def _write(result: Fixed) -> str:
    """Replaces the changed files, each at once. Returns the reason why one could not be written, or an empty
    string."""
    for path, data in result.after.items():
        try:
            if contents(Path(path), MAX_BYTES) != result.before[path]:
                return f"`{path}` was not written: another process has changed it"
            _replace(Path(path), data)
        except OSError as error:
            return f"`{path}` cannot be written: {why(error)}"
    return ""


def _replace(path: Path, data: bytes) -> None:
    """Replaces a file by renaming a new one over it. Keeps the owner and the permissions of the old file."""
    old = path.stat()
    if not os.access(path, os.W_OK):
        raise PermissionError(0, "permission denied")
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            with suppress(OSError):  # only root may change the owner of a file
                os.fchown(handle, old.st_uid, old.st_gid)
            os.fchmod(handle, old.st_mode & 0o7777)
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
