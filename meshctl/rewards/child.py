"""A worker process of a reward component: it scores one sample after another.

    parent                                           this process
    {path, functions}                        ->      imports the functions
                                             <-      {required, optional}, or {error}
    {column: value} of a sample              ->      calls the functions
                                             <-      [reward, {metric: number}, failure]

It is started by `exec`, so it shares neither threads nor open files with the worker. It ends with the
connection, and it is killed when the worker dies.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from meshctl.rewards.functions import Choice, FunctionError, Scorer, receive, send
from meshctl.run.process import die_with


def main(arguments: list[str]) -> None:
    """Runs the process. `arguments` are the pid of the parent and the descriptor of the connection."""
    parent, descriptor = map(int, arguments)
    die_with(parent, signal.SIGKILL)
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    try:
        scorer = _scorer(connection)
        while scorer is not None:
            score = scorer.score(receive(connection))
            send(connection, [score.reward, dict(score.metrics), score.failure])
    except (EOFError, BrokenPipeError):
        return  # the parent needs no further scores


def _scorer(connection: Connection) -> Scorer | None:
    given = receive(connection)
    sys.path[:] = given["path"]
    try:
        scorer = Scorer([Choice(*choice) for choice in given["functions"]])
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        is_known = isinstance(error, FunctionError)
        send(connection, {"error": str(error) if is_known else import_error(error)})
        return None
    send(connection, {"required": list(scorer.required), "optional": list(scorer.optional)})
    return scorer


def import_error(error: BaseException) -> str:
    """Returns the message for an exception of a user's module."""
    trace: Any = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace else ""
    return f"the reward function cannot be imported: {type(error).__name__}: {error}{place}"
