"""The bodies of requests, checked.

What would change the text of an answer and is not done here is refused by name (`_UNSUPPORTED`), since ignoring it
would give a wrong answer without a word. Any other field that is not known is ignored and logged once: OpenAI refuses
such fields, but their clients, LangChain and aiperf send what changes nothing here (`store`, `metadata`,
`service_tier`, `parallel_tool_calls` …), and a field that is new tomorrow must not stop a client that works today.
"""

from __future__ import annotations

from functools import lru_cache
from logging import getLogger
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from trtbuild.frontend.errors import ApiError

MAX_CHOICES = 128
MAX_LOGPROBS = 20
PRIORITIES = {"high": 1, "normal": 2, "low": 3}

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "prediction": (),
    "suffix": ("",),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "stop_token_ids": ([],),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "include_stop_str_in_output": (False,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
}
"""Fields of OpenAI's and vLLM's APIs that are not done, with the values, beside null, that ask for nothing."""

_log = getLogger("trtbuild.frontend")


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("value", message.replace("{", "{{").replace("}", "}}"))


def _priority(value: Any) -> Any:
    """A name, or a number in digits, as a header has it, or a number."""
    if not isinstance(value, str):
        return value
    if value.lower() in PRIORITIES:
        return PRIORITIES[value.lower()]
    if value.isdecimal() and len(value) < 10:
        return int(value)
    raise _wrong(f"Input should be a number from 1, the highest, or one of {', '.join(PRIORITIES)}")


def _stop(value: Any) -> Any:
    """A text or a list of texts, as a list; an empty one would end every answer at once."""
    words = [value] if isinstance(value, str) else value
    if isinstance(words, list) and "" in words:
        raise _wrong("Input should not hold an empty text, which would end every answer at once")
    return words


def _prompts(value: Any) -> Any:
    """A text or a list of texts, as a list."""
    prompts = [value] if isinstance(value, str) else value
    if isinstance(prompts, list) and any(isinstance(item, int | list) for item in prompts):
        raise _wrong("Input should be a text or a list of texts; token ids are not taken, for the model tokenises")
    return prompts


Priority = Annotated[int, BeforeValidator(_priority), Field(ge=0)]
Prompt = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Body(BaseModel):
    """Strict: "1" is no number. null is the same as nothing."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())


class StreamOptions(_Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's: the usage so far in every event."""


class GenerationBody(_Body):
    """What both kinds of request have: OpenAI's fields, and those that vLLM added."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Annotated[list[str], BeforeValidator(_stop)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    priority: Priority | None = None
    """1 is the highest; or a name of PRIORITIES."""
    timeout: Seconds | None = None
    """Seconds that the request may wait to be started."""


class ChatBody(GenerationBody):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    """They reach the model as they are; it checks them (serving/messages.py) and so does its chat template."""
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


class CompletionBody(GenerationBody):
    """The body of /v1/completions."""

    prompt: Annotated[list[Prompt], BeforeValidator(_prompts), Field(min_length=1, max_length=MAX_CHOICES)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None


AnyBody = TypeVar("AnyBody", bound=GenerationBody)


def parse_body(kind: type[AnyBody], content: bytes) -> AnyBody:
    """The body in `content`, JSON. Raises ApiError (400) naming the field that is wrong or not supported."""
    try:
        body = kind.model_validate_json(content)
    except ValidationError as error:
        raise _refusal(error) from error
    for name, value in (body.model_extra or {}).items():
        if name not in _UNSUPPORTED:
            _log_ignored(name[:80])
        elif value is not None and value not in _UNSUPPORTED[name]:
            raise ApiError(400, f"{name} is not supported by this server.", param=name, code="unsupported_parameter")
    return body


def parse_header(kind: Any, name: str, value: str) -> Any:
    """The value of the header `name`; raises ApiError (400) if it is not of the type `kind`."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ApiError(400, f"{name}: {error.errors()[0]['msg']}.", param=name) from error


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not JSON: {first['ctx']['error']}.", code="invalid_json")
    param = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
    if not param:
        return ApiError(400, "The body is not a JSON object.")
    missing = first["type"] == "missing"
    text = f"{param} is missing." if missing else f"{param}: {first['msg']}."
    return ApiError(400, text, param=param, code="missing_required_parameter" if missing else "invalid_value")


@lru_cache(maxsize=256)
def _log_ignored(name: str) -> None:
    """Once for each name, of which a client can make up any number."""
    _log.warning("The field %r of a request is not known and is ignored.", name)
