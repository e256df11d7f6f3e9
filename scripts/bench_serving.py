"""Tokens per second of a compiled model through Triton with 8 clients, next to a bare ONNX Runtime loop at batch 8.

    trtbuild compile MODEL --precision int4 --backend onnx --out COMPILED
    python scripts/bench_serving.py COMPILED [--clients 8] [--tokens 128] [--rounds 3]

Both decode greedily on this machine's CPU, prompts of the same length, in turn. The loop feeds one batch whose rows
stand at the same position and does nothing but argmax: no tokenizer, no server. The clients each send one request at
the same moment and stream its tokens over gRPC.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path

import numpy as np

from trtbuild.serving.config import ServingConfig
from trtbuild.serving.runners.base import StepRow
from trtbuild.serving.runners.onnxruntime import OnnxRuntimeRunner
from trtbuild.serving.tokenizer import Tokenizer
from trtbuild.triton.client import Sampling, stream_generate
from trtbuild.triton.server import TritonServer

PROMPT = "2{}, {}, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, "
"""A plain text without an end, so that no answer stops before its tokens are spent. Every client and round begins with
numbers of its own: nothing comes from the cache of prompts."""


class BareLoop:
    """The runner's session alone: what the CPU can do at this batch."""

    def __init__(self, folder: Path, config: ServingConfig, batch: int) -> None:
        backend = next(backend for backend in config.backends if backend.kind == "onnxruntime")
        self._runner = OnnxRuntimeRunner(config, backend, folder)
        tokenizer = Tokenizer(folder)
        self._prompts = [tokenizer.encode(PROMPT.format(client, 0)) for client in range(batch)]
        self._length = min(len(prompt) for prompt in self._prompts)

    def tokens_per_second(self, tokens: int) -> float:
        """Of prefill (one prompt after the other) and decode together."""
        batch = len(self._prompts)
        started = time.perf_counter()
        step = np.zeros(batch, np.int64)
        for slot, prompt in enumerate(self._prompts):
            (logits,) = self._runner.step([StepRow([slot], prompt[: self._length], 0, self._length, True)])
            step[slot] = logits.argmax()
        for position in range(self._length, self._length + tokens - 1):
            rows = [StepRow([slot], [int(step[slot])], position, position + 1, True) for slot in range(batch)]
            step[:] = [logits.argmax() for logits in self._runner.step(rows)]
        return batch * tokens / (time.perf_counter() - started)

    def close(self) -> None:
        self._runner.close()


def served(url: str, model: str, clients: int, tokens: int, number: int) -> float:
    """Tokens per second of `clients`, each with one request of `tokens`."""
    received = [0] * clients

    def work(client: int) -> None:
        prompt = PROMPT.format(client, number)
        for chunk in stream_generate(url, model, prompt=prompt, sampling=Sampling(max_tokens=tokens)):
            received[client] += len(chunk.token_ids)

    threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if min(received) < tokens:
        raise SystemExit(f"An answer ended after {min(received)} tokens, so the two would not do the same work.")
    return sum(received) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compiled", type=Path, help="what `trtbuild compile` made")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    file = next(arguments.compiled.glob("model_repository/*/1/serving.json"))
    config = ServingConfig.load(file)
    loop = BareLoop(file.parent, config, arguments.clients)
    bare, through, ratios = [], [], []
    with TritonServer(arguments.compiled / "model_repository") as server:
        served(server.grpc_url, config.model_name, arguments.clients, 16, 0)
        for number in range(1, arguments.rounds + 1):
            bare.append(loop.tokens_per_second(arguments.tokens))
            through.append(served(server.grpc_url, config.model_name, arguments.clients, arguments.tokens, number))
            ratios.append(through[-1] / bare[-1])
    loop.close()
    print(
        f"{arguments.clients} sequences, {arguments.tokens} tokens each, medians of {arguments.rounds} rounds in turn"
    )
    print(f"  bare ONNX Runtime loop   {statistics.median(bare):7.1f} tokens/s")
    print(f"  through Triton, streamed {statistics.median(through):7.1f} tokens/s")
    print(f"  ratio, round by round    {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
