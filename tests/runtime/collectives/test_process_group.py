"""The timeouts of torch's process groups."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import distributed_c10d

from meshctl.runtime.collectives.collective import RUNNING
from meshctl.runtime.world import lift_timeouts


def test_groups_that_torch_makes_itself_have_no_timeout_that_a_job_reaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed_c10d, "default_pg_timeout", timedelta(minutes=30))
    monkeypatch.setattr(distributed_c10d, "default_pg_nccl_timeout", None)
    lift_timeouts()
    assert distributed_c10d.default_pg_timeout == RUNNING
    assert distributed_c10d.default_pg_nccl_timeout is None, "a torch without NCCL"
    monkeypatch.setattr(distributed_c10d, "default_pg_nccl_timeout", timedelta(minutes=10))
    lift_timeouts()
    assert distributed_c10d.default_pg_nccl_timeout == RUNNING
