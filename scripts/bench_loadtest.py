"""What the load generator costs: CPU time a response and the most that one core takes, beside grpc.aio.

    python scripts/bench_loadtest.py [--streams 16 64 200] [--pause 0.05] [--tokens 100]

A scripted model (tests/frontend) sends each stream a response every `--pause` seconds; the same streams are read by
grpc.aio's stubs and by trtbuild.loadtest. Then recorded responses are put through the generator as fast as it goes,
without a socket: what it could take at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.frontend.conftest import MODEL, write_scripted
from trtbuild.loadtest.exchange import Exchange
from trtbuild.loadtest.target import Asking
from trtbuild.loadtest.triton_target import TritonTarget, _Call
from trtbuild.loadtest.workload import PlannedRequest
from trtbuild.serving.interface import INPUTS
from trtbuild.triton.generation import Generation, infer_request
from trtbuild.triton.server import TritonServer

MOST = 200_000


async def over_grpc_aio(stub: Any, prompt: str) -> int:
    """The responses to one stream."""
    import grpc

    call = stub.ModelStreamInfer()
    await call.write(infer_request(MODEL, Generation(prompt=prompt)))
    await call.done_writing()
    count = 0
    while await call.read() is not grpc.aio.EOF:
        count += 1
    return count


async def by_the_generator(target: TritonTarget, prompt: str) -> int:
    over: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
    target.send(Exchange(PlannedRequest(0, 0.0, prompt, None, 100, 0, 0), time.perf_counter(), over.set_result))
    return len((await over).times)


async def cost(streams: int, one: Callable[[], Awaitable[int]]) -> str:
    cpu, begin = time.process_time(), time.perf_counter()
    responses = sum(await asyncio.gather(*(one() for _ in range(streams))))
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - begin
    return f"{1e6 * cpu / responses:5.0f} µs a response, {responses / seconds:5.0f} responses/s arrived"


async def measure(url: str, arguments: Any) -> None:
    import grpc
    from tritonclient.grpc import service_pb2_grpc

    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.aio.insecure_channel(url))
    target = TritonTarget(url, MODEL, [spec.name for spec in INPUTS], Asking(), url)
    await target.connect()
    prompt = json.dumps({"clock": arguments.tokens, "pause": arguments.pause})
    for streams in arguments.streams:
        print(f"{streams} streams")
        print(f"  grpc.aio   {await cost(streams, lambda: over_grpc_aio(stub, prompt))}")
        print(f"  generator  {await cost(streams, lambda: by_the_generator(target, prompt))}")
    await target.close()


def most() -> float:
    """Responses a second of one core, of a message like the model's."""
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelStreamInferResponse()
    for name, kind, raw in (
        ("text_output", "BYTES", b"\x04\0\0\0 the"),
        ("finish_reason", "BYTES", b"\0\0\0\0"),
        *((name, "INT32", b"\1\0\0\0") for name in ("output_ids", "sequence_index", "prompt_tokens", "cached_tokens")),
    ):
        response.infer_response.outputs.add(name=name, datatype=kind, shape=[1, 1])
        response.infer_response.raw_output_contents.append(raw)
    message = response.SerializeToString()
    data = b"\0" + len(message).to_bytes(4, "big") + message
    exchange = Exchange(PlannedRequest(0, 0.0, "", None, MOST, 0, 0), 0.0, lambda _: None)
    call = _Call(exchange, service_pb2.ModelStreamInferResponse.FromString)
    begin = time.process_time()
    for _ in range(MOST):
        call.data(0.0, data)
    return MOST / (time.process_time() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64, 200])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.05)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_scripted(Path(folder))
        with TritonServer(Path(folder)) as server:
            asyncio.run(measure(server.grpc_url, arguments))
    print(f"without a socket: {most():.0f} responses/s of one core")


if __name__ == "__main__":
    main()
