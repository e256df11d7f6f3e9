"""Running the front next to a Triton server of ours."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import TYPE_CHECKING

from trtbuild.errors import InputError
from trtbuild.frontend.options import FrontendOptions
from trtbuild.triton.server import TritonServer

if TYPE_CHECKING:
    import uvicorn

GRACE_SECONDS = 25
"""How long answers may take to finish when the front is stopped."""
_WATCH_SECONDS = 0.25
_KEEP_ALIVE_SECONDS = 75
"""A connection may idle so long: more than clients and proxies let theirs idle (60 s is common), so that it is they who
close it and no request meets a connection that is being closed."""
_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket at `host`, a name or an address; port 0 takes a free one. Raises InputError if it cannot be had."""
    _import()
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"The OpenAI front cannot listen at {host}:{port}: {error}. Choose another --host or --openai-port, or "
            "port 0 for any that is free."
        ) from error


def serve_front(options: FrontendOptions, listener: socket.socket, triton: TritonServer) -> None:
    """Serve until SIGINT or SIGTERM, which is raised again when the answers are finished, or until Triton ends.

    Must be called in the main thread.
    """
    import uvicorn

    from trtbuild.frontend.app import create_app

    _raise_file_limit()
    config = uvicorn.Config(
        create_app(options),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        watch = asyncio.create_task(_stop_with(triton, server))
        await server.serve(sockets=[listener])
        watch.cancel()

    asyncio.run(run())


async def _stop_with(triton: TritonServer, server: uvicorn.Server) -> None:
    """Stop the front when Triton is no more: it could only say so."""
    while triton.process.poll() is None:
        await asyncio.sleep(_WATCH_SECONDS)
    server.should_exit = True


def _raise_file_limit() -> None:
    """An answer is an open file, and a process may have 1024 unless it asks for what it is allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _import() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"The OpenAI front needs fastapi and uvicorn ({error}). pip install 'trtbuild[openai]'"
        ) from error
