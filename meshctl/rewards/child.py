"""A worker process of a reward component: it scores one sample after another.

parent                                           this process
{path, functions}                        ->      imports the functions
                                         <-      {required, optional}, or {error}
{column: value} of a sample              ->      calls the functions
                                         <-      [reward, {metric: number}, failure]
"""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from meshctl.rewards.functions import Choice, FunctionError, Scorer
from meshctl.runtime.child_process import import_error, receive, send


def main(connection: Connection, first: Mapping[str, Any]) -> None:
    """Runs the process, until the parent closes the connection."""
    try:
        scorer = Scorer([Choice(*choice) for choice in first["functions"]])
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        is_known = isinstance(error, FunctionError)
        send(connection, {"error": str(error) if is_known else import_error("reward function", error)})
        return
    send(connection, {"required": list(scorer.required), "optional": list(scorer.optional)})
    while True:
        score = scorer.score(receive(connection))
        send(connection, [score.reward, dict(score.metrics), score.failure])
