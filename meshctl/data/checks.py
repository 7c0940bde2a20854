"""Facts about the classes of this room that `validate` checks. It imports no library."""

from __future__ import annotations

from dataclasses import replace

from meshctl.argument_limits import Shipped

CHATS = (("messages",), ("conversations",), ("prompt", "completion"), ("instruction", "output"))
"""The columns of each form of a chat. The first form whose columns a row has is read."""
SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet", ".csv")
SOURCE = Shipped(
    ranges={"max_length": ">= 2", "holdout": ">= 0", "workers": ">= 0", "bad_rows_limit": ">= 0, whole"},
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
    ranges={
        "max_prompt_tokens": ">= 2",
        "holdout": ">= 0",
        "workers": ">= 0",
        "bad_rows_limit": ">= 0, whole",
    },
    needs={"held_out": ("holdout",)},
    longest="max_prompt_tokens",
    has_tokenizer=True,
    suffixes=SUFFIXES,
    downloads_data=True,
    forms=(("prompt",),),
)
SHIPPED = {
    "Source": SOURCE,
    "Chat": replace(SOURCE, forms=CHATS, renders_chats=True),
    "Text": replace(SOURCE, forms=(("text",),)),
    "Labelled": replace(SOURCE, forms=(("text", "label"),)),
    "Pairs": replace(SOURCE, forms=(("chosen", "rejected"),)),
    "Stream": STREAM,
    "ChatStream": replace(STREAM, forms=CHATS, renders_chats=True),
    "TextStream": replace(STREAM, forms=(("text",),)),
    "PairsStream": replace(STREAM, forms=(("chosen", "rejected"),)),
    "Prompts": PROMPTS,
}
