"""The official client library against the front: errors with the scripted model, answers with the real one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.frontend.conftest import MODEL as SCRIPTED
from tests.frontend.conftest import Front, running_front
from tests.triton.conftest import CAPACITY, MODEL, SLOTS, checkpoint, emitted, repository_spec  # noqa: F401
from trtbuild.frontend.options import FrontendOptions, served_models
from trtbuild.serving.tokenizer import Tokenizer
from trtbuild.triton.server import TritonServer

pytestmark = pytest.mark.slow  # the module starts a server

QUESTION = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture(scope="module")
def real(emitted: Path) -> Iterator[Front]:  # noqa: F811
    """The front over what `compile` emits of the tiny model."""
    repository = emitted / "model_repository"
    with TritonServer(repository, timeout=60) as server:
        options = FrontendOptions(server.grpc_url, server.metrics_url, served_models(repository))
        with running_front(options) as front:
            yield front


@pytest.fixture(scope="module")
def client(real: Front) -> OpenAI:
    return OpenAI(base_url=real.url, api_key="-", max_retries=0)


@pytest.fixture(scope="module")
def tokenizer(emitted: Path) -> Tokenizer:  # noqa: F811
    return Tokenizer(emitted / "model_repository" / MODEL / "1")


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=QUESTION, **{"max_tokens": 12, **fields})


def complete(client: OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": "the quick", "max_tokens": 12, **fields})


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        ("INVALID_ARG", "top_p is 5", openai.BadRequestError),
        ("UNAVAILABLE", "8 requests of priority 2 wait already, which is the most that may.", openai.RateLimitError),
        ("UNAVAILABLE", "Request timeout expired", openai.InternalServerError),
        ("INTERNAL", "The model failed at this step: oh", openai.InternalServerError),
    ],
)
def test_errors_are_the_clients_exceptions(
    front: Front, code: str, text: str, error: type[openai.APIStatusError]
) -> None:
    client = OpenAI(base_url=front.url, api_key="-", max_retries=0)
    script = json.dumps({"fail": [code, text]})
    for stream in (False, True):
        with pytest.raises(error) as caught:
            client.completions.create(model=SCRIPTED, prompt=script, stream=stream)
        assert caught.value.body["message"] == text


def test_an_error_in_a_stream_is_the_clients_exception(front: Front) -> None:
    client = OpenAI(base_url=front.url, api_key="-", max_retries=0)
    script = json.dumps({"say": ["the"], "fail": ["INTERNAL", "oh"]})
    stream = client.completions.create(model=SCRIPTED, prompt=script, stream=True)
    assert next(stream).choices[0].text == "the"
    with pytest.raises(openai.APIError, match="oh"):
        next(stream)


def test_a_key_that_is_wrong(options: FrontendOptions) -> None:
    with running_front(replace(options, api_key="right")) as front:
        with pytest.raises(openai.AuthenticationError):
            OpenAI(base_url=front.url, api_key="wrong").models.list()
        models = OpenAI(base_url=front.url, api_key="right").models.list()
        assert [model.id for model in models] == [model.name for model in options.models]


def test_a_chat_and_its_usage(client: OpenAI, tokenizer: Tokenizer) -> None:
    answer = chat(client, temperature=0)
    prompt = tokenizer.encode_chat(tokenizer.render_chat(QUESTION))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(prompt)
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (12, len(prompt) + 12)


def test_a_stream_brings_the_same_text(client: OpenAI) -> None:
    whole = chat(client, temperature=0).choices[0].message.content
    chunks = list(chat(client, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "length"]
    assert chunks[-1].usage.completion_tokens == 12


def test_a_seed_repeats_a_draw_and_two_answers_differ(client: OpenAI) -> None:
    first, second, other = (complete(client, n=2, seed=seed, temperature=1.5) for seed in (7, 7, 8))
    texts = [[choice.text for choice in answer.choices] for answer in (first, second, other)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1]
    assert first.usage.completion_tokens == 24


def test_without_a_temperature_it_draws(client: OpenAI) -> None:
    texts = {complete(client, prompt="the", max_tokens=16).choices[0].text for _ in range(3)}
    assert len(texts) > 1


def test_several_prompts(client: OpenAI) -> None:
    answer = complete(client, prompt=["the quick", "the dog"], temperature=0)
    alone = [complete(client, prompt=prompt, temperature=0).choices[0].text for prompt in ("the quick", "the dog")]
    assert [choice.text for choice in answer.choices] == alone


def test_log_probabilities(client: OpenAI) -> None:
    choice = chat(client, temperature=0, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert len(entries) == 12
    spoken = b"".join(bytes(entry.bytes) for entry in entries if entry.token not in ("<bos>", "<eos>"))
    assert spoken.decode("utf-8", "replace") == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True) and max(values) <= 0
        assert entry.token == entry.top_logprobs[0].token, "greedy takes the likeliest"
        assert entry.logprob == pytest.approx(values[0], abs=1e-6)


def test_a_completions_log_probabilities(client: OpenAI) -> None:
    choice = complete(client, temperature=0, logprobs=2).choices[0]
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == len(choice.logprobs.text_offset) == 12
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)
    assert choice.logprobs.text_offset[0] == 0


def test_a_stop_text_ends_the_answer(client: OpenAI) -> None:
    whole = complete(client, temperature=0).choices[0].text
    stopped = complete(client, temperature=0, stop=whole[4:6]).choices[0]
    assert stopped.text == whole[: whole.index(whole[4:6])] and stopped.finish_reason == "stop"


def test_the_extensions(client: OpenAI, tokenizer: Tokenizer) -> None:
    greedy = complete(client, temperature=0, extra_body={"ignore_eos": True}).choices[0].text
    extra = {"top_k": 1, "min_tokens": 12, "ignore_eos": True, "priority": "high", "timeout": 30}
    assert complete(client, temperature=1.5, extra_body=extra).choices[0].text == greedy
    (letter,) = tokenizer.encode("q")
    assert complete(client, logit_bias={str(letter): 100}, max_tokens=3).choices[0].text == "qqq"


def test_what_is_wrong(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=f"The model 'nope' does not exist; there is {MODEL}"):
        complete(client, model="nope")
    with pytest.raises(openai.BadRequestError, match="no role critic") as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "critic", "content": "a"}])  # type: ignore[list-item]
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, prompt="a" * 2 * CAPACITY)
    assert caught.value.code == "context_length_exceeded"
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [image]}])  # type: ignore
    assert caught.value.param == "messages[0].content[0]"
    for field, value in {"max_tokens": 0, "temperature": -1, "top_p": 2, "frequency_penalty": 3}.items():
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, **{field: value})
        assert caught.value.param == field
    for field, value in {"top_k": -2, "min_p": 2, "repetition_penalty": 0, "min_tokens": -1}.items():
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, extra_body={field: value})
        assert caught.value.param == field


def test_closing_streams_frees_their_places(client: OpenAI) -> None:
    streams = [complete(client, max_tokens=3000, stream=True) for _ in range(SLOTS)]
    for stream in streams:
        next(stream)
    begin = time.monotonic()
    for stream in streams:
        stream.close()
    assert complete(client, max_tokens=2).choices[0].finish_reason == "length"
    assert time.monotonic() - begin < 5


def test_the_beginning_of_a_prompt_is_found_in_the_cache(client: OpenAI) -> None:
    prompt = "the lazy dog jumps over " * 20
    first, second = (complete(client, prompt=prompt, temperature=0) for _ in range(2))
    assert first.choices[0].text == second.choices[0].text
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert 0 < second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens


def test_a_full_queue_and_a_wait_that_is_too_long(real: Front, client: OpenAI) -> None:
    """All places are taken by answers of the highest priority; of that, 64 may wait (serving/config.py)."""
    high = {"priority": "high"}

    def start(_: int) -> Any:
        stream = complete(client, max_tokens=4000, stream=True, extra_body=high)
        next(stream)
        return stream

    with ThreadPoolExecutor(SLOTS) as together:  # one by one the first, a fast one while alone, would end too soon
        running = list(together.map(start, range(SLOTS)))
    with pytest.raises(openai.InternalServerError) as late:
        complete(client, extra_body={**high, "timeout": 0.2})
    assert (late.value.status_code, late.value.code) == (503, "queue_timeout")

    async def crowd() -> list[Any]:
        crowded = AsyncOpenAI(base_url=real.url, api_key="-", max_retries=0)
        ask = {"model": MODEL, "prompt": "the", "max_tokens": 1, "extra_body": high}
        asked = [asyncio.ensure_future(crowded.completions.create(**ask)) for _ in range(66)]
        deadline = time.monotonic() + 20
        while sum(request.done() for request in asked) < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for stream in running:
            stream.close()
        return await asyncio.gather(*asked, return_exceptions=True)

    refused = [answer for answer in asyncio.run(crowd()) if isinstance(answer, Exception)]
    assert [(type(error), error.code) for error in refused] == [(openai.RateLimitError, "queue_full")] * 2
    assert refused[0].response.headers["retry-after"] == "1"


def test_many_at_once(real: Front) -> None:
    async def ask() -> list[str]:
        client = AsyncOpenAI(base_url=real.url, api_key="-", max_retries=0)
        answers = [
            client.completions.create(model=MODEL, prompt="the quick", max_tokens=8, temperature=0) for _ in range(40)
        ]
        return [answer.choices[0].text for answer in await asyncio.gather(*answers)]

    assert len(set(asyncio.run(ask()))) == 1
