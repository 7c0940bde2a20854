"""Sources of text for language models: chats, plain and labelled texts, pairs of answers and prompts, from
jsonl, parquet, csv or `datasets`; and one-line wrappers of a user's torch `Dataset` or `DataLoader`.

    components:
      chats: {_target_: meshctl.data.Chat, group: train, args: {path: chats.jsonl, tokenizer: byte}}
    pipeline:
      batch: {call: chats.next, samples: 64}

A sample's row follows from its number, `seed` and the file alone. A run therefore resumes exactly, on any
mesh, and the number of samples is the only position to save. All token columns are `Ragged`, never padded.

    column, int64                         source              content of a row
    input_ids                             Chat, Text          tokens
    labels                                Chat, Text          `input_ids`, with -100 where nothing is learned
    position_ids                          Chat, Text, packed  position in its text; restarts in each segment
    segment_ids                           Chat, Text, packed  number of its text in the row, from 0
    input_ids, label                      Labelled            tokens, and the label of the whole text
    chosen_input_ids, chosen_labels       Pairs               prompt and preferred answer
    rejected_input_ids, rejected_labels   Pairs               prompt and other answer
    prompt_ids                            Prompts             prompt, up to the beginning of the answer

`labels` is aligned with `input_ids` and not shifted: the prediction at position t is compared with
`labels[t + 1]`. The first label of each text is -100, so rows and segments may be concatenated and shifted as
one sequence. The keys of `keep` are further columns, such as `desirable` for `kto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshctl.on_use import on_use

if TYPE_CHECKING:
    from meshctl.data.errors import DataError as DataError
    from meshctl.data.errors import RowError as RowError
    from meshctl.data.from_torch import FromDataLoader as FromDataLoader
    from meshctl.data.from_torch import FromDataset as FromDataset
    from meshctl.data.from_torch import FromIterable as FromIterable
    from meshctl.data.source import Chat as Chat
    from meshctl.data.source import Labelled as Labelled
    from meshctl.data.source import Pairs as Pairs
    from meshctl.data.source import Prompts as Prompts
    from meshctl.data.source import Text as Text
    from meshctl.data.streams import ChatStream as ChatStream
    from meshctl.data.streams import PairsStream as PairsStream
    from meshctl.data.streams import TextStream as TextStream

HOMES = {
    **dict.fromkeys(("DataError", "RowError"), "errors"),
    **dict.fromkeys(("FromDataLoader", "FromDataset", "FromIterable"), "from_torch"),
    **dict.fromkeys(("Chat", "Labelled", "Pairs", "Prompts", "Text"), "source"),
    **dict.fromkeys(("ChatStream", "PairsStream", "TextStream"), "streams"),
}
__all__ = list(HOMES)
__getattr__ = on_use(__name__, HOMES)
