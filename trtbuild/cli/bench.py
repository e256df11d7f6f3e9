"""`trtbuild bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from trtbuild.cli.console import output, print_error, print_json, print_warning, progress
from trtbuild.errors import InputError

if TYPE_CHECKING:
    from trtbuild.loadtest.bench import BenchResult

_WHEN, _WHAT, _HOW, _RESULTS = "When requests come", "What is asked", "How it is asked", "Results"
_STDOUT = Path("-")


def bench_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A server's gRPC address (localhost:8001), what `compile` made (a server is started for it and "
            "stopped), or the base URL of an OpenAI-compatible API (http://localhost:9000/v1).",
        ),
    ],
    against: Annotated[
        Optional[str],
        typer.Option(help="A second target, measured afterwards with the same requests at the same times."),
    ] = None,
    against_model: Annotated[
        Optional[str], typer.Option(help="The second target's model; --model's if not given.")
    ] = None,
    rate: Annotated[
        Optional[float],
        typer.Option(min=1e-6, help="Requests a second, Poisson: an open loop.", rich_help_panel=_WHEN),
    ] = None,
    arrivals: Annotated[
        Optional[str],
        typer.Option(
            help="bursts:SIZE:PERIOD, such as bursts:8:2s: SIZE at once, every PERIOD.", rich_help_panel=_WHEN
        ),
    ] = None,
    trace: Annotated[
        Optional[Path],
        typer.Option(
            help="Replay a file: JSON lines (arrival in seconds; prompt, or prompt_tokens; output_tokens; priority), "
            "or the CSV of Azure's LLM inference traces.",
            rich_help_panel=_WHEN,
        ),
    ] = None,
    trace_speed: Annotated[
        float, typer.Option(min=1e-6, help="Replay it so many times as fast.", rich_help_panel=_WHEN)
    ] = 1.0,
    clients: Annotated[
        Optional[int],
        typer.Option(
            min=1, help="So many clients, each with one request after the other: a closed loop.", rich_help_panel=_WHEN
        ),
    ] = None,
    duration: Annotated[
        Optional[str],
        typer.Option(
            help="Requests come for so long (60, 90s, 5m); 30 s if neither this nor --requests is given.",
            rich_help_panel=_WHEN,
        ),
    ] = None,
    requests: Annotated[
        Optional[int], typer.Option(min=1, help="At most so many requests.", rich_help_panel=_WHEN)
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            help="Arrivals, prompts, lengths and priorities follow from it. A server with a prefix cache knows a "
            "seed's prompts again; take another one for each run.",
            rich_help_panel=_WHEN,
        ),
    ] = 0,
    input_tokens: Annotated[
        str,
        typer.Option(
            help="Tokens of a prompt: N, uniform:LEAST:MOST, normal:MEAN:SD or lognormal:MEDIAN:SIGMA.",
            rich_help_panel=_WHAT,
        ),
    ] = "128",
    output_tokens: Annotated[
        str, typer.Option(help="Tokens of an answer, in the same forms.", rich_help_panel=_WHAT)
    ] = "64",
    max_input_tokens: Annotated[
        Optional[int], typer.Option(min=1, help="Longer ones are cut to this.", rich_help_panel=_WHAT)
    ] = None,
    max_output_tokens: Annotated[
        Optional[int], typer.Option(min=1, help="Longer ones are cut to this.", rich_help_panel=_WHAT)
    ] = None,
    shared_prefix: Annotated[
        Optional[str],
        typer.Option(
            help="TOKENS or TOKENS:GROUPS: so many tokens, of one of GROUPS texts, before each prompt.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    text: Annotated[
        Optional[Path],
        typer.Option(help="What prompts are cut from; the calibration's prose if not given.", rich_help_panel=_WHAT),
    ] = None,
    tokenizer: Annotated[
        Optional[Path],
        typer.Option(
            help="A folder with the tokenizer that measures prompts; a compiled target's own if not given, else words.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    priority: Annotated[
        Optional[str],
        typer.Option(help="Shares that sum to 1: 1=0.2,2=0.5,3=0.3; 1 is the highest.", rich_help_panel=_WHAT),
    ] = None,
    cancel_share: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="This share of clients go away after a part of the answer.", rich_help_panel=_WHAT
        ),
    ] = 0.0,
    model: Annotated[
        Optional[str], typer.Option(help="Its name; the only one if not given.", rich_help_panel=_HOW)
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send prompts as chats, for the model's template.", rich_help_panel=_HOW)
    ] = False,
    ignore_eos: Annotated[
        bool, typer.Option(help="Answers go on past their end, so that their lengths hold.", rich_help_panel=_HOW)
    ] = True,
    temperature: Annotated[
        Optional[float], typer.Option(help="The server's if not given.", rich_help_panel=_HOW)
    ] = None,
    top_k: Annotated[Optional[int], typer.Option(help="The server's if not given.", rich_help_panel=_HOW)] = None,
    top_p: Annotated[Optional[float], typer.Option(help="The server's if not given.", rich_help_panel=_HOW)] = None,
    queue_timeout: Annotated[
        Optional[str],
        typer.Option(help="How long the server may let a request wait (500ms, 2s).", rich_help_panel=_HOW),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.01, help="Seconds from when it was due that a request may take.", rich_help_panel=_HOW),
    ] = 300.0,
    warmup: Annotated[int, typer.Option(min=0, help="Requests before those that count.", rich_help_panel=_HOW)] = 1,
    api_key: Annotated[
        Optional[str],
        typer.Option(envvar="TRTBUILD_API_KEY", help="Of an OpenAI-compatible API.", rich_help_panel=_HOW),
    ] = None,
    slo: Annotated[
        Optional[list[str]],
        typer.Option(
            help="Objectives for goodput: ttft=500ms,tpot=100ms,itl=200ms,e2e=10s; 1:ttft=200ms for priority 1. May be "
            "repeated.",
            rich_help_panel=_RESULTS,
        ),
    ] = None,
    json: Annotated[
        Optional[Path],
        typer.Option("--json", help="Write the figures there as JSON; - is standard output.", rich_help_panel=_RESULTS),
    ] = None,
    records: Annotated[
        Optional[Path],
        typer.Option(help="Write every request there, a line of JSON each.", rich_help_panel=_RESULTS),
    ] = None,
    html: Annotated[
        Optional[Path], typer.Option(help="Write a page with plots there, one file.", rich_help_panel=_RESULTS)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace such files.", rich_help_panel=_RESULTS)] = False,
) -> None:
    """Measure a served model under load: latencies, throughput, and how many requests met their objectives.

    In an open loop requests come whether or not the server keeps up, and latencies count from when each was due. Times
    to the first token (TTFT), between responses (ITL), per token (TPOT), to the end and their percentiles are as
    NVIDIA's AIPerf defines them.

    ```
    trtbuild bench smollm2 --rate 4 --slo ttft=500ms,tpot=100ms --html report.html
    trtbuild bench localhost:8001 --clients 8 --requests 200 --input-tokens lognormal:512:0.8 --output-tokens 128
    trtbuild bench localhost:8001 --trace AzureLLMInferenceTrace_conv.csv --trace-speed 0.2 --duration 10m
    trtbuild bench localhost:8001 --rate 20 --priority 1=0.2,2=0.8 --slo 1:ttft=200ms --json bench.json
    trtbuild bench smollm2 --against http://localhost:9000/v1 --arrivals bursts:16:5s --shared-prefix 512:4
    ```
    """
    from trtbuild.durations import parse_duration
    from trtbuild.loadtest.arrivals import Arrivals, Poisson, parse_arrivals
    from trtbuild.loadtest.bench import BenchOptions, bench
    from trtbuild.loadtest.document import document, write_document
    from trtbuild.loadtest.endpoint import parse_endpoint
    from trtbuild.loadtest.lengths import parse_lengths
    from trtbuild.loadtest.record import write_records
    from trtbuild.loadtest.shares import parse_priorities, parse_shared_prefix
    from trtbuild.loadtest.target import Asking
    from trtbuild.loadtest.trace import read_trace
    from trtbuild.loadtest.workload import WorkloadOptions
    from trtbuild.slo import parse_slo

    if sum(given is not None for given in (rate, arrivals, trace, clients)) != 1:
        raise InputError("Say when requests come by one of --rate, --arrivals, --trace and --clients.")
    when: Arrivals | None = Poisson(rate) if rate is not None else parse_arrivals(arrivals) if arrivals else None
    options = BenchOptions(
        WorkloadOptions(
            arrivals=when,
            trace=read_trace(trace, trace_speed) if trace is not None else (),
            clients=clients,
            seconds=None if duration is None else parse_duration(duration, "--duration", bare=True),
            requests=requests,
            seed=seed,
            input_tokens=parse_lengths(input_tokens, "--input-tokens"),
            output_tokens=parse_lengths(output_tokens, "--output-tokens"),
            most_input=max_input_tokens,
            most_output=max_output_tokens,
            shared_prefix=None if shared_prefix is None else parse_shared_prefix(shared_prefix),
            priorities={} if priority is None else parse_priorities(priority),
            cancel_share=cancel_share,
        ),
        asking=Asking(
            chat,
            ignore_eos,
            temperature,
            top_k,
            top_p,
            None if queue_timeout is None else parse_duration(queue_timeout, "--queue-timeout"),
        ),
        slo=parse_slo(slo or ()),
        text=text,
        tokenizer=tokenizer,
        timeout=timeout,
        warm_up=warmup,
    )
    first = parse_endpoint(target, model, api_key)
    second = None if against is None else parse_endpoint(against, against_model or model, api_key)
    _check_files(json, records, html, force)
    with progress(quiet=json == _STDOUT) as shown:
        result = bench(first, options, against=second, progress=shown)
    if json == _STDOUT:
        print_json(document(result))
    else:
        _show(result)
        if json is not None:
            write_document(result, json)
    if records is not None:
        write_records(records, ((measured.label, measured.run.records) for measured in result.measured))
    if html is not None:
        from trtbuild.report.bench_page import save_bench

        save_bench(result, html)
    for note in result.notes:
        print_warning(note)
    if not all(measured.summary.completed for measured in result.measured):
        print_error("No request was completed.")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _check_files(json: Path | None, records: Path | None, html: Path | None, force: bool) -> None:
    """Refuse, before any work, files that cannot be written."""
    from trtbuild.files import refuse_existing_file
    from trtbuild.report.rendering import check_page

    for option, file in (("--json", json), ("--records", records)):
        if file is not None and file != _STDOUT:
            refuse_existing_file(file, option, replace=force)
    if html is not None:
        check_page(html, force=force)


def _show(result: BenchResult) -> None:
    from trtbuild.cli import bench_tables as tables

    for measured in result.measured:
        output.print(tables.headline(result, measured), markup=False)
        if measured.summary.completed:
            output.print(tables.latency_table(measured.summary))
        for line in tables.throughput_lines(result, measured):
            output.print(line, markup=False)
        if measured.by_priority:
            output.print()
            output.print(tables.priority_table(measured))
        output.print()
    if len(result.measured) == 2:
        output.print(tables.comparison_table(*result.measured))
