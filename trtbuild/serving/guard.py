"""What ends the server when the model's process dies.

tritonserver 2.51 goes on without it: it says that it is ready, fails each new request, and never ends those that were
running, so that no load balancer looks elsewhere and clients wait for ever. A server that is gone is noticed by all.
"""

from __future__ import annotations

import os
import subprocess

_SCRIPT = """
read released && exit
echo "The process of model '$2' died. Its requests would wait for ever, so the server (process $1) is ended." >&2
kill -KILL "$1"
kill -TERM "$1"
"""
"""The second signal is for a server that is process 1 of its container, to which the kernel delivers no SIGKILL."""


class Guard:
    """A process of its own that waits at a pipe, whose other end the kernel closes with this process."""

    def __init__(self, model: str, server: int | None = None) -> None:
        """`server` is the process to end; None: this one's parent."""
        server = os.getppid() if server is None else server
        command = ["/bin/sh", "-c", _SCRIPT, "trtbuild-guard", str(server), model]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)

    def release(self) -> None:
        """This process may end from now on."""
        self._process.communicate(b"\n")
