from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from tests.serving.conftest import byte_level_tokenizer, sentencepiece_tokenizer
from trtbuild.serving.text import _BYTE_OF, Detokenizer, TokenBytes

BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()
LETTERS = ["the", "fox", "é", "e\u0301", "naïve", "Привет, мир", "नमस्ते", "今日は", "한국어", "ab."]
EMOJI = ["😀", "👩\u200d👩\u200d👧", "🏳️\u200d🌈", "🇺🇦"]
OTHERS = [" ", "  ", "\n", "\r\n", "\x00", "\ufeff", "\u2028", "�", "<eos>"]
WORDS = st.sampled_from([*LETTERS, *EMOJI, *OTHERS])
TEXTS = st.lists(WORDS | st.text(max_size=5), max_size=12).map(" ".join)


def deltas(
    tokenizer: Any, tokens: list[int], stop_words: tuple[str, ...] = (), min_tokens: int = 0
) -> tuple[list[str], bool]:
    """What is shown for each token, the last entry being the rest."""
    detokenizer = Detokenizer(TokenBytes(tokenizer), stop_words, min_tokens)
    shown = []
    for token in tokens:
        shown.append(detokenizer.push(token))
        if detokenizer.stopped:
            break
    return [*shown, detokenizer.finish()], detokenizer.stopped


@given(TEXTS)
@example("😀")
def test_byte_level_deltas_are_the_full_decode(text: str) -> None:
    tokens = BYTE_LEVEL.encode(text).ids
    shown, _ = deltas(BYTE_LEVEL, tokens)
    full = BYTE_LEVEL.decode(tokens)
    assert "".join(shown) == full
    if "�" not in full:
        assert not any("�" in delta for delta in shown)


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 3), max_size=40))
def test_any_byte_level_tokens_give_the_full_decode(tokens: list[int]) -> None:
    """Also what no text encodes to: half characters, lone continuation bytes, special tokens, unknown ids."""
    shown, _ = deltas(BYTE_LEVEL, tokens)
    known = [token for token in tokens if token < BYTE_LEVEL.get_vocab_size()]
    assert "".join(shown) == BYTE_LEVEL.decode(known, skip_special_tokens=True)


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2: Path) -> Any:
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


@given(data=st.data())
def test_smollm2s_deltas_are_the_full_decode(smollm2_tokenizer: Any, data: st.DataObject) -> None:
    """Of texts, and of any of its 49,152 tokens, of which 17 are special."""
    tokens = smollm2_tokenizer.encode(data.draw(TEXTS)).ids
    shown, _ = deltas(smollm2_tokenizer, tokens)
    full = smollm2_tokenizer.decode(tokens, skip_special_tokens=True)
    assert "".join(shown) == full
    if "�" not in full:
        assert not any("�" in delta for delta in shown)
    tokens = data.draw(st.lists(st.integers(0, 49_151) | st.integers(0, 400), max_size=20))
    assert "".join(deltas(smollm2_tokenizer, tokens)[0]) == smollm2_tokenizer.decode(tokens, skip_special_tokens=True)


@given(TEXTS, TEXTS)
@example("the", "an")
def test_sentencepiece_deltas_continue_the_prompt(prompt: str, text: str) -> None:
    """The space before the first generated word is part of the answer: prompt and answer join to the full decode."""
    prompt_tokens = SENTENCEPIECE.encode("a" + prompt).ids
    tokens = SENTENCEPIECE.encode(text).ids
    shown, _ = deltas(SENTENCEPIECE, tokens)
    both = SENTENCEPIECE.decode(prompt_tokens + tokens)
    assert SENTENCEPIECE.decode(prompt_tokens) + "".join(shown) == both
    if "�" not in both:
        assert not any("�" in delta for delta in shown)


def test_a_character_appears_with_its_last_byte() -> None:
    tokens = [SENTENCEPIECE.token_to_id(f"<0x{byte:02X}>") for byte in "😀é".encode()]
    assert deltas(SENTENCEPIECE, tokens)[0] == ["", "", "", "😀", "", "é", ""]
    tokens = [BYTE_LEVEL.token_to_id(piece) for piece in ("ð", "Ł", "ĺ", "Ģ", "Ġ")]
    assert deltas(BYTE_LEVEL, tokens)[0] == ["", "", "", "😀", " ", ""]


def test_an_incomplete_character_is_flushed_at_the_end() -> None:
    tokens = [BYTE_LEVEL.token_to_id(piece) for piece in ("a", "ð", "Ł")]
    assert deltas(BYTE_LEVEL, tokens)[0] == ["a", "", "", "�"]
    assert BYTE_LEVEL.decode(tokens) == "a�"


@given(st.binary(max_size=40))
@example("😀".encode()[:3] + "é".encode() + b"\xff")
def test_bytes_that_are_no_text_are_replaced_part_by_part(data: bytes) -> None:
    """As Python and byte-level decoders do; tokenizers' ByteFallback gives up a whole run for one bad byte of it."""
    fallback = [SENTENCEPIECE.token_to_id(f"<0x{byte:02X}>") for byte in data]
    assert "".join(deltas(SENTENCEPIECE, fallback)[0]) == data.decode("utf-8", "replace")
    character = {byte: letter for letter, byte in _BYTE_OF.items()}
    pieces = [BYTE_LEVEL.token_to_id(character[byte]) for byte in data]
    assert "".join(deltas(BYTE_LEVEL, pieces)[0]) == data.decode("utf-8", "replace") == BYTE_LEVEL.decode(pieces)


def test_special_tokens_are_not_text() -> None:
    tokens = BYTE_LEVEL.encode("<bos>fox<eos>").ids
    assert tokens[0] == 0 and tokens[-1] == 1
    assert "".join(deltas(BYTE_LEVEL, tokens)[0]) == "fox"


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize("text", ["<tool>", "дом", "é!", "a b", " x ", "Ġx", "▁y", "<0x4F>z", "\n\n"])
def test_added_tokens_are_their_text_exactly(make: Any, text: str) -> None:
    """Though they read like the alphabet of bytes, a space, or a byte, which tokenizers' own decoders take them for."""
    tokenizer = make()
    tokenizer.add_tokens([AddedToken(text, normalized=False)])
    t, added = tokenizer.token_to_id("t"), tokenizer.token_to_id(text)
    assert "".join(deltas(tokenizer, [t, added, t])[0]) == f"t{text}t"


def test_an_added_token_that_is_a_piece_too_is_a_piece() -> None:
    """Gemma lists runs of spaces that its vocabulary has among its added tokens; the model means spaces by them."""
    tokenizer = sentencepiece_tokenizer()
    tokenizer.add_tokens([AddedToken("▁the", normalized=False), AddedToken("<0x41>", normalized=False)])
    tokens = [tokenizer.token_to_id(piece) for piece in ("a", "▁the", "<0x41>")]
    assert "".join(deltas(tokenizer, tokens)[0]) == "a theA" == tokenizer.decode(tokens)


def test_a_stop_word_over_token_borders_never_leaks() -> None:
    tokens = BYTE_LEVEL.encode("the quick END fox").ids
    shown, stopped = deltas(BYTE_LEVEL, tokens, ("END",))
    assert stopped and "".join(shown) == "the quick "
    shown, stopped = deltas(BYTE_LEVEL, BYTE_LEVEL.encode("the EN").ids, ("END",))
    assert not stopped and shown[-1] == "EN" and "".join(shown) == "the EN"


def test_stop_words_end_nothing_before_min_tokens() -> None:
    """By vLLM's rule: a stop word counts if a token after the first min_tokens completes it."""
    tokens = [BYTE_LEVEL.token_to_id(piece) for piece in "aENDbENDc"]
    texts = {least: "".join(deltas(BYTE_LEVEL, tokens, ("END",), least)[0]) for least in range(10)}
    # The first END ends with token 4, so min_tokens = 3 is the last that lets it count; the second ends with token 8.
    assert {texts[least] for least in range(4)} == {"a"}
    assert {texts[least] for least in range(4, 8)} == {"aENDb"}
    assert texts[8] == texts[9] == "aENDbENDc"
    # One that begins before and ends after counts, and its beginning was not shown.
    assert deltas(BYTE_LEVEL, tokens, ("END",), 2) == (["a", "", "", "", ""], True)
    # Special tokens are tokens of the answer like others.
    assert deltas(BYTE_LEVEL, [0, 0, 0, *tokens], ("END",), 4)[0] == ["", "", "", "a", "", "", "", ""]


def test_a_stop_word_is_not_found_in_a_special_token() -> None:
    """Neither as its text nor as a part of it; but where the model writes it out, and across one."""
    fox, spelt = BYTE_LEVEL.encode("fox").ids, [BYTE_LEVEL.token_to_id(piece) for piece in "<eos>"]
    for word, before in (("<eos>", "fox"), ("eos", "fox<")):
        shown, stopped = deltas(BYTE_LEVEL, [*fox, 1, *fox], (word,))
        assert "".join(shown) == "foxfox" and not stopped
        shown, stopped = deltas(BYTE_LEVEL, [*fox, *spelt, *fox], (word,))
        assert "".join(shown) == before and stopped
    shown, stopped = deltas(BYTE_LEVEL, [*fox, 1, *fox], ("xf",))
    assert "".join(shown) == "fo" and stopped


def test_a_stop_word_may_be_half_a_character_away() -> None:
    """What is held back as bytes and what is held back as text do not mix."""
    tokens = [SENTENCEPIECE.token_to_id(f"<0x{byte:02X}>") for byte in "é😀".encode()]
    assert deltas(SENTENCEPIECE, tokens, ("é😁",)) == (["", "", "", "", "", "é😀", ""], False)
    assert deltas(SENTENCEPIECE, tokens, ("é😀",)) == (["", "", "", "", "", "", ""], True)
    assert deltas(SENTENCEPIECE, tokens[:4], ("é😀",)) == (["", "", "", "", "é�"], False)


def test_the_cost_of_a_token_does_not_grow() -> None:
    tokens = BYTE_LEVEL.encode("the quick brown fox 😀 ").ids * 2000
    detokenizer = Detokenizer(TokenBytes(BYTE_LEVEL), ("never there", "nor this"))
    times = []
    for half in (tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]):
        start = time.perf_counter()
        for token in half:
            detokenizer.push(token)
        times.append(time.perf_counter() - start)
    assert times[1] < 3 * times[0]


def test_metaspace_and_unknown_decoders() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁a": 0, "b": 1}, "b"))
    tokenizer.decoder = decoders.Metaspace()
    assert "".join(deltas(tokenizer, [0, 1, 0])[0]) == " ab a"
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match=r'declares the decoder .*"WordPiece".*; known are ByteLevel'):
        TokenBytes(tokenizer)
    with pytest.raises(ValueError, match="none"):
        TokenBytes(Tokenizer(models.WordLevel({"a": 0}, "a")))
