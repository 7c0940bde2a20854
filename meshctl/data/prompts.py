"""`Prompts`: prompts to which a sampler generates answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from meshctl.argument_limits import check_arguments
from meshctl.data.checks import PROMPTS
from meshctl.data.encoders import Encoder, PromptsEncoder
from meshctl.data.errors import DataError
from meshctl.data.source import Source
from meshctl.data.tokenizer import Tokenizer
from meshctl.runtime.batch.batch import Column

OWN = ("prompt_ids", "prompt")


class Prompts(Source):
    """Reads rows with the key `prompt`, a text or a list of messages, and the optional key `tools`.

    A list of messages is rendered by the chat template, with the beginning of the assistant's answer. A text
    is used as it is. The columns are `prompt_ids` with the tokens, and `prompt` with the rendered text.
    """

    ENCODER = PromptsEncoder
    RETURNS: ClassVar[Mapping[str, tuple[str, ...]]] = {"next": ("prompt_ids", "prompt", "args.keep")}

    def __init__(
        self,
        path: str,
        tokenizer: str,
        *,
        split: str = "train",
        fields: Mapping[str, str] | None = None,
        keep: Sequence[str] = (),
        chat: bool = False,
        system: str = "",
        max_prompt_tokens: int | None = None,
        over_length: Literal["error", "drop"] = "error",
        shuffle: bool = True,
        seed: int = 0,
        holdout: float = 0,
        held_out: bool = False,
        chat_template: str = "",
        template_args: Mapping[str, Any] | None = None,
        workers: int = 0,
    ) -> None:
        """Opens the data. Raises `DataError` for unreadable data and for invalid arguments.

        The arguments are those of `Source`, without those of labels and packs, and these:

        chat: whether a prompt that is a text is rendered as the message of a user.
        system: a message with the role `system` for each chat that has none.
        max_prompt_tokens, over_length: the most tokens of a prompt, and what happens to longer ones: `error`
            or `drop`.
        """
        check_arguments(PROMPTS, locals(), DataError)
        if taken := [name for name in keep if name in OWN]:
            raise DataError(f"`keep` names `{taken[0]}`, which is a column already")
        self._as_chat, self._system = chat, system
        super().__init__(
            path,
            tokenizer,
            split=split,
            fields=fields,
            keep=keep,
            max_length=max_prompt_tokens,
            over_length=over_length,
            shuffle=shuffle,
            seed=seed,
            holdout=holdout,
            held_out=held_out,
            chat_template=chat_template,
            template_args=template_args,
            workers=workers,
        )

    def _encoder(self, tokenizer: Tokenizer, learn: str, fields: Mapping[str, str]) -> Encoder:
        self._prompts = PromptsEncoder(tokenizer, fields, self._as_chat, self._system)
        return self._prompts

    def _further_columns(self, rows: Sequence[int]) -> dict[str, Column]:
        return {"prompt": [self._prompts.text(self._rows[row]) for row in rows]}
