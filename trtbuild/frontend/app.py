"""The HTTP endpoints."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from trtbuild.frontend.answering import answer_document, answer_events
from trtbuild.frontend.asking import Asked, ask_chat, ask_completion
from trtbuild.frontend.bodies import ChatBody, CompletionBody, parse_body
from trtbuild.frontend.chat import ChatForm
from trtbuild.frontend.completions import CompletionForm
from trtbuild.frontend.errors import ApiError
from trtbuild.frontend.forms import Envelope, Form
from trtbuild.frontend.options import FrontendOptions, ServedModel
from trtbuild.frontend.responses import DocumentResponse, EventResponse, as_api_error, error_response
from trtbuild.frontend.tokens import Tokens, TokenTables
from trtbuild.frontend.triton import Triton


def create_app(options: FrontendOptions) -> FastAPI:
    """The ASGI application; it connects to Triton when it is started and needs no Triton before the first request."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.front = Front(options)
        yield
        await app.state.front.triton.close()

    app = FastAPI(title="trtbuild", lifespan=lifespan)
    app.include_router(_api, dependencies=[Depends(_refuse_without_key)])
    app.include_router(_operations)
    app.add_exception_handler(ApiError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_error)
    return app


class Front:
    """What the endpoints share."""

    def __init__(self, options: FrontendOptions) -> None:
        self.options = options
        self.triton = Triton(options.grpc_url, options.metrics_url, options.silence_seconds)
        self._models = {model.name: model for model in options.models}
        self._tokens = TokenTables()

    def model(self, name: str) -> ServedModel:
        """Raises ApiError (404) for one that is not served."""
        if name not in self._models:
            text = f"The model '{name}' does not exist; there is {', '.join(self._models)}."
            raise ApiError(404, text, param="model", code="model_not_found")
        return self._models[name]

    async def tokens(self, asked: Asked) -> Tokens | None:
        """The model's, if log probabilities are wanted."""
        return None if asked.top_logprobs is None else await self._tokens.of(asked.model.folder)

    def answer(self, asked: Asked, form: Form) -> Response:
        """The response, which has yet to ask Triton."""
        envelope = Envelope.new(form, asked.model.name)
        headers = {"X-Request-Id": envelope.id}
        if asked.stream:
            return EventResponse(answer_events(self.triton, asked, form, envelope), headers)
        return DocumentResponse(answer_document(self.triton, asked, form, envelope), headers)


def _schema(body: type[ChatBody] | type[CompletionBody]) -> dict[str, Any]:
    """The body for /docs: it is read by hand, for its errors and its limit."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}}


_api = APIRouter(prefix="/v1")
_operations = APIRouter()


@_api.post("/chat/completions", openapi_extra=_schema(ChatBody))
async def chat_completions(request: Request) -> Response:
    front: Front = request.app.state.front
    body = parse_body(ChatBody, await _content(request, front.options.max_body_bytes))
    asked = ask_chat(body, front.model(body.model), request.headers)
    return front.answer(asked, ChatForm(await front.tokens(asked)))


@_api.post("/completions", openapi_extra=_schema(CompletionBody))
async def completions(request: Request) -> Response:
    front: Front = request.app.state.front
    body = parse_body(CompletionBody, await _content(request, front.options.max_body_bytes))
    asked = ask_completion(body, front.model(body.model), request.headers)
    return front.answer(asked, CompletionForm(await front.tokens(asked), asked.echo, asked.n))


@_api.get("/models")
async def list_models(request: Request) -> Response:
    front: Front = request.app.state.front
    return JSONResponse({"object": "list", "data": [_model_document(model) for model in front.options.models]})


@_api.get("/models/{name}")
async def describe_model(request: Request, name: str) -> Response:
    return JSONResponse(_model_document(request.app.state.front.model(name)))


@_operations.get("/health")
async def health(request: Request) -> Response:
    """200 if Triton has every model ready."""
    front: Front = request.app.state.front
    for model in front.options.models:
        if not await front.triton.is_ready(model.name):
            raise ApiError(503, f"The model '{model.name}' is not ready.", kind="server_error", code="model_not_ready")
    return JSONResponse({"status": "ready"})


@_operations.get("/metrics")
async def metrics(request: Request) -> Response:
    """Triton's."""
    return Response(await request.app.state.front.triton.metrics(), media_type="text/plain; version=0.0.4")


def _model_document(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "trtbuild",
        "max_model_len": model.max_length,  # where vLLM's clients look for it
    }


async def _refuse_without_key(request: Request) -> None:
    key = request.app.state.front.options.api_key
    given = request.headers.get("authorization", "").encode("latin-1")  # which is how the bytes were decoded
    if key is not None and not secrets.compare_digest(given, f"Bearer {key}".encode()):
        raise ApiError(
            401,
            "This server wants its API key: Authorization: Bearer KEY.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


async def _content(request: Request, most: int) -> bytes:
    """The body. A type of JSON is required as OpenAI requires it: a browser lets no foreign page send that unasked."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "The body must be JSON, with the header Content-Type: application/json.")
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise ApiError(413, f"The body has more than {most} bytes, which is the most that is taken.")
    return bytes(content)


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(as_api_error(error))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """A path or a method that there is not."""
    assert isinstance(error, HTTPException)
    text = f"{error.detail}: {request.method} {request.url.path}"
    return error_response(ApiError(error.status_code, text, headers=dict(error.headers or {})))
