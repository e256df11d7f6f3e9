"""`trtbuild serve`."""

from __future__ import annotations

import ipaddress
import json as json_module
import signal
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from trtbuild.cli.console import output, print_warning, progress
from trtbuild.errors import InputError
from trtbuild.files import atomic_file


def serve_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `compile` made, or a model repository.")],
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8002,
    ports_file: Annotated[
        Optional[Path], typer.Option(help="Write the addresses there (JSON) when the server is ready.")
    ] = None,
    openai: Annotated[bool, typer.Option("--openai", help="Answer OpenAI's HTTP API too.")] = False,
    openai_port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 takes a free one.")] = 9000,
    host: Annotated[
        str, typer.Option(help="The address it listens at; 0.0.0.0 for every one of this machine. Triton stays local.")
    ] = "127.0.0.1",
    api_key: Annotated[
        Optional[str],
        typer.Option(envvar="TRTBUILD_API_KEY", help="Answer only those who know it.", show_default=False),
    ] = None,
    log: Annotated[Optional[Path], typer.Option(help="tritonserver's log; a temporary file if not given.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that loading the model may take.")] = 600.0,
) -> None:
    """Serve on this machine's loopback interface with a real tritonserver, until Ctrl-C.

    ```
    trtbuild serve smollm2
    trtbuild serve smollm2 --openai
    trtbuild serve smollm2 --http-port 0 --grpc-port 0 --ports-file ports.json
    ```
    """
    from trtbuild.frontend.options import FrontendOptions, served_models
    from trtbuild.frontend.running import listen, serve_front
    from trtbuild.progress import Silent
    from trtbuild.triton.server import Ports, TritonServer

    repository = folder / "model_repository" if (folder / "model_repository").is_dir() else folder
    if api_key == "":
        raise InputError("The API key is empty. Leave --api-key and TRTBUILD_API_KEY out to ask for none.")
    listener = listen(host, openai_port) if openai else None
    models = served_models(repository) if openai else ()
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
        if listener is not None:
            addresses["openai"] = f"{host}:{listener.getsockname()[1]}"
        if ports_file is not None:
            with atomic_file(ports_file) as temporary:
                temporary.write_text(json_module.dumps(addresses) + "\n")
        places = ", ".join(f"{name} {address}" for name, address in addresses.items())
        output.print(f"Ready: {places}; its log is {server.log_file}. Ctrl-C stops it.")
        if listener is not None:
            if api_key is None and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
                print_warning(f"Whoever reaches {addresses['openai']} may use it; --api-key asks for a key.")
            serve_front(FrontendOptions(server.grpc_url, server.metrics_url, models, api_key), listener, server)
        server.wait()
    except KeyboardInterrupt:
        output.print("Stopping; what runs may finish.")
    finally:
        if ports_file is not None:
            ports_file.unlink(missing_ok=True)
        server.stop()


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
