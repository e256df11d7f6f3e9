from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from tests.serving.conftest import byte_level_tokenizer, sentencepiece_tokenizer
from trtbuild.serving.text import Detokenizer, StopWords, TokenBytes

BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()
WORDS = st.sampled_from(["the", "fox", "é", "😀", "👩‍👩‍👧", "今日は", "naïve", " ", "\n", "\x00", "ab.", "�", "<eos>"])
TEXTS = st.lists(WORDS | st.text(max_size=5), max_size=12).map(" ".join)


def deltas(tokenizer: Any, tokens: list[int], stop_words: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """What is shown for each token, the last entry being the rest."""
    detokenizer = Detokenizer(TokenBytes(tokenizer), stop_words)
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


def test_special_tokens_are_not_text() -> None:
    tokens = BYTE_LEVEL.encode("<bos>fox<eos>").ids
    assert tokens[0] == 0 and tokens[-1] == 1
    assert "".join(deltas(BYTE_LEVEL, tokens)[0]) == "fox"


def reference_cut(text: str, words: tuple[str, ...]) -> str:
    """The text up to the stop word that is complete first, found letter by letter."""
    for end in range(len(text) + 1):
        starts = [end - len(word) for word in words if text[:end].endswith(word)]
        if starts:
            return text[: min(starts)]
    return text


@settings(max_examples=300)
@given(
    st.lists(st.text("ab😀", max_size=4), max_size=12),
    st.lists(st.text("ab😀", min_size=1, max_size=4), max_size=3).map(tuple),
)
@example(["ab", "a", "bc"], ("ababc",))
@example(["abcd"], ("bc", "abcd"))
def test_stop_words_cut_the_text_wherever_the_pieces_end(pieces: list[str], words: tuple[str, ...]) -> None:
    stop, shown = StopWords(words), ""
    for piece in pieces:
        shown += stop.push(piece)
        so_far = shown
        # What is held back is only ever the beginning of a stop word, and nothing of one is shown.
        assert reference_cut("".join(pieces), words).startswith(so_far)
        if stop.found:
            break
    shown += stop.finish()
    assert shown == reference_cut("".join(pieces), words)
    assert stop.found is any(word in "".join(pieces) for word in words)


def test_a_stop_word_over_token_borders_never_leaks() -> None:
    tokens = BYTE_LEVEL.encode("the quick END fox").ids
    shown, stopped = deltas(BYTE_LEVEL, tokens, ("END",))
    assert stopped and "".join(shown) == "the quick "
    shown, stopped = deltas(BYTE_LEVEL, BYTE_LEVEL.encode("the EN").ids, ("END",))
    assert not stopped and shown[-1] == "EN" and "".join(shown) == "the EN"


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
