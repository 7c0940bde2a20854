"""What the status of pods says about a run."""

from __future__ import annotations

from typing import Any

import pytest

from meshctl.engines.kubernetes.pods import Pod, Seen, reported

FAILED_SET = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}


def pod(name: str = "a", index: int = 0, deleted: bool = False, **status: Any) -> Pod:
    labels = {
        "jobset.sigs.k8s.io/replicatedjob-name": "nodes0",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    metadata = {"name": name, "labels": labels, "creationTimestamp": f"2026-01-01T00:00:0{len(name)}Z"}
    return Pod(
        {"metadata": {**metadata, **({"deletionTimestamp": "x"} if deleted else {})}, "status": status}
    )


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {"phase": "Failed", "containerStatuses": [{"state": state}]}


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (pod(phase="Running"), ""),
        (
            pod(**ended(137, "OOMKilled")),
            "OOMKilled: it needed more memory than its limit, /dev/shm included",
        ),
        (pod(**ended(139)), "was ended by signal 11 (exit code 139)"),
        (pod(**ended(5)), "has failed with exit code 5"),
        (pod(phase="Running", deleted=True), "was deleted"),
        (pod(phase="Failed", reason="Evicted", message="disk"), "Evicted: disk"),
        (
            pod(
                phase="Running",
                conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "Preempted"}],
            ),
            "Preempted",
        ),
        (
            pod(containerStatuses=[{"state": {"waiting": {"reason": "ErrImagePull", "message": "no x"}}}]),
            "ErrImagePull: no x",
        ),
        (
            pod(
                conditions=[
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}
                ]
            ),
            "Unschedulable: 0/3",
        ),
    ],
)
def test_the_problem_of_a_pod(one: Pod, problem: str) -> None:
    assert one.problem == problem


def test_pods_that_a_failed_job_set_deletes_are_not_lost() -> None:
    deleted, killed = pod("a", phase="Running", deleted=True), pod("b", **ended(137, "OOMKilled"))
    assert list(Seen({}, [deleted, killed]).lost()) == ["a", "b"]
    assert list(Seen(FAILED_SET, [deleted, killed]).lost()) == ["b"]


def test_the_head_is_the_newest_pod_of_index_0() -> None:
    pods = [pod("a"), pod("aaa"), pod("aa"), pod("aaaa", index=1)]
    head = Seen({}, pods).head("nodes0")
    assert head is not None and head.name == "aaa" and Seen({}, []).head("nodes0") is None


def test_the_state_in_one_line() -> None:
    waiting = pod("w", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}])
    assert (
        Seen({}, [waiting, pod("r", phase="Running")]).text({}) == "1 of 2 pods running; pod w: Unschedulable"
    )
    assert Seen({"spec": {"suspend": True}}, []).text({}) == "waits in its queue"
    assert Seen(None, []).text({"a": "was deleted"}) == "it was deleted; pod a was deleted"
    assert Seen(FAILED_SET, []).text({}) == "failed"
    assert reported({str(n): "was deleted" for n in range(6)}).endswith("pod 2 was deleted; 3 more pods")
