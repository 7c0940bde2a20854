"""Encodes every row of ready-made sources and reports those that cannot be used, for `validate --data`.

    python -P -m meshctl.data.examination < request > answer

    request    {"path": [FOLDER, ...], "sources": {NAME: {"class": "Chat", "args": {...}}}}
    answer     {NAME: {"rows": 120, "bad": 3, "first": ["chats.jsonl:5: ...", ...], "failure": ""}}

The folders of `path` follow the installed packages, so no module of the user is imported.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from meshctl import data
from meshctl.data.errors import DataError
from meshctl.data.source import MAX_NAMED

Answer = dict[str, Any]


def examined(kind: str, args: Mapping[str, Any]) -> Answer:
    """Returns the number of rows of a source, the number of those that cannot be used, the first problems,
    and the reason why the source cannot be opened or read further."""
    rows, bad, problems, failure = 0, 0, list[str](), ""
    try:
        source = getattr(data, kind)(**args)
        for problem in source.problems():
            rows += 1
            bad += bool(problem)
            if problem and len(problems) < MAX_NAMED:
                problems.append(problem)
    except DataError as error:
        failure = str(error)
    return {"rows": rows, "bad": bad, "first": problems, "failure": failure}


def main() -> None:
    request = json.load(sys.stdin)
    logging.disable()
    sys.path.extend(request["path"])
    with redirect_stdout(sys.stderr):
        answer = {name: examined(one["class"], one["args"]) for name, one in request["sources"].items()}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
