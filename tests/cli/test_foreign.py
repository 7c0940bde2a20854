"""`init --from` and `lint` as a user sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import call

TRAIN = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
  data.train_files=train.parquet data.train_batch_size=64 \\
  actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=3 \\
  actor_rollout_ref.no_such_key=1 \\
  trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.total_training_steps=$STEPS
"""


def test_a_configuration_becomes_a_recipe_and_every_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(TRAIN)
    done = call(tmp_path, "init", "job", "--from", "train.sh")
    assert done.returncode == 1 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert " ! actor_rollout_ref.no_such_key: 1" in lines
    assert " ! trainer.total_training_steps: $STEPS" in lines
    assert "   data.train_batch_size: 64" in lines
    assert lines[lines.index("   data.train_batch_size: 64") + 1] == "     -> pipeline.batch.samples: 64"
    assert "What is marked with ! changes the training." in lines and max(map(len, lines)) <= 80
    assert "mistakes in the configuration itself: meshctl lint train.sh\n" in done.stdout
    text = (tmp_path / "job.yaml").read_text()
    assert "name: job\n" in text and "# From train.sh, for verl" in text
    again = call(tmp_path, "init", "job", "--from", "verl", "train.sh")
    assert again.returncode == 2 and "already exists" in again.stderr
    assert call(tmp_path, "init", "job", "--from", "verl", "train.sh", "--force").returncode == 1


def test_lint_reports_at_the_lines_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(TRAIN)
    done = call(tmp_path, "lint", "train.sh", "--format", "concise")
    assert done.returncode == 1 and "train.sh:5:" in done.stdout, done.stdout
    assert "tensor_model_parallel_size" in done.stdout
    assert ", 1 value unknown, as verl" in call(tmp_path, "lint", "train.sh").stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["lint", "none.yaml"], 3, "cannot be read: no such file"),
        (["lint", "other.yaml"], 3, "the system of `other.yaml` is not recognised"),
        (["lint", "train.sh", "--as", "keras"], 2, "--as must be `verl`, `trl`"),
        (["lint", "train.sh", "--format", "xml"], 2, "xml"),
        (["init", "x", "--from", "verl"], 3, "no file is given"),
        (["init", "x", "train.sh"], 2, "only for --from"),
        (["init", "no/such/ä ", "--from", "train.sh"], 2, "is not a valid name"),
        (["init", "x", "--from", "verll", "train.sh"], 3, "`verll` is neither a file nor a format"),
        (["init", "x", "--from", "trl", "train.sh"], 3, "there is no key of TRL"),
        (["init", "x", "--kind", "ppo", "--from", "train.sh"], 2, "states what other options choose"),
        (["init", "verl", "--force", "--from", "verl.yaml"], 2, "`verl.yaml` is the configuration itself"),
        (["lint", "two.sh"], 3, "there are several trainings of verl"),
        (["lint", "cut.sh"], 3, "`a.b=1` begins a command: the line before it is a comment"),
    ],
)
def test_wrong_usage_is_one_message(tmp_path: Path, words: list[str], code: int, message: str) -> None:
    (tmp_path / "train.sh").write_text(TRAIN)
    (tmp_path / "other.yaml").write_text("a: 1\n")
    (tmp_path / "verl.yaml").write_text("algorithm: {adv_estimator: grpo}\n")
    (tmp_path / "two.sh").write_text(TRAIN + TRAIN)
    (tmp_path / "cut.sh").write_text("python3 -m verl.trainer.main_ppo x.y=1 \\\n  # a comment \\\n  a.b=1\n")
    done = call(tmp_path, *words)
    assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
