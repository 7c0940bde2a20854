"""Writes the byte-level tokenizer that meshctl ships: python -m tests.data.byte_tokenizer

Token ids below 256 are bytes. There are no merges, so every text has as many tokens as bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.paths import PACKAGE

FOLDER = PACKAGE / "data" / "byte_tokenizer"
PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- set text = (message['content'] or '') + ((message['tool_calls'] | tojson) if message['tool_calls'] else '') %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{- text + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- text + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def characters() -> list[str]:
    """Returns the character that stands for each byte in a byte-level tokenizer, as in GPT-2."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    found = {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [found[byte] for byte in range(256)]


def write(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: byte for byte, character in enumerate(characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in (PAD, START, END)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
