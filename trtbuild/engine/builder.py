"""From a Job to a plan, inside the builder's process. What the flavours do alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.engine.flavour import Adapter
from trtbuild.engine.job import Job, ProfileShapes
from trtbuild.engine.messages import MessageLog, make_logger, make_monitor, parser_errors
from trtbuild.engine.phases import BuildPhases
from trtbuild.engine.request import BuildOptions, Realised
from trtbuild.errors import BuildError, InputError

_WRITE_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Built:
    """What the worker reports of a plan that it has written."""

    bytes: int
    version: str
    realised: Realised
    warnings: tuple[str, ...]


def build(trt: Any, adapter: Adapter, job: Job, report: Callable[[float, str], None]) -> Built:
    """Parse, check, build and write. `report` is told a fraction and the phase's name.

    Raises InputError, BuildError (the builder's own reason), MemoryError, and OSError from writing.
    """
    log, phases = MessageLog(), BuildPhases()
    logger = make_logger(trt, log)
    builder = trt.Builder(logger)
    if builder is None:
        raise BuildError(f"{adapter.name}'s builder does not start. {log.explain()}")
    network = builder.create_network(adapter.network_flags(trt))
    config = builder.create_builder_config()
    config.progress_monitor = make_monitor(trt, phases, lambda: report(phases.fraction, phases.note))
    adapter.configure(trt, config, job)
    _set_options(trt, config, job.options)

    parser = trt.OnnxParser(network, logger)
    adapter.load_plugins(trt, logger, builder, parser, job)
    if not adapter.parse(parser, job):
        text = parser_errors([parser.get_error(index) for index in range(parser.num_errors)])
        raise MemoryError(text) if log.ran_out_of_memory else BuildError(text)
    _check_inputs(network, job.facts.inputs)
    _allow_decomposition(trt, network)
    int4_nodes, matmul_types = _read_network(trt, network)
    _check_int4_layers(job, int4_nodes)
    for shapes in job.profiles:
        _add_profile(builder, network, config, shapes, log)

    plan = builder.build_serialized_network(network, config)
    if plan is None:
        text = f"{adapter.name} cannot build this engine. {log.explain()}"
        raise MemoryError(text) if log.ran_out_of_memory else BuildError(text)
    _check_unused(log.unused_inputs)
    doubts = _check_weight_bytes(job, log.weight_bytes)
    size = _write(memoryview(plan), job.destination)
    warnings = (*doubts, *log.warnings, *adapter.finish(trt, config, job))
    return Built(size, trt.__version__, Realised(len(int4_nodes), matmul_types, log.weight_bytes), warnings)


def _set_options(trt: Any, config: Any, options: BuildOptions) -> None:
    # The inspector tells layers' types only of a plan built with this; it costs names, not speed.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    if options.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    if options.weight_streaming:
        config.set_flag(trt.BuilderFlag.WEIGHT_STREAMING)


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Let attention be taken apart where TensorRT has no kernel for all of it; where it has one, that stays.

    Without this the build fails instead: in FP32, for heads wider than 256 or that 8 does not divide, for fewer than 4
    query heads with one token a row, and for one token a row over more than about 24000 positions (seen in RTX 1.7.1).
    """
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionBoundaryLayer
            _set_decomposable(layer)


def _set_decomposable(boundary: Any) -> None:
    boundary.attention.decomposable = True


def _check_inputs(network: Any, expected: tuple[str, ...]) -> None:
    """Every input of the graph is needed for some output of the network.

    The parser leaves out inputs that it ignores (Attention's nonpad_kv_seqlen) together with what fed them, and the
    builder's warning 'Unused Input' comes only if nothing fed them.
    """
    makers: dict[str, Any] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for position in range(layer.num_outputs):
            makers[layer.get_output(position).name] = layer
    wanted = [network.get_output(index).name for index in range(network.num_outputs)]
    needed: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in needed:
            continue
        needed.add(name)
        layer = makers.get(name)
        if layer is not None:
            inputs = [layer.get_input(position) for position in range(layer.num_inputs)]
            wanted.extend(tensor.name for tensor in inputs if tensor is not None)
    _check_unused(tuple(name for name in expected if name not in needed))


def _check_unused(names: tuple[str, ...]) -> None:
    if names:
        listing = " and ".join(f"'{name}'" for name in names)
        raise BuildError(
            f"TensorRT does not use the graph's input {listing}: it has dropped what the input is for, and the engine "
            "would compute something else. Change the node that takes it."
        )


def _read_network(trt: Any, network: Any) -> tuple[tuple[str, ...], dict[str, int]]:
    """The dequantise layers that take INT4, and how many matrix multiplications compute in each type."""
    int4_nodes: list[str] = []
    matmul_types: dict[str, int] = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.DEQUANTIZE and layer.get_input(0).dtype == trt.DataType.INT4:
            int4_nodes.append(layer.name)
        elif layer.type == trt.LayerType.MATRIX_MULTIPLY:
            name = layer.get_output_type(0).name
            matmul_types[name] = matmul_types.get(name, 0) + 1
    return tuple(int4_nodes), matmul_types


def _check_int4_layers(job: Job, found: tuple[str, ...]) -> None:
    missing = len(job.facts.int4_nodes) - len(found)
    if missing > 0:
        lost = [name for name in job.facts.int4_nodes if name not in found]
        raise BuildError(
            f"The graph holds {len(job.facts.int4_nodes)} INT4 weights and TensorRT's network only {len(found)}: the "
            f"parser has turned {missing} into another type (for one, that of node '{lost[0] if lost else '?'}')."
        )


def _check_weight_bytes(job: Job, weight_bytes: int | None) -> tuple[str, ...]:
    """Whether the plan's weights are INT4's size and not that of the 16-bit numbers they stand for.

    A plan may hold a small weight once for each profile (seen), so growth up to that explains itself. Raises BuildError
    when only unpacking can explain the size; returns a warning where either can.
    """
    facts = job.facts
    if weight_bytes is None or not facts.int4_nodes or weight_bytes < facts.expanded_bytes:
        return ()
    sizes = (
        f"The plan holds {weight_bytes / 1e6:.2f} MB of weights; the graph's, {len(facts.int4_nodes)} of them INT4, "
        f"are {facts.weight_bytes / 1e6:.2f} MB"
    )
    if weight_bytes > facts.weight_bytes * len(job.profiles):
        raise BuildError(f"{sizes}: TensorRT has unpacked INT4. Another block size (64 or 128) may avoid it.")
    return (f"{sizes}. TensorRT keeps copies for {len(job.profiles)} profiles, or has unpacked INT4.",)


def _add_profile(builder: Any, network: Any, config: Any, shapes: ProfileShapes, log: MessageLog) -> None:
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        least, likely, most = shapes.inputs[tensor.name]
        if tensor.is_shape_tensor:  # its profile would be of values, and a decoder's requests are told by shapes
            raise InputError(f"The graph computes shapes from the values of its input '{tensor.name}'; use its shape.")
        profile.set_shape(tensor.name, tuple(least), tuple(likely), tuple(most))
    if config.add_optimization_profile(profile) < 0:
        raise BuildError(f"TensorRT refuses the profile '{shapes.name}'. {log.explain()}")


def _write(plan: memoryview, destination: Path) -> int:
    with destination.open("wb") as stream:
        for start in range(0, len(plan), _WRITE_BYTES):
            stream.write(plan[start : start + _WRITE_BYTES])
    return len(plan)
