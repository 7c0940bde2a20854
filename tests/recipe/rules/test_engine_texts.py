"""The rules about the texts of engines, which scripts, command lines and manifests contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.engines.engine import CannotStart
from meshctl.engines.ssh import hosts_in
from meshctl.recipe.load import load

RECIPE = """\
groups: {{train: {{ranks: 8, device_type: cuda, program: train.py}}}}
run: {{time_limit: 6h}}
engine: {engine}
"""
JOB = "jobset: {{image: a/b, {0}}}"


def found(folder: Path, engine: str) -> list[tuple[str, str]]:
    (folder / "train.py").write_text("")
    (folder / "recipe.yaml").write_text(RECIPE.format(engine=f"{{{engine}}}"))
    report = load("recipe.yaml", [], folder, environ={}).report
    return [(one.code, one.help) for one in report.diagnostics]


@pytest.mark.parametrize("text", ["a\\nhostname", "a\\rb", "a\\eb", "a\\u2028b", "\\x85"])
@pytest.mark.parametrize(
    "engine",
    [
        'slurm: {{partition: "{0}"}}',
        'slurm: {{constraint: "{0}"}}',
        'slurm: {{container_mounts: ["/a:/b{0}"]}}',
        'ssh: {{hosts: ["a{0}"]}}',
        'ssh: {{hosts: [a], ssh_options: ["-p {0}"]}}',
        'ray: {{address: "{0}"}}',
        'ray: {{resources: {{"{0}": 1}}}}',
        'jobset: {{image: "{0}"}}',
        'jobset: {{image: a, volumes: {{v: {{claim: a, path: "/{0}"}}}}}}',
    ],
)
def test_a_control_character_is_refused(tmp_path: Path, engine: str, text: str) -> None:
    [(code, help)] = found(tmp_path, engine.format(text))
    assert code == "MC613" and "in one line" in help


@pytest.mark.parametrize(
    ("engine", "code", "help"),
    [
        ("ssh: {hosts: [-oProxyCommand=x]}", "MC613", "see `engine.ssh.ssh_options`"),
        (JOB.format("resources: {nvidia.com/gpu: 4}"), "MC630", "remove it"),
        (JOB.format("device_resources: {cuda: amd.com/gpu}, resources: {amd.com/gpu: 4}"), "MC630", "remove"),
        (JOB.format("resources: {memory: 200GB}"), "MC614", "write 200Gi"),
        (JOB.format("resources: {memory: 1.5 TB}"), "MC614", "write 1.5Ti"),
        (JOB.format("resources: {memory: 200}"), "MC614", "write 200Gi"),
        (JOB.format("resources: {memory: 200m}"), "MC614", "write 200Gi"),
        (JOB.format("resources: {cpu: -3}"), "MC614", "write 32 or 500m"),
        (JOB.format('labels: {a: "b\\nc"}'), "MC623", "letters"),
        ("slurm: {time: 4h}", "MC587", "give the job more than 6h"),
        ("slurm: {time: 4:00}", "MC610", "write 4h00m, or 4m00s"),
        (JOB.format("time_limit: 4h"), "MC587", "give the job more than 6h"),
    ],
)
def test_other_texts(tmp_path: Path, engine: str, code: str, help: str) -> None:
    [(reported, advice)] = found(tmp_path, engine)
    assert reported == code and help in advice


@pytest.mark.parametrize(
    "engine",
    [
        "slurm: {time: 8h}",
        "slurm: {time: 4h, requeue: true}",
        "slurm: {time: unlimited}",
        'slurm: {setup: "a\\nb"}',
        JOB.format('annotations: {note: "a\\nb"}'),
        JOB.format("resources: {cpu: 500m, memory: 1.5Ti, rdma/hca: 1, ephemeral-storage: 2e9}"),
        JOB.format("device_resources: {cuda: amd.com/gpu}, resources: {nvidia.com/gpu: 4}"),
    ],
)
def test_what_is_right(tmp_path: Path, engine: str) -> None:
    assert found(tmp_path, engine) == []


def test_a_host_in_a_file_is_no_option(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\n-oProxyCommand=x\n")
    with pytest.raises(CannotStart, match="lists -oProxyCommand=x, which ssh reads as an option"):
        hosts_in(tmp_path / "hosts")
