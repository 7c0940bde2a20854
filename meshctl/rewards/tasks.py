"""`rewards.Tasks`: the tasks of reasoning-gym as prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from meshctl.argument_limits import check_arguments
from meshctl.data.errors import DataError
from meshctl.data.rows import Row, Rows
from meshctl.data.source import Prompts
from meshctl.rewards.checks import TASKS
from meshctl.runtime.extras import extra
from meshctl.text.english import did_you_mean

KEPT = ("solution", "entry")


class TaskRows:
    """The tasks of a dataset of reasoning-gym, each generated from its number when it is read."""

    def __init__(self, task: str, options: Mapping[str, Any], size: int, seed: int) -> None:
        """Raises `DataError` for an unknown dataset or option."""
        with extra("rewards"):
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
        if task not in DATASETS:
            help = did_you_mean(task, DATASETS)
            raise DataError(f"reasoning-gym has no task `{task}`{f': {help}' if help else ''}")
        self._task, self._options, self._size = task, dict(options), size
        try:
            self._dataset = reasoning_gym.create_dataset(
                task, **{**self._options, "size": size, "seed": seed}
            )
        except Exception as error:  # it raises what the check of each option raises
            raise DataError(f"task `{task}`: {str(error) or type(error).__name__}") from None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> Row:
        entry = self._dataset[number]
        return {
            "prompt": entry["question"],
            "solution": entry["answer"],
            "entry": {**entry, "options": self._options},
        }

    def place(self, number: int) -> str:
        return f"task {number} of `{self._task}`"


class Tasks(Prompts):
    """Generates tasks of reasoning-gym. The number of a sample determines its task.

    The columns are those of `Prompts`, `solution` with the right answer, or None for a task with several, and
    `entry` with the task, which the function `reasoning_gym` scores.
    """

    EXTRA: ClassVar = ("hf", "rewards")
    RETURNS: ClassVar = {"next": ("prompt_ids", "prompt", "solution", "entry")}

    def __init__(
        self,
        task: str,
        tokenizer: str,
        *,
        options: Mapping[str, Any] | None = None,
        size: int = 1_000_000,
        chat: bool = False,
        system: str = "",
        max_prompt_tokens: int | None = None,
        over_length: Literal["error", "drop"] = "error",
        seed: int = 0,
        holdout: float = 0,
        held_out: bool = False,
        chat_template: str = "",
        template_args: Mapping[str, Any] | None = None,
        workers: int = 0,
    ) -> None:
        """Opens the dataset. Raises `DataError` for an unknown task and for invalid arguments.

        The arguments are those of `Prompts`, without those of files, and these:

        task, options: the name of a dataset of reasoning-gym, and values of its config.
        size: the number of tasks of one epoch.
        seed: the seed of the tasks. Datasets with neighbouring seeds have tasks in common, so an exam reads
            other tasks of the same seed, by `holdout` and `held_out`.
        """
        check_arguments(TASKS, locals(), DataError)
        self._task_options, self._size = dict(options or {}), size
        self._task_seed = seed
        super().__init__(
            task,
            tokenizer,
            keep=KEPT,
            chat=chat,
            system=system,
            max_prompt_tokens=max_prompt_tokens,
            over_length=over_length,
            shuffle=False,
            holdout=holdout,
            held_out=held_out,
            chat_template=chat_template,
            template_args=template_args,
            workers=workers,
        )

    def _open(self, path: str, split: str) -> Rows:
        return TaskRows(path, self._task_options, self._size, self._task_seed)
