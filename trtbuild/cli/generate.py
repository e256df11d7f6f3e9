"""`trtbuild generate`."""

from __future__ import annotations

import json as json_module
import sys
import time
from pathlib import Path
from typing import Annotated, Optional

import typer

from trtbuild.cli.console import print_json
from trtbuild.errors import InputError, TrtbuildError


def generate_command(
    prompt: Annotated[str, typer.Argument(metavar="TEXT", help="What to say; - reads it from standard input.")],
    url: Annotated[str, typer.Option(help="The server's gRPC address.")] = "127.0.0.1:8001",
    ports_file: Annotated[
        Optional[Path], typer.Option(help="Take the address from what `serve --ports-file` wrote.")
    ] = None,
    model: Annotated[Optional[str], typer.Option(help="The model's name; the server's only one if not given.")] = None,
    system: Annotated[Optional[str], typer.Option(help="A system message before it.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="The most tokens to generate.")] = 256,
    temperature: Annotated[Optional[float], typer.Option(help="0 or not given: the most likely token.")] = None,
    top_k: Annotated[Optional[int], typer.Option(help="Sample among this many tokens.")] = None,
    top_p: Annotated[
        Optional[float], typer.Option(help="Sample among the tokens that make up this probability.")
    ] = None,
    min_p: Annotated[
        Optional[float], typer.Option(help="Sample among tokens at least this share as probable as the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        Optional[float], typer.Option(help="Above 1: tokens of the prompt and the answer become less likely.")
    ] = None,
    frequency_penalty: Annotated[
        Optional[float], typer.Option(help="Taken from a token's logit each time that it was said; -2 to 2.")
    ] = None,
    presence_penalty: Annotated[
        Optional[float], typer.Option(help="Taken from the logit of each token that was said; -2 to 2.")
    ] = None,
    min_tokens: Annotated[Optional[int], typer.Option(help="The fewest tokens to generate.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on where the model would end.")] = False,
    seed: Annotated[Optional[int], typer.Option(help="The same tokens for the same seed.")] = None,
    stop: Annotated[Optional[list[str]], typer.Option(help="End before this text; may be given several times.")] = None,
    priority: Annotated[int, typer.Option(min=0, help="1 is the highest; 0 takes the model's default.")] = 0,
    queue_timeout: Annotated[
        Optional[float], typer.Option(min=0.001, help="Seconds that the request may wait to be started.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the next token.")] = 300.0,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the server to be ready.")] = 0.0,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document at the end instead of the text.")
    ] = False,
) -> None:
    """Ask a running server and watch the answer come.

    ```
    trtbuild generate "What is the capital of France?"
    cat essay.txt | trtbuild generate - --system "Summarise in one sentence." --temperature 0.7 --seed 1
    ```
    """
    from trtbuild.triton.client import Sampling, only_model, stream_generate, wait_until_ready

    text = sys.stdin.read() if prompt == "-" else prompt
    if raw and system is not None:
        raise InputError("--system is a message of a chat, and --raw sends no chat. Drop one of them.")
    deadline = time.monotonic() + wait
    if ports_file is not None:
        url = _read_address(ports_file, deadline)
    wait_until_ready(url, max(0.0, deadline - time.monotonic()))
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    chunks = stream_generate(
        url,
        model or only_model(url),
        prompt=text if raw else None,
        messages=None if raw else messages,
        sampling=Sampling(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            ignore_eos=ignore_eos or None,
            stop_words=tuple(stop or ()),
        ),
        priority=priority,
        queue_timeout=queue_timeout,
        timeout=timeout,
    )
    started, first, pieces, tokens, reason = time.perf_counter(), None, [], 0, ""
    prompt_tokens = cached_tokens = 0
    for chunk in chunks:
        prompt_tokens, cached_tokens = chunk.prompt_tokens, chunk.cached_tokens
        first = first if first is not None else time.perf_counter() - started
        pieces.append(chunk.text)
        tokens += len(chunk.token_ids)
        reason = chunk.finish_reason or reason
        if not json:
            print(chunk.text, end="", flush=True)
    seconds = time.perf_counter() - started
    if json:
        print_json(
            {
                "text": "".join(pieces),
                "tokens": tokens,
                "prompt_tokens": prompt_tokens,
                "cached_tokens": cached_tokens,
                "finish_reason": reason,
                "first_token_seconds": first,
                "seconds": seconds,
            }
        )
        return
    print(flush=True)
    rate = f", {tokens / seconds:.0f} tokens/s" if seconds > 0 else ""
    first_text = f", the first after {first:.2f} s" if first is not None else ""
    print(f"[{tokens} tokens{first_text}{rate}; {reason}]", file=sys.stderr)


def _read_address(file: Path, deadline: float) -> str:
    """Wait for the file, which `serve` writes when it is ready."""
    while True:
        try:
            return str(json_module.loads(file.read_text())["grpc"])
        except FileNotFoundError:
            if time.monotonic() >= deadline:
                raise InputError(
                    f"{file} does not exist: no `trtbuild serve --ports-file` is ready there. Start it, or give --wait."
                ) from None
            time.sleep(0.1)
        except (ValueError, KeyError) as error:
            raise TrtbuildError(f"{file} is not what `trtbuild serve --ports-file` writes: {error}.") from error
