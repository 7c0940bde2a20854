"""The shipped byte-level tokenizer, and the tokens to learn of chats in templates of several kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from meshctl.data.errors import DataError
from meshctl.data.tokenizer import ChatError, Tokenizer
from tests.data.byte_tokenizer import END, FOLDER, START, write

CHAT = [
    {"role": "system", "content": "short"},
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "é2"},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
]
PLAIN = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer("byte")


def with_template(tmp_path: Path, text: str) -> Tokenizer:
    path = tmp_path / "template.jinja"
    path.write_text(text)
    return Tokenizer("byte", str(path))


def learned_text(tokenizer: Tokenizer, start: int = 0) -> list[str]:
    """The runs of learned tokens as texts."""
    ids, learned = tokenizer.chat(CHAT, None, [n for n in (2, 4) if n >= start])
    shown = tokenizer.decode([id if one else 0 for id, one in zip(ids, learned, strict=True)])
    return [run for run in shown.split("\0") if run]


def test_the_shipped_files_are_those_that_the_code_writes(tmp_path: Path) -> None:
    write(tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert sum(len(text) for text in written.values()) < 1_000_000


def test_bytes_are_tokens(tokenizer: Tokenizer) -> None:
    text = "Hé \u2028\n\x00 日本"
    assert tokenizer.text(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.text(text)) == text
    assert tokenizer.ended_text("a") == tokenizer.ended_text("a<|im_end|>") == [97, 258]
    assert len(tokenizer) == 259


@pytest.mark.parametrize("adds", ["", "first", "last", "first last"])
def test_one_first_token_and_no_end_token_in_a_prompt(
    tmp_path: Path, adds: str, caplog: pytest.LogCaptureFixture
) -> None:
    from tokenizers import processors

    made = Tokenizer("byte")._tokenizer
    single = [START] * ("first" in adds) + ["$A"] + [END] * ("last" in adds)
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(START, 257), (END, 258)]
    )
    made.save_pretrained(tmp_path)
    tokenizer = Tokenizer(str(tmp_path))
    first = [257] * ("first" in adds)
    assert tokenizer.text("a") == [*first, 97] and tokenizer.text("a", is_start=False) == [97]
    assert tokenizer.ended_text("a") == [*first, 97, 258]
    assert not caplog.messages
    for _ in range(2):
        assert tokenizer.text("<|im_start|>a") == [257, 97]
    [warning] = caplog.messages
    assert warning.startswith("a text contains `<|im_start|>`, which counts as a special token")


def test_what_the_template_marks_is_learned(tokenizer: Tokenizer) -> None:
    assert learned_text(tokenizer) == ["é2<|im_end|>", "4<|im_end|>"]
    assert learned_text(tokenizer, start=4) == ["4<|im_end|>"]


def test_a_template_without_marks_gives_the_same_labels(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plain = with_template(tmp_path, PLAIN)
    assert plain.chat(CHAT, None, [2, 4])[0] == tokenizer.chat(CHAT, None, [2, 4])[0]
    assert learned_text(plain) == ["é2<|im_end|>\n", "4<|im_end|>\n"]
    assert learned_text(plain, start=4) == ["4<|im_end|>\n"]


def test_variables_reach_the_template(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(
        "{{ greeting }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    made = Tokenizer("byte", str(path), {"greeting": "Hello!"})
    ids, learned = made.chat(CHAT[2:3], None, [0])
    assert made.decode(ids) == "Hello!é2" and learned == [False] * 6 + [True] * 3


def test_an_error_of_a_template_is_one_line(tmp_path: Path) -> None:
    for text, expected in (
        ("{{ raise_exception('roles must alternate') }}", "fails: roles must alternate"),
        ("{% for %}", "fails: "),
        ("{{ messages[99].content }}", "fails: "),
    ):
        with pytest.raises(ChatError, match=expected) as raised:
            with_template(tmp_path, text).chat(CHAT, None, [2])
        assert "\n" not in str(raised.value)


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    bare = Tokenizer(str(tmp_path))
    with pytest.raises(DataError, match="has no chat template: name a file with one in `chat_template`"):
        bare.check_template()
    assert bare.text("a") == [97]


def test_what_does_not_exist_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    for name in (str(tmp_path / "empty"), "nobody/nothing"):
        with pytest.raises(DataError, match=f"tokenizer `{name}` cannot be loaded: ") as raised:
            Tokenizer(name)
        assert "\n" not in str(raised.value)
    with pytest.raises(DataError, match=r"no chat template 'none\.jinja'"):
        Tokenizer("byte", "none.jinja")
