"""A Triton model with the inputs and outputs of serving/interface.py that does what the prompt says.

The prompt, or the last message of a chat, is a JSON object; a plain text stands for {"say": [text]}:

    say     texts, each of which is one response (or, without `stream`, a part of the only one)
    repeat  how many times over
    wait    seconds before the first one, also taken in parts so that a cancellation is seen
    pause   seconds between two
    finish  the last one's finish_reason ("stop")
    fail    [code, text]: an error with this code of Triton's after what is said
    hold    seconds for which the instance takes no other request
    show    true: say the inputs that came, as JSON
    clock   how many times to say the time of sending, in nanoseconds of the monotonic clock (scripts/bench_frontend.py)

Of a text at most 64 tokens come with it. Every token has the log probability -0.5, and the k-th of the most probable
ones, which are the ids from the token's own on, -0.5 - k. Half of the prompt's tokens were cached. `events` beside this
file has a line for each request: the number of responses sent, and how it ended.
"""

import asyncio
import functools
import json
import threading
import time
from pathlib import Path

import numpy as np
import tokenizers
import triton_python_backend_utils as pb_utils

INPUTS = json.loads((Path(__file__).parent / "inputs.json").read_text())
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(__file__).parent
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._encode = functools.lru_cache(lambda text: tokenizer.encode(text).ids)
        self._events = (folder / "events").open("a", buffering=1)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            tensors = ((name, pb_utils.get_input_tensor_by_name(request, name)) for name in INPUTS)
            inputs = {name: plain(tensor.as_numpy()) for name, tensor in tensors if tensor is not None}
            prompt = inputs.get("text_input") or json.loads(inputs["messages"])[-1]["content"]
            script = parsed(prompt)
            if script.get("show"):
                script["say"] = [json.dumps(inputs)]
            script.setdefault("say", [None] * script.get("clock", 0))
            time.sleep(script.get("hold", 0))
            answer = self._answer(prompt, inputs, script, request.get_response_sender())
            asyncio.run_coroutine_threadsafe(answer, self._loop)

    async def _answer(self, prompt, inputs, script, sender):
        stream, n = inputs.get("stream", False), inputs.get("num_return_sequences", 1)
        sent, ended = 0, script.get("finish", "stop")
        pieces = script["say"] * script.get("repeat", 1)
        pieces = pieces if stream else ["".join(pieces)]
        count = len(self._encode(prompt))
        if await cancelled(sender, script.get("wait", 0)):
            pieces, ended = [], "cancelled"
        for place, piece in enumerate(pieces):
            if ended == "cancelled":
                break
            last = place == len(pieces) - 1 and "fail" not in script
            for index in range(n):
                response = self._response(piece, inputs, index, count, ended if last else "")
                sender.send(response, flags=FINAL if last and index == n - 1 else 0)
                sent += 1
            if not last and await cancelled(sender, script.get("pause", 0)):
                ended = "cancelled"
        if ended == "cancelled":
            sender.send(flags=FINAL)
        elif "fail" in script:
            code, text = script["fail"]
            error = pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
            sender.send(pb_utils.InferenceResponse(output_tensors=[], error=error), flags=FINAL)
            ended = code
        self._events.write(f"{sent} {ended}\n")

    def _response(self, text, inputs, index, prompt_tokens, finish_reason):
        text = str(time.monotonic_ns()) if text is None else text
        ids = self._encode(text)[:64]
        tensors = [
            strings("text_output", text),
            strings("finish_reason", finish_reason),
            numbers("output_ids", ids),
            numbers("sequence_index", [index]),
            numbers("prompt_tokens", [prompt_tokens]),
            numbers("cached_tokens", [prompt_tokens // 2]),
        ]
        if inputs.get("return_log_probs"):
            top = range(inputs.get("num_top_log_probs", 0))
            tensors.append(pb_utils.Tensor("output_log_probs", np.full((1, len(ids)), -0.5, np.float32)))
            pairs = [[[token + k, -0.5 - k] for k in top] for token in ids]
            tensors.append(strings("top_log_probs", json.dumps(pairs)))
        return pb_utils.InferenceResponse(output_tensors=tensors)


async def cancelled(sender, seconds):
    end = time.monotonic() + seconds
    while not sender.is_cancelled():
        left = end - time.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(min(left, 0.02))
    return True


def parsed(prompt):
    try:
        script = json.loads(prompt)
    except ValueError:
        script = None
    return script if isinstance(script, dict) else {"say": [prompt]}


def plain(array):
    values = [value.decode() if isinstance(value, bytes) else value.item() for value in array.reshape(-1)]
    return values[0] if len(values) == 1 else values


def strings(name, text):
    return pb_utils.Tensor(name, np.array([[text.encode()]], np.object_))


def numbers(name, values):
    return pb_utils.Tensor(name, np.array([values], np.int32).reshape(1, -1))
