"""Facts about the classes of this room that `validate` checks. It imports no library."""

from __future__ import annotations

from dataclasses import replace

from meshctl.argument_limits import Shipped

SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet")
SOURCE = Shipped(
    ranges={"max_length": ">= 2", "holdout": ">= 0", "workers": ">= 0"},
    excludes={"pack": ("keep",)},
    needs={"pack": ("max_length",), "held_out": ("holdout",)},
    choices={"over_length": "meshctl.data.examples.OVER_LENGTH"},
    longest="max_length",
    has_tokenizer=True,
    suffixes=SUFFIXES,
    downloads_data=True,
)
STREAM = Shipped(
    ranges={"max_length": ">= 2", "buffer": ">= 1", "workers": ">= 0"},
    excludes={"pack": ("keep",)},
    needs={"pack": ("max_length",)},
    choices={"over_length": "meshctl.data.examples.OVER_LENGTH"},
    longest="max_length",
    has_tokenizer=True,
    suffixes=SUFFIXES,
)
PROMPTS = Shipped(
    ranges={"max_prompt_tokens": ">= 2", "holdout": ">= 0", "workers": ">= 0"},
    needs={"held_out": ("holdout",)},
    longest="max_prompt_tokens",
    has_tokenizer=True,
    suffixes=SUFFIXES,
    downloads_data=True,
    columns=("prompt",),
)
SHIPPED = {
    "Source": SOURCE,
    "Chat": replace(SOURCE, columns=("messages",), renders_chats=True),
    "Text": replace(SOURCE, columns=("text",)),
    "Pairs": replace(SOURCE, columns=("chosen", "rejected")),
    "Stream": STREAM,
    "ChatStream": replace(STREAM, columns=("messages",), renders_chats=True),
    "TextStream": replace(STREAM, columns=("text",)),
    "PairsStream": replace(STREAM, columns=("chosen", "rejected")),
    "Prompts": PROMPTS,
}
