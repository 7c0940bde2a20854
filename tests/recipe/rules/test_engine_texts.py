"""The rules about the texts of engines, which scripts, command lines and manifests contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.engines.engine import CannotStart
from meshctl.engines.ssh import hosts_in
from tests.recipe.rules import facts

RECIPE = """\
groups: {{train: {{ranks: 8, device_type: cuda, program: train.py}}}}
run: {{time_limit: 6h}}
engine: {engine}
"""
JOB = "jobset: {{image: a/b, {0}}}"


def found(folder: Path, engine: str) -> list[tuple[str, str]]:
    report = facts.reported(folder, RECIPE.format(engine=f"{{{engine}}}"), train="")
    return [(one.code, one.help) for one in report]


CONTROL = ("a\\nhostname", "a\\rb", "a\\eb", "a\\u2028b", "\\x85")


@pytest.mark.parametrize(
    ("engine", "texts"),
    [
        ('slurm: {{partition: "{0}"}}', CONTROL),
        ('slurm: {{constraint: "{0}"}}', CONTROL[:1]),
        ('slurm: {{container_mounts: ["/a:/b{0}"]}}', CONTROL[:1]),
        ('ssh: {{hosts: ["a{0}"]}}', CONTROL[:1]),
        ('ssh: {{hosts: [a], ssh_options: ["-p {0}"]}}', CONTROL[:1]),
        ('ray: {{address: "{0}"}}', CONTROL[:1]),
        ('ray: {{resources: {{"{0}": 1}}}}', CONTROL[:1]),
        ('jobset: {{image: "{0}"}}', CONTROL[:1]),
        ('jobset: {{image: a, volumes: {{v: {{claim: a, path: "/{0}"}}}}}}', CONTROL[:1]),
    ],
)
def test_a_control_character_is_refused(tmp_path: Path, engine: str, texts: tuple[str, ...]) -> None:
    for text in texts:
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
        ("slurm: {time: 4:00}", "MC610", "write 90m, 4h"),
        (JOB.format("time_limit: 4h"), "MC587", "give the job more than 6h"),
        ("slurm: {time: 8h}", "", ""),
        ("slurm: {time: 4h, requeue: true}", "", ""),
        ("slurm: {time: unlimited}", "", ""),
        ('slurm: {setup: "a\\nb"}', "", ""),
        (JOB.format('annotations: {note: "a\\nb"}'), "", ""),
        (JOB.format("resources: {cpu: 500m, memory: 1.5Ti, rdma/hca: 1, ephemeral-storage: 2e9}"), "", ""),
        (JOB.format("device_resources: {cuda: amd.com/gpu}, resources: {nvidia.com/gpu: 4}"), "", ""),
    ],
)
def test_other_texts(tmp_path: Path, engine: str, code: str, help: str) -> None:
    reported = found(tmp_path, engine)
    assert [one for one, _ in reported] == [code] * bool(code)
    assert all(help in advice for _, advice in reported)


def test_a_host_in_a_file_is_no_option(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\n-oProxyCommand=x\n")
    with pytest.raises(CannotStart, match="lists -oProxyCommand=x, which ssh reads as an option"):
        hosts_in(tmp_path / "hosts")
