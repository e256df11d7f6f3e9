"""What a generator needs of a server, whatever it speaks."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from trtbuild.errors import InputError
from trtbuild.loadtest.exchange import Exchange

CONNECT_SECONDS = 5.0
_RECOVERY_SECONDS = 2.0
_AGAIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Asking:
    """How every request of a run is asked; None leaves it to the server."""

    chat: bool = False
    """The prompt is a user's message for the model's template, not a text to go on with."""
    ignore_eos: bool = True
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    queue_timeout: float | None = None
    """Seconds that the server may let it wait."""


class Target(Protocol):
    """A server. Used in one event loop."""

    label: str

    async def connect(self) -> None:
        """Raises OSError with the reason if the server cannot be reached."""

    def send(self, exchange: Exchange) -> None:
        """Send the request now and tell `exchange` what becomes of it; never raises, never waits."""

    async def close(self) -> None: ...


def require(module: str, what: str) -> None:
    """Raise InputError, with what to install, if `what` cannot be done since `module` cannot be imported."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"{what} needs {module} ({error}). pip install 'trtbuild[bench]'") from error


async def recovers(connect: Callable[[], Awaitable[None]]) -> bool:
    """Whether a server of which a connection was lost can be connected to again, soon."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _RECOVERY_SECONDS
    while True:
        try:
            await connect()
        except OSError:
            if loop.time() >= end:
                return False
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            return True


def split_address(text: str) -> tuple[str, int]:
    """ "localhost:8001" and "[::1]:8001". Raises InputError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(
            f"{text!r} is neither a folder that exists nor an address like localhost:8001 (gRPC) or "
            "http://localhost:9000/v1 (OpenAI's API)."
        )
    return host, int(port)
