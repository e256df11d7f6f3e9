"""The server and the model's process end with each other, whichever dies.

tritonserver 2.51 goes on without the model's process: it says that it is ready, fails each new request, and never ends
those that were running, so that no load balancer looks elsewhere and clients wait for ever. A server that is gone is
noticed by all. The model's process goes on without tritonserver until every answer is computed, for nobody, and has the
GPU's memory meanwhile, so that the next server cannot load the model.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading

_SCRIPT = """
read released && exit
echo "error: The process of model '$2' died. Its requests would wait for ever: the server (process $1) is ended." >&2
kill -KILL "$1"
kill -TERM "$1"
"""
"""The second signal is for a server that is process 1 of its container, to which the kernel delivers no SIGKILL."""


class Guard:
    """Watches the server in a thread, and is watched by a process that waits at a pipe, whose other end the kernel
    closes when this process dies."""

    def __init__(self, model: str, server: int | None = None) -> None:
        """`server` is the server's process; None: this one's parent."""
        server = os.getppid() if server is None else server
        self._model = model
        command = ["/bin/sh", "-c", _SCRIPT, "trtbuild-guard", str(server), model]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
        self._server = os.pidfd_open(server)
        threading.Thread(target=self._watch, name="trtbuild-guard", daemon=True).start()

    def release(self) -> None:
        """This process may end from now on."""
        self._process.communicate(b"\n")

    def _watch(self) -> None:
        gone = select.poll()
        gone.register(self._server, select.POLLIN)
        gone.poll()
        print(f"The server is gone: the process of model '{self._model}' ends.", file=sys.stderr, flush=True)
        self._process.kill()
        os._exit(1)
