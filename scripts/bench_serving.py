"""Tokens per second of a compiled model through Triton with 8 clients, next to a bare ONNX Runtime loop at batch 8.

    trtbuild compile MODEL --precision int4 --backend onnx --out COMPILED
    python scripts/bench_serving.py COMPILED [--clients 8] [--tokens 128] [--rounds 3] [--transformers MODEL]

Both decode greedily on this machine's CPU, prompts of the same length, in turn. The loop feeds one batch whose rows
stand at the same position and does nothing but argmax: no tokenizer, no server. The clients, bench's own, which cost
little, send all requests at the same moment and stream their tokens over gRPC. `--transformers` puts transformers'
`generate` behind the same server (peer_transformers.py): one request after the other, and in padded batches of all by
Triton's dynamic batcher, the best case for it, since all prompts come at once and all answers are of a length.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

from trtbuild.loadtest.exchange import Exchange
from trtbuild.loadtest.target import Asking
from trtbuild.loadtest.triton_target import TritonTarget
from trtbuild.loadtest.workload import PlannedRequest
from trtbuild.serving.config import ServingConfig
from trtbuild.serving.interface import INPUTS
from trtbuild.serving.runners.base import StepRow
from trtbuild.serving.runners.onnxruntime import OnnxRuntimeRunner
from trtbuild.serving.tokenizer import Tokenizer
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
    """Tokens per second of `clients` requests of `tokens` each, sent at once."""
    return asyncio.run(_served(url, model, [PROMPT.format(client, number) for client in range(clients)], tokens))


async def _served(url: str, model: str, prompts: list[str], tokens: int) -> float:
    over: list[asyncio.Future[Exchange]] = [asyncio.get_running_loop().create_future() for _ in prompts]
    target = TritonTarget(url, model, [spec.name for spec in INPUTS], Asking(), url)
    await target.connect()
    started = time.perf_counter()
    for index, (prompt, end) in enumerate(zip(prompts, over, strict=True)):
        request = PlannedRequest(index, 0.0, prompt, None, tokens, 0, 0)
        target.send(Exchange(request, started, end.set_result))
    counts = [exchange.received for exchange in await asyncio.gather(*over)]
    seconds = time.perf_counter() - started
    await target.close()
    if min(counts) < tokens:
        raise SystemExit(f"An answer ended after {min(counts)} tokens, so the two would not do the same work.")
    return sum(counts) / seconds


class Account:
    """Processor seconds of the clients (this process), of tritonserver and of the model's process."""

    def __init__(self, server: TritonServer) -> None:
        process = psutil.Process(server.process.pid)
        self._processes = {
            "clients": [psutil.Process()],
            "tritonserver": [process],
            "model": process.children(),
        }
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        return {name: sum(sum(p.cpu_times()[:2]) for p in found) for name, found in self._processes.items()}

    def since(self) -> dict[str, float]:
        before, self._before = self._before, self._now()
        return {name: seconds - before[name] for name, seconds in self._before.items()}


def transformers_rate(
    checkpoint: Path, dtype: str, clients: int, tokens: int, rounds: int, *, batch: int
) -> list[float]:
    """Tokens per second of transformers' `generate` behind Triton, with as many clients, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / "transformers" / "1"
        version.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("peer_transformers.py"), version / "model.py")
        (version.parent / "config.pbtxt").write_text(
            f"""name: "transformers"
backend: "python"
max_batch_size: {batch}
input {{ name: "text_input" data_type: TYPE_STRING dims: [1] }}
input {{ name: "max_tokens" data_type: TYPE_INT32 dims: [1] }}
output {{ name: "text_output" data_type: TYPE_STRING dims: [1] }}
dynamic_batching {{ max_queue_delay_microseconds: 20000 }}
parameters {{ key: "checkpoint" value {{ string_value: "{checkpoint.resolve()}" }} }}
parameters {{ key: "python" value {{ string_value: "{sys.executable}" }} }}
parameters {{ key: "dtype" value {{ string_value: "{dtype}" }} }}
"""
        )
        with TritonServer(Path(folder)) as server:
            asked_at_once(server.grpc_url, clients, 8, 0)
            return [asked_at_once(server.grpc_url, clients, tokens, number) for number in range(1, rounds + 1)]


def asked_at_once(url: str, clients: int, tokens: int, number: int) -> float:
    import tritonclient.grpc as grpc

    def ask(client: int) -> None:
        text = grpc.InferInput("text_input", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([[PROMPT.format(client, number).encode()]], dtype=object))
        count = grpc.InferInput("max_tokens", [1, 1], "INT32")
        count.set_data_from_numpy(np.array([[tokens]], np.int32))
        grpc.InferenceServerClient(url).infer("transformers", [text, count])

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(clients)))
    return clients * tokens / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compiled", type=Path, help="what `trtbuild compile` made")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transformers", type=Path, metavar="MODEL", help="the checkpoint, for `generate`")
    parser.add_argument("--dtype", default="float32", help="what transformers computes in")
    arguments = parser.parse_args()
    file = next(arguments.compiled.glob("model_repository/*/1/serving.json"))
    config = ServingConfig.load(file)
    clients, tokens, rounds = arguments.clients, arguments.tokens, arguments.rounds
    loop = BareLoop(file.parent, config, clients)
    bare, through, ratios, spent = [], [], [], []
    with TritonServer(arguments.compiled / "model_repository") as server:
        served(server.grpc_url, config.model_name, clients, 16, 0)
        for number in range(1, rounds + 1):
            bare.append(loop.tokens_per_second(tokens))
            account = Account(server)
            through.append(served(server.grpc_url, config.model_name, clients, tokens, number))
            spent.append(account.since())
            ratios.append(through[-1] / bare[-1])
    loop.close()
    print(f"{clients} sequences, {tokens} tokens each, medians of {rounds} rounds in turn")
    print(f"  bare ONNX Runtime loop   {statistics.median(bare):7.1f} tokens/s")
    print(f"  through Triton, streamed {statistics.median(through):7.1f} tokens/s")
    print(f"  ratio, round by round    {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    costs = {name: statistics.median(each[name] for each in spent) / (clients * tokens) for name in spent[0]}
    print(f"  processor time a token   {', '.join(f'{name} {1e3 * cost:.2f} ms' for name, cost in costs.items())}")
    if arguments.transformers:
        for name, batch in (("one by one", 1), ("padded batches", clients)):
            common = (arguments.transformers, arguments.dtype, clients, tokens, rounds)
            peer = statistics.median(transformers_rate(*common, batch=batch))
            times = statistics.median(through) / peer
            print(f"  transformers, {name:14} {peer:5.1f} tokens/s ({arguments.dtype}); ours {times:.1f} times")


if __name__ == "__main__":
    main()
