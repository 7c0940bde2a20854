"""The ids and marks of the samples that an endpoint returns, where they follow from those of its input."""

from __future__ import annotations

from torch import Tensor

from meshctl.runtime.batch.batch import MARK, Batch, BatchError
from meshctl.runtime.batch.ids import children
from meshctl.topology.samples import Grid


def identify(result: Batch, given: Batch | None) -> Batch:
    """Returns the result of an endpoint with ids and marks: its own where it has them, else those of its
    input.

    Raises `BatchError` if a result without ids has neither one row nor k rows for each sample of the
    input.
    """
    if given is None:
        return result
    if not result.has_ids:
        times, rest = divmod(len(result), len(given)) if len(given) else (1, len(result))
        if rest or (len(result) and not times):
            raise BatchError(
                f"{len(result)} rows were made from {len(given)} samples: "
                "state their ids with batch.where, batch.take or ids="
            )
        if times > 1:
            listed = children(given.ids, times)
            result = Batch(
                result.columns, ids=listed, group_depth=listed.shape[1] - 1, most=given.most * times
            )
        else:
            ids: Tensor | Grid | None
            if not times:
                ids = given.ids[:0]
            elif given.has_ids:
                ids = given.known_ids
            else:
                ids = given.ids
            result = Batch(result.columns, ids=ids, group_depth=given.group_depth, most=given.most)
    missing = [name for name in given.columns if name.startswith(MARK) and name not in result]
    if not missing:
        return result
    depth = given.ids.shape[1]
    row_of = {tuple(id): row for row, id in enumerate(given.ids.tolist())}
    try:
        rows = [row_of[tuple(id[:depth])] for id in result.ids.tolist()]
    except KeyError:
        return result  # the endpoint made samples that do not descend from its input
    marks = given.select().take(rows)
    return result.with_columns(**{name: marks[name] for name in missing})
