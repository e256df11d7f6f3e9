"""What the OpenAI front adds to Triton's gRPC: the age of a token when a client has it, and the front's CPU time.

    python scripts/bench_frontend.py [--streams 1 16 64] [--tokens 100] [--pause 0.05]

A scripted model (tests/frontend) sends one response every `--pause` seconds to each of the streams, with the time as
its text, so nothing but transport is measured. The same streams are read once from Triton over grpc.aio, all in one
process, and once from the front, which is a process of its own, as server-sent events. Then `--most` streams are read
at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.frontend.conftest import MODEL, write_scripted
from trtbuild.frontend.triton import Triton
from trtbuild.triton.generation import Generation
from trtbuild.triton.server import TritonServer

FRONT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from trtbuild.frontend.options import FrontendOptions, served_models
from trtbuild.frontend.running import listen, serve_front
repository, grpc_url, metrics_url = sys.argv[1:]
listener = listen("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
alive = SimpleNamespace(process=SimpleNamespace(poll=lambda: None))
serve_front(FrontendOptions(grpc_url, metrics_url, served_models(Path(repository))), listener, alive)
"""


async def over_grpc(triton: Triton, prompt: str) -> list[float]:
    """The ages of one stream's tokens, in microseconds."""
    chunks = triton.stream(MODEL, Generation(prompt=prompt), "")
    return [(time.monotonic_ns() - int(chunk.text)) / 1000 async for chunk in chunks]


async def over_http(port: int, prompt: str) -> list[float]:
    """The same from the front; parsed by hand, for a client library would cost more than what is measured."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": MODEL, "stream": True, "prompt": prompt}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    )
    ages = []
    async for line in reader:
        if line.startswith(b"data: {"):
            now, text = time.monotonic_ns(), json.loads(line[6:])["choices"][0]["text"]
            ages.append((now - int(text)) / 1000)
    writer.close()
    return ages


async def together(streams: int, one: Callable[[], Awaitable[list[float]]]) -> list[float]:
    """The ages of all tokens of `streams` streams at once."""
    return [age for ages in await asyncio.gather(*(one() for _ in range(streams))) for age in ages]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def summary(ages: list[float]) -> str:
    cuts = statistics.quantiles(ages, n=100)
    return f"median {statistics.median(ages):6.0f} µs, 99 of 100 within {cuts[98]:6.0f} µs"


async def measure(triton_url: str, port: int, front: int, arguments: Any) -> None:
    triton = Triton(triton_url, "", 3600.0)
    for streams in arguments.streams:
        prompt = json.dumps({"clock": arguments.tokens, "pause": arguments.pause})
        direct = await together(streams, lambda: over_grpc(triton, prompt))  # noqa: B023
        before = cpu_seconds(front)
        through = await together(streams, lambda: over_http(port, prompt))  # noqa: B023
        spent = (cpu_seconds(front) - before) / len(through) * 1e6
        assert len(direct) == len(through) == streams * arguments.tokens
        print(f"{streams} streams, {streams / arguments.pause:.0f} tokens/s")
        print(f"  from Triton    {summary(direct)}")
        print(f"  from the front {summary(through)}; {spent:.0f} µs of its CPU a token")
    prompt = json.dumps({"clock": 3, "pause": 5, "wait": 5})
    begin = time.monotonic()
    ages = await together(arguments.most, lambda: over_http(port, prompt))
    assert len(ages) == 3 * arguments.most
    resident = int(Path(f"/proc/{front}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
    seconds = time.monotonic() - begin
    print(f"{arguments.most} streams at once: all answered, {seconds:.1f} s (15 s of pauses); front {resident:.0f} MB")
    await triton.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--most", type=int, default=1000)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        write_scripted(Path(folder))
        with TritonServer(Path(folder)) as server:
            command = [sys.executable, "-c", FRONT, folder, server.grpc_url, server.metrics_url]
            front = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert front.stdout is not None
            port = int(front.stdout.readline())
            try:
                asyncio.run(measure(server.grpc_url, port, front.pid, arguments))
            finally:
                front.terminate()
                front.wait()


if __name__ == "__main__":
    main()
