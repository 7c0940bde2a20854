"""What `launch RUN_DIR` reports about a recipe that differs from that of the checkpoint, without a start.

The following command writes the golden file again:

    python -m tests.cli.test_resume_differences
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from meshctl.cli.load import plan_of
from meshctl.engines.checks.resume import code_of
from meshctl.engines.supervise.attempt import begin
from meshctl.plan.resume_differences import facts_of
from meshctl.run.checkpoints import Manifest, describe
from meshctl.run.directory import RunDir
from tests.cli.commands import meshctl
from tests.cli.small_launch import PARTS, RECIPE

GOLDEN = Path(__file__).parent / "golden" / "resume_differences.txt"
MORE = """
class Other(Trainer):
    pass

class Stateless(Component):
    def __init__(self, rate: float = 0.1) -> None: ...

    @endpoint
    def look(self, batch: Batch) -> None: ...
"""
SAVED = RECIPE.replace("pipeline:", "  viewer: {_target_: parts.Stateless, group: two}\npipeline:").replace(
    "run:", "  views: {call: viewer.look, in: batch}\nrun:"
)
CASES = (
    "",
    "seed=3",
    "seed=3 run.accept=[seed]",
    "components.trainer.args.mood=slow",
    "components.trainer.args.mood=slow run.accept=[args]",
    "+components.viewer.args.rate=0.2 pipeline.batch.samples=8 run.steps=10",
    "components.trainer._target_=parts.Other",
    "components.trainer.frozen=true",
    "components.trainer.frozen=true run.accept=components",
    "+components.second={_target_:parts.Other,group:two} +pipeline.more={call:second.update,in:batch}",
    "+components.second={_target_:parts.Maker,group:one} +pipeline.more={call:second.next,samples:4}",
    "~pipeline.views ~components.viewer",
    "groups.two.ranks=4",
    "seed=3 components.trainer.args.mood=slow",
    "run.accept=[sead]",
)


def saved(folder: Path) -> RunDir:
    """Writes a run directory with a checkpoint of the recipe."""
    (folder / "parts.py").write_text(PARTS + MORE)
    (folder / "recipe.yaml").write_text(SAVED)
    ready = plan_of(str(folder / "recipe.yaml"), [f"run.dir={folder / 'runs'}"])
    run = begin(ready.plan, ready.composed, (str(folder),), None).run
    checkpoint = run.checkpoint(2)
    (checkpoint / "trainer").mkdir(parents=True)
    for name in ("one", "two"):
        (checkpoint / f"{name}.json").write_text('{"format": 2, "given": {}}')
    facts = {**facts_of(ready.plan), "code": code_of(ready.plan, [str(folder)])}
    Manifest(2, describe(checkpoint, checkpoint.glob("*.json")), facts).write(checkpoint)
    return run


def report(run: RunDir, overrides: str) -> str:
    done = meshctl(run.path.parent, "launch", "--dry-run", str(run.path), *overrides.split())
    shown = done.stderr.replace(str(run.path), "RUN").replace(f"{run.path.name}/", "RUN/")
    return f"$ {overrides}\n{shown}exit code {done.returncode}\n\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return saved(tmp_path_factory.mktemp("resumed"))


@pytest.mark.parametrize("overrides", CASES)
def test_a_difference_is_reported_as_in_the_golden_file(overrides: str, run: RunDir) -> None:
    assert report(run, overrides) in GOLDEN.read_text()


def test_changed_code_is_listed(tmp_path: Path) -> None:
    run = saved(tmp_path)
    (tmp_path / "parts.py").write_text(f"{PARTS}{MORE}\n# another version\n")
    found = report(run, "")
    assert "the code of `maker` changed; the code of `trainer` changed" in found and "exit code 0" in found


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    run = saved(tmp_path)
    found = report(run, "+components.trainer.args.api_key=abcdefgh12345678")
    assert "abcdefgh" not in found.split("\n", 1)[1].partition("  |")[0] and "exit code" in found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run_dir = saved(Path(folder))
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text("".join(report(run_dir, case) for case in CASES))
