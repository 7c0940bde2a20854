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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from meshctl.cli.load import CheckResult
from meshctl.cli.output import refuse, silence, why
from meshctl.diagnostics import Diagnostic, Fix, Report
from meshctl.recipe.compose.folders import contents, is_dir, real, shipped
from meshctl.recipe.compose.yaml_reader import MAX_BYTES
from meshctl.recipe.compose.yaml_tree import is_override
from meshctl.recipe.fixes import apply, compatible
from meshctl.run.directory import replaced
from meshctl.view.reports import STDIN
from meshctl.view.reports.text import shown

MAX_ROUNDS = 10
Texts = Mapping[str, bytes]
"""Real path of a file -> its content."""
Check = Callable[[Texts], CheckResult]
"""Checks the recipe, with these texts in place of the content of the files."""


def fix(recipe: str, check: Check, held: Texts) -> tuple[CheckResult, tuple[Diagnostic, ...]]:
    """Fixes a recipe. Returns the check after the fixes and the fixed diagnostics. `held` maps real paths to
    texts that are used in place of files."""
    left, before, after, done = check(held), dict(held), dict(held), tuple[Diagnostic, ...]()
    for _ in range(MAX_ROUNDS):
        files = _own_files(recipe, left.report)
        fixable = compatible(left.report.diagnostics, files)
        texts, fixes = dict(after), _fixes(fixable)
        try:
            for file in {fix.span.file for fix in fixes}:
                path = files[file]
                if path not in texts:
                    texts[path] = before[path] = contents(Path(path), MAX_BYTES)
                text = apply(texts[path].decode(), (fix for fix in fixes if fix.span.file == file))
                texts[path] = text.encode()
        except (OSError, ValueError):  # the file has been changed or removed meanwhile
            break
        if not fixes or (checked := check(texts)).code > max(left.code, 1):
            break
        left, after, done = checked, texts, (*done, *fixable)
    if recipe == STDIN:
        [(path, data)] = held.items()
        try:  # of a longer text, only a part was read
            sys.stdout.buffer.write(after[path] if len(data) <= MAX_BYTES else b"")
            sys.stdout.flush()
        except BrokenPipeError:
            silence(sys.stdout)
    elif failed := _write(before, after):
        refuse(failed)
        return check(held), ()
    for line in _report(left.report, done):
        print(shown(line), file=sys.stderr)
    return left, done


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


def _report(report: Report, done: Sequence[Diagnostic]) -> Iterator[str]:
    for fix in _fixes(done):
        yield f"fixed {_change(fix)}"
    if report.diagnostics and not done and not any(found.fixes for found in report.diagnostics):
        yield "fixed nothing: no finding has exactly one safe correction"
    left = _fixes(compatible(report.diagnostics, dict(report.sources)))
    for file, lines in report.sources:
        fixes = [fix for fix in left if fix.span.file == file]
        if fixes and is_override(file):
            yield f"{file} must be changed to: {shlex.quote(apply(lines[0], fixes))}"
        else:
            yield from (
                f"not fixed {_change(fix)}: the file is not in the folder of the recipe" for fix in fixes
            )


def _fixes(diagnostics: Sequence[Diagnostic]) -> list[Fix]:
    return list(dict.fromkeys(fix for found in diagnostics for fix in found.fixes))


def _change(fix: Fix) -> str:
    change = f"`{fix.was}` -> `{fix.text}`" if fix.text else f"`{fix.was}` removed"
    return f"{fix.span.file}:{fix.span.line}:{fix.span.column}: {change}"


def _write(before: Texts, after: Texts) -> str:
    """Replaces the changed files, each at once. Returns the reason why one could not be written, or an empty
    string."""
    for name, data in after.items():
        path = Path(name)
        try:
            if contents(path, MAX_BYTES) != before[name]:
                return f"`{path}` was not written: another process has changed it"
            if not os.access(path, os.W_OK):
                return f"`{path}` cannot be written: permission denied"
            with replaced(path) as part:
                old = path.stat()
                part.touch(0o600, exist_ok=False)  # nobody else reads a part of a private file
                part.write_bytes(data)
                with suppress(OSError):  # only root may change the owner of a file
                    os.chown(part, old.st_uid, old.st_gid)
                part.chmod(old.st_mode & 0o7777)
        except OSError as error:
            return f"`{path}` cannot be written: {why(error)}"
    return ""
