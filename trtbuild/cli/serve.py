"""`trtbuild serve`."""

from __future__ import annotations

import json as json_module
import signal
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from trtbuild.cli.console import output, progress
from trtbuild.files import atomic_file


def serve_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `compile` made, or a model repository.")],
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8002,
    ports_file: Annotated[
        Optional[Path], typer.Option(help="Write the addresses there (JSON) when the server is ready.")
    ] = None,
    log: Annotated[Optional[Path], typer.Option(help="tritonserver's log; a temporary file if not given.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that loading the model may take.")] = 600.0,
) -> None:
    """Serve on this machine's loopback interface with a real tritonserver, until Ctrl-C.

    ```
    trtbuild serve smollm2
    trtbuild serve smollm2 --http-port 0 --grpc-port 0 --ports-file ports.json
    ```
    """
    from trtbuild.progress import Silent
    from trtbuild.triton.server import Ports, TritonServer

    repository = folder / "model_repository" if (folder / "model_repository").is_dir() else folder
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, _interrupt)
    if ports_file is not None:
        ports_file.unlink(missing_ok=True)
    with progress(quiet=False) as shown:
        server = TritonServer(
            repository,
            ports=Ports(http_port, grpc_port, metrics_port),
            log_file=log,
            timeout=timeout,
            progress=shown or Silent(),
        ).start()
    try:
        addresses = {"http": server.http_url, "grpc": server.grpc_url, "metrics": server.metrics_url}
        if ports_file is not None:
            with atomic_file(ports_file) as temporary:
                temporary.write_text(json_module.dumps(addresses) + "\n")
        places = ", ".join(f"{name} {address}" for name, address in addresses.items())
        output.print(f"Ready: {places}; its log is {server.log_file}. Ctrl-C stops it.")
        server.wait()
    except KeyboardInterrupt:
        output.print("Stopping; what runs may finish.")
    finally:
        if ports_file is not None:
            ports_file.unlink(missing_ok=True)
        server.stop()


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
