from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import sentencepiece_tokenizer
from trtbuild.serving.errors import RequestError
from trtbuild.serving.tokenizer import Tokenizer

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def make(template: Any = None, *, file: str | None = None, **config: Any) -> Tokenizer:
        tokenizer = sentencepiece_tokenizer()
        if config.pop("bos_processor", False):
            from tokenizers.processors import TemplateProcessing

            tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **config}
        if template is not None:
            config["chat_template"] = template
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        if file is not None:
            (tmp_path / "chat_template.jinja").write_text(file)
        return Tokenizer(tmp_path)

    return make


@pytest.mark.parametrize(
    "processor, add_bos, expected",
    [
        (False, None, []),
        (True, None, [1]),
        (False, True, [1]),
        (True, True, [1]),
        (True, False, []),
        (False, False, []),
    ],
)
def test_bos_comes_from_the_file_or_the_config(
    make: Any, processor: bool, add_bos: bool | None, expected: list[int]
) -> None:
    tokenizer = make(bos_processor=processor, add_bos_token=add_bos)
    the = tokenizer._tokenizer.token_to_id("▁the")
    assert tokenizer.encode("the") == [*expected, the]
    assert tokenizer.encode_chat("the") == [the]


def test_the_template_file_wins_and_named_templates_are_understood(make: Any) -> None:
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    assert make(named).render_chat(USER) == "yes"
    assert make("config", file="file").render_chat(USER) == "file"


def test_templates_have_what_hugging_face_gives_them(make: Any) -> None:
    template = (
        "{{ bos_token }}{{ eos_token }}|\n"
        "{%- for m in messages %}\n"
        "    {%- if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {%- generation %}{{ m | tojson }}{% endgeneration %}\n"
        "{%- endfor %}\n"
        "|{{ strftime_now('%Y') }}|{{ tools is none }}|{{ add_generation_prompt }}"
    )
    rendered = make(template).render_chat([{"role": "user", "content": "é<b>"}, *USER])
    year = str(datetime.now().year)
    assert rendered == f'<s></s>|{{"role": "user", "content": "é<b>"}}|{year}|True|True'


def test_a_template_is_sandboxed(make: Any) -> None:
    with pytest.raises(RequestError, match="chat template does not take these messages"):
        make("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}").render_chat(USER)


@pytest.mark.parametrize(
    "template, message",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "must be str|can only concatenate"),
        ("{{ messages[0]['content'][9].x.y }}", "has no element 9"),
        ("{% for %}", "Expected an expression|expected token"),
    ],
)
def test_a_template_that_does_not_render_is_the_requests_error(make: Any, template: str, message: str) -> None:
    with pytest.raises(RequestError, match="does not take these messages") as caught:
        make(template).render_chat(USER)
    assert re.search(message, str(caught.value))


@pytest.mark.parametrize(
    "template, message",
    [
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big. The sandbox blocks ranges larger than MAX_RANGE"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endfor %}",
            "has written",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "maximum recursion depth exceeded"),
        ("{{ 1 // 0 }}", "division"),
    ],
)
def test_a_template_that_does_not_end_is_stopped(make: Any, template: str, message: str) -> None:
    with pytest.raises(RequestError, match="does not take these messages") as caught:
        make(template).render_chat(USER)
    assert message in str(caught.value)


def test_a_chat_of_a_megabyte_is_rendered(make: Any) -> None:
    messages = [{"role": "user", "content": "😀" * 2**10}] * 2**8
    rendered = make("{% for m in messages %}{{ m.content }}{% endfor %}").render_chat(messages)
    assert rendered == "😀" * 2**18


def test_a_model_without_a_template_says_so(make: Any) -> None:
    with pytest.raises(RequestError, match="no chat template; send a prompt as text_input"):
        make().render_chat(USER)


def test_half_a_surrogate_pair_is_refused(make: Any) -> None:
    """Which JSON can spell: in a chat it comes through the template."""
    tokenizer = make("{{ messages[0].content }}")
    with pytest.raises(RequestError, match="half of a surrogate pair at character 1"):
        tokenizer.encode("a\ud800")
    rendered = tokenizer.render_chat(json.loads(r'[{"role": "user", "content": "ab\ud83d"}]'))
    with pytest.raises(RequestError, match="half of a surrogate pair at character 2"):
        tokenizer.encode_chat(rendered)
    assert tokenizer.encode(json.loads(r'"\ud83d\ude00"')) == tokenizer.encode("😀")


def test_a_null_character_is_a_character(make: Any) -> None:
    tokenizer = make()
    pieces = ["▁", "a", "<0x00>", "<0x00>", "a"]
    assert tokenizer.encode("a\x00\x00a") == [tokenizer._tokenizer.token_to_id(piece) for piece in pieces]


def test_a_prompt_of_a_megabyte_is_tokenised_in_seconds(make: Any) -> None:
    tokenizer, start = make(), time.perf_counter()
    assert len(tokenizer.encode("a" * 2**20)) == 2**20 + 1  # "▁" comes first; one word, the worst there is
    assert time.perf_counter() - start < 5  # 0.5 s


def test_smollm2_tokens_are_those_of_transformers(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    reference, tokenizer = AutoTokenizer.from_pretrained(smollm2), Tokenizer(smollm2)
    for text in ("The capital of France is", " naïve café 😀\n\n\tx", "<|im_start|>user\nhi<|im_end|>"):
        assert tokenizer.encode(text) == reference(text)["input_ids"]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}]
    rendered = tokenizer.render_chat(messages)
    assert rendered == reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.encode_chat(rendered) == reference(rendered, add_special_tokens=False)["input_ids"]
