"""The server and the model's process end with each other, whichever dies.

tritonserver 2.51 goes on without the model's process: it says that it is ready, fails each new request, and never ends
those that were running, so that no load balancer looks elsewhere and clients wait for ever. A server that is gone is
noticed by all. The model's process goes on without tritonserver until every answer is computed, for nobody, and has the
GPU's memory meanwhile, so that the next server cannot load the model; or it waits for the server for ever with the
interpreter in its hands, as a metric of the Python backend does, so that no thread in it can end it.
"""

from __future__ import annotations

import os
import subprocess

_SCRIPT = """
alive() {
    { read -r stat < "/proc/$1/stat"; } 2>/dev/null || return 1
    case "$stat" in *') Z '* | *') X '*) return 1 ;; esac
}
(
    while alive "$1"; do sleep 1; done
    kill -KILL "$2"
) >/dev/null 2>&1 &
read -r released
died=$?
kill $! 2>/dev/null
test $died -eq 0 && exit
alive "$1" || exit
echo "error: The process of model '$3' died. Its requests would wait for ever: the server (process $1) is ended." >&2
kill -KILL "$1"
kill -TERM "$1" 2>/dev/null
"""
"""The last signal is for a server that is process 1 of its container, to which the kernel delivers no SIGKILL."""


class Guard:
    """A process that looks for the server once a second, and waits at a pipe whose other end the kernel closes when
    this process dies."""

    def __init__(self, model: str, server: int | None = None) -> None:
        """`server` is the server's process; None: this one's parent."""
        server = os.getppid() if server is None else server
        command = ["/bin/sh", "-c", _SCRIPT, "trtbuild-guard", str(server), str(os.getpid()), model]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)

    def release(self) -> None:
        """This process may end from now on."""
        self._process.communicate(b"\n")
