"""TensorRT's messages: which are noise, which one explains a failure, and what figures they carry."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_ERROR, _WARNING = 1, 2  # ILogger::Severity: 0 internal error, 1 error, 2 warning, 3 info, 4 verbose

_NOISE = (
    re.compile(r"Make sure input .* has Int64 binding"),
    re.compile(r"ONNX model has been generated with INT64 weights"),
    # Says again what 'Unused Input' has said.
    re.compile(r"is unused or used only at compile-time, but is not being removed"),
    # TensorRT-RTX asks for a GPU after every API error; on a machine without one this is not the error.
    re.compile(r"catchCudaError.*cudaError (35|100)"),
)
_SOURCE_PLACE = re.compile(
    r"\s*In \w+ at /\S+?(?=[\s)\]]|$)"  # In executeReshape at /_src/runtime/core/shapeMachine.cpp:348
    r"|^\[[^\]]*::\d+\]\s+"  # [checkMacros.cpp::catchCudaError::250]
    r"|\[\w+\.(?:cpp|h):\d+: \w+\]\s+"  # [myelin_graph.h:1295: attachExceptionMsgToGraph]
    r"|^\w+\.cpp:\d+:\s*"  # ModelImporter.cpp:140:
)
_MEMORY = re.compile(
    r"OutOfMemory|out of memory|bad_alloc|could not be allocated|Resource temporarily unavailable", re.I
)
_ADVICE = (
    (re.compile(r"within workspace limit"), "Allow the builder more workspace."),
    (
        re.compile(r"libnvinfer_lean"),
        "A version-compatible plan needs TensorRT's lean runtime, not installed here.",
    ),
)


@dataclass(slots=True)
class MessageLog:
    """Collects what the logger is told, warnings and worse, and the figures among the rest."""

    records: list[tuple[int, str]] = field(default_factory=list)
    weight_bytes: int | None = None

    def add(self, severity: int, text: str) -> None:
        if severity <= _WARNING:
            if not any(pattern.search(text) for pattern in _NOISE):
                self.records.append((severity, text))
        elif text.startswith("Total Weights Memory:"):
            self.weight_bytes = int(re.sub(r"\D", "", text))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Each warning once, in order."""
        return tuple(dict.fromkeys(clean(text) for severity, text in self.records if severity == _WARNING))

    @property
    def unused_inputs(self) -> tuple[str, ...]:
        found = (re.match(r"Unused Input: (.+)", text) for _, text in self.records)
        return tuple(match[1].strip() for match in found if match)

    @property
    def ran_out_of_memory(self) -> bool:
        return any(_MEMORY.search(text) for _, text in self.records)

    def explain(self) -> str:
        """The first error in full, as later ones follow from it, and advice where its cause is known."""
        errors = [text for severity, text in self.records if severity <= _ERROR]
        if not errors:
            return "TensorRT gave no reason."
        advice = [text for pattern, text in _ADVICE if any(pattern.search(error) for error in errors)]
        return " ".join([f"TensorRT says: {clean(errors[0])}.", *advice])


def clean(text: str) -> str:
    """One line, without TensorRT's own source files and line numbers."""
    return " ".join(_SOURCE_PLACE.sub("", text).split()).rstrip(".")


def parser_errors(errors: Sequence[Any]) -> str:
    """The ONNX parser's first error with the node's name and the local functions it stands in."""
    if not errors:
        return "TensorRT's ONNX parser refuses the file and gives no reason."
    error = errors[0]
    inside = "".join(f", inside {frame}" for frame in error.local_function_stack())
    code = str(error.code()).rpartition(".")[2].lower().replace("_", " ")
    where = f"node '{error.node_name()}' ({error.node_operator()}{inside})" if error.node_operator() else "the graph"
    # A bare check that failed describes itself as 'false'.
    reason = code if error.desc() == "false" else f"{code}: {clean(error.desc())}"
    more = f" {len(errors) - 1} more nodes are refused." if len(errors) > 1 else ""
    return f"TensorRT's ONNX parser refuses {where}: {reason}.{more}"


def make_logger(trt: Any, log: MessageLog) -> Any:
    """An ILogger that prints nothing and fills `log`. Its class exists only once the module is imported."""

    class CollectingLogger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            log.add(int(severity), msg)

    return CollectingLogger()


def make_monitor(trt: Any, phases: Any, report: Callable[[], None]) -> Any:
    """An IProgressMonitor that keeps `phases` and reports after each change; it never cancels the build."""

    class PhaseMonitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases.start(phase_name, parent_phase, num_steps)
            report()

        def step_complete(self, phase_name: str, step: int) -> bool:
            phases.step(phase_name, step)
            report()
            return True

        def phase_finish(self, phase_name: str) -> None:
            phases.finish(phase_name)
            report()

    return PhaseMonitor()
