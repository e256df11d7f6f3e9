"""From a checkpoint to ONNX: read it, quantise it if asked to, write the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import trtbuild
from trtbuild.architectures import Binding, Role, read_decoder
from trtbuild.calibration.audit_file import read_audit
from trtbuild.checkpoint import Checkpoint, open_checkpoint
from trtbuild.dtypes import DType
from trtbuild.errors import InputError
from trtbuild.files import atomic_folder, refuse_existing
from trtbuild.graph.decoder import GraphOptions, author_decoder
from trtbuild.graph.operator import refuse_without_kernel
from trtbuild.graph.paged import pageable
from trtbuild.graph.save import save_graph
from trtbuild.graph.widen import widen
from trtbuild.options import AttentionForm, ExportOptions, Precision
from trtbuild.progress import Progress, Silent
from trtbuild.quantize.calibrated import Calibrated, is_calibrated, take_apart
from trtbuild.quantize.packed import PackedCheckpoint
from trtbuild.quantize.packed import take_apart as take_packed_apart
from trtbuild.quantize.packed.convert import convert, matrices
from trtbuild.quantize.rtn import Int4Options, plan_int4, quantize_to_int4
from trtbuild.quantize.stored import DEFAULT_LAYERS, Grid, QuantizedMatrix, QuantizedTable, int4, named
from trtbuild.quantize.table import BLOCK
from trtbuild.stages import Stage, Stages

DEFAULT_CAPACITY = 2048
DEFAULT_PAGE_SIZE = 64

MODEL_FILE = "model.onnx"
INT4_FILE = "model.int4.safetensors"


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint's decoder with the weights as they will be used."""

    checkpoint: Checkpoint
    binding: Binding
    precision: Precision
    dtype: DType
    """What the network computes in."""
    quantised: Mapping[str, QuantizedMatrix]
    int4_options: Int4Options | None
    """What to quantise with, where that is still to be done."""
    calibrated: Calibrated | None = None
    """Where `calibrate` made the checkpoint."""
    unsafe: frozenset[str] = frozenset()
    """Values and weights that an FP16 network keeps in FP32."""
    table: QuantizedTable | None = None
    """The embedding, where it is INT4."""
    packed: PackedCheckpoint | None = None
    """Where the checkpoint came in another library's INT4."""

    @property
    def method(self) -> str:
        """How the INT4 weights are, or will be, rounded."""
        if self.packed is not None:
            return f"{self.packed.method} as published"
        return "rtn" if self.calibrated is None else self.calibrated.method

    @property
    def grids(self) -> tuple[Grid, ...]:
        """What each INT4 matrix, and the embedding if it is INT4, is rounded to."""
        return *(each.grid for each in self.quantised.values()), *(() if self.table is None else (int4(BLOCK),))

    @property
    def packed_matrices(self) -> tuple[str, ...]:
        """Names of the matrices that come in another library's INT4."""
        if self.packed is None:
            return ()
        return tuple(matrix.name for matrix in matrices(self.binding, self.packed))

    @property
    def source_name(self) -> str:
        """The unquantised checkpoint, as the user gave it."""
        return self.checkpoint.source if self.calibrated is None else self.calibrated.source["name"]

    @property
    def source_fingerprint(self) -> str:
        return self.checkpoint.fingerprint() if self.calibrated is None else self.calibrated.source["fingerprint"]

    def metadata(self, dtype: DType) -> dict[str, str]:
        """What an ONNX model that computes in `dtype` says of itself: where it came from and how it was made."""
        facts = {
            "trtbuild.source": self.checkpoint.name,
            "trtbuild.source_fingerprint": self.source_fingerprint,
            "trtbuild.model_type": self.binding.spec.model_type,
            "trtbuild.precision": self.precision.value,
            "trtbuild.network_type": dtype.value,
        }
        if self.grids:
            facts["trtbuild.int4"] = f"{self.method}, symmetric, {named(self.grids)}"
        return facts


@dataclass(frozen=True, slots=True)
class ExportResult:
    """An ONNX model and its weights, in a folder of their own."""

    folder: Path
    onnx_file: Path
    precision: Precision
    dtype: DType
    nodes: int
    capacity: int
    """Positions of a row of the KV cache; in the plugin form, the most that a sequence may have."""
    page_size: int | None
    """Positions of a page of it; None: the native form."""
    stages: tuple[Stage, ...]


def export(
    model: str | Path,
    out: Path,
    options: ExportOptions | None = None,
    *,
    capacity: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Write the decoder of `model` as `out`/model.onnx with the weight files beside it.

    `capacity` is the number of positions of each row of the KV cache; None takes 2048, or all that the model has. In
    the plugin form it is the most that a sequence may have, and None takes all. Raises InputError and BuildError; `out`
    appears whole or not at all.
    """
    options = options or ExportOptions()
    stages = Stages(progress or Silent())
    refuse_existing(out, replace=force)
    with stages.stage("checkpoint"):
        weights = read_weights(model, options, stages.progress)
    refuse_overwriting(weights.checkpoint, out)
    page_size = check_pages(weights.binding, options)
    capacity = check_capacity(weights.binding, capacity, paged=page_size is not None)
    with atomic_folder(out, replace=force) as folder:
        weights = quantise(weights, options, folder, stages)
        with stages.stage("graph") as stage:
            file = folder / MODEL_FILE
            nodes = write_graph(weights, file, capacity, page_size=page_size, copy_weights=options.copy_weights)
            stage.output_bytes, stage.note = file.stat().st_size, f"{nodes} nodes"
    return ExportResult(
        out,
        out / MODEL_FILE,
        weights.precision,
        weights.dtype,
        nodes,
        capacity,
        page_size,
        tuple(stages.done),
    )


def write_graph(
    weights: Weights,
    file: Path,
    capacity: int,
    *,
    page_size: int | None = None,
    dtype: DType | None = None,
    copy_weights: bool = False,
) -> int:
    """Author and save the decoder; return how many nodes it has. `dtype` None is the weights' own network type."""
    options = GraphOptions(dtype or weights.dtype, capacity, page_size)
    graph = author_decoder(weights.binding, options, weights.quantised, weights.metadata(options.dtype), weights.table)
    if options.dtype is DType.F16:
        widen(graph.model, weights.unsafe)
    save_graph(graph, file, copy_weights=copy_weights)
    return len(graph.model.graph.node)


def read_weights(model: str | Path, options: ExportOptions, progress: Progress) -> Weights:
    """Open the checkpoint and settle on a type; nothing is quantised yet, but everything that could refuse has."""
    checkpoint = open_checkpoint(model, revision=options.revision, cache=options.cache, progress=progress)
    weights = _read(checkpoint, options)
    if options.audit is None:
        return weights
    if weights.dtype is not DType.F16:
        raise InputError(
            f"--audit is of FP16, and this network computes in {weights.dtype.value}, which holds what FP32 does. "
            "Leave it out, or give --precision fp16 (--activations fp16 with int4)."
        )
    return replace(weights, unsafe=read_audit(options.audit, checkpoint))


def _read(checkpoint: Checkpoint, options: ExportOptions) -> Weights:
    if is_calibrated(checkpoint):
        return _read_calibrated(checkpoint, options)
    packed = take_packed_apart(checkpoint)
    if packed is not None:
        return _read_packed(checkpoint, packed, options)
    binding = read_decoder(checkpoint, options.ignore_config)
    stored = binding.tensor(Role.EMBEDDING).dtype
    precision = options.precision or {v: k for k, v in _NETWORK_TYPES.items()}[stored]
    if precision is not Precision.INT4:
        if options.activations is not None or options.block_size is not None:
            raise InputError("--activations and --block-size are for --precision int4 only. Leave them out.")
        return Weights(checkpoint, binding, precision, _NETWORK_TYPES[precision], {}, None)
    dtype = options.activations or (DType.BF16 if stored is DType.BF16 else DType.F16)
    int4 = Int4Options(dtype, options.block_size, options.int4_layers)
    plan_int4(binding, int4)
    return Weights(checkpoint, binding, precision, dtype, {}, int4)


def _read_calibrated(checkpoint: Checkpoint, options: ExportOptions) -> Weights:
    """What `calibrate` made: the matrices are INT4 already."""
    calibrated = take_apart(checkpoint)
    binding = read_decoder(calibrated.plain, options.ignore_config)
    _refuse_requantising(checkpoint, options, "is calibrated INT4 already")
    scales = next(iter(calibrated.quantised.values())).scales.dtype
    return Weights(
        checkpoint,
        binding,
        Precision.INT4,
        options.activations or scales,
        calibrated.quantised,
        None,
        calibrated,
        table=calibrated.table,
    )


def _read_packed(checkpoint: Checkpoint, packed: PackedCheckpoint, options: ExportOptions) -> Weights:
    """A checkpoint in another library's INT4, which `quantise` converts without rounding anew."""
    binding = read_decoder(packed.plain, options.ignore_config)
    _refuse_requantising(checkpoint, options, f"comes in INT4 ({packed.method})")
    matrices(binding, packed)
    dtype = options.activations or (DType.BF16 if packed.scale_type is DType.BF16 else DType.F16)
    return Weights(checkpoint, binding, Precision.INT4, dtype, {}, None, packed=packed)


def _refuse_requantising(checkpoint: Checkpoint, options: ExportOptions, what: str) -> None:
    if options.precision not in (None, Precision.INT4) or options.block_size or options.int4_layers != DEFAULT_LAYERS:
        raise InputError(
            f"{checkpoint.name} {what}, so --precision, --block-size and --int4-layers cannot change it. "
            "Leave them out, or give the checkpoint it was made from."
        )


_NETWORK_TYPES = {Precision.FP32: DType.F32, Precision.FP16: DType.F16, Precision.BF16: DType.BF16}


def quantise(weights: Weights, options: ExportOptions, folder: Path, stages: Stages) -> Weights:
    """The weights in INT4, in a file of their own in `folder`, if the precision is INT4; else as they are."""
    if weights.int4_options is None and weights.packed is None:
        return weights
    file = folder / INT4_FILE
    metadata = {"format": "pt", "trtbuild.version": trtbuild.__version__, "trtbuild.method": weights.method}
    with stages.stage("int4") as stage:
        if weights.packed is not None:
            quantised = convert(weights.binding, weights.packed, file, metadata, stages.progress)
        else:
            assert weights.int4_options is not None
            quantised = quantize_to_int4(weights.binding, weights.int4_options, file, metadata, stages.progress)
        stage.output_bytes = file.stat().st_size
        done = replace(weights, binding=quantised.binding, quantised=quantised.quantised, table=quantised.table)
        stage.note = f"{len(done.grids)} matrices, {named(done.grids)}"
    return done


def unpacked(weights: Weights, options: ExportOptions, folder: Path, stages: Stages) -> Weights:
    """Another library's INT4 as ours, in a file of its own in `folder`; anything else as it is."""
    if weights.packed is None:
        return weights
    folder.mkdir(exist_ok=True)
    return replace(quantise(weights, options, folder, stages), packed=None)


def refuse_overwriting(checkpoint: Checkpoint, out: Path) -> None:
    """Raise InputError if replacing `out` would remove the checkpoint's own files."""
    for file in (*checkpoint.weight_files, *checkpoint.tokenizer_files):
        if file.resolve().is_relative_to(out.resolve()):
            raise InputError(f"--out {out} holds the checkpoint itself ({file.name}). Choose another folder.")


def check_pages(binding: Binding, options: ExportOptions) -> int | None:
    """The page size that `options` ask for; None for the native form.

    Raises InputError for a decoder that the plugin has no form or no kernel for.
    """
    if options.attention is AttentionForm.NATIVE:
        if options.page_size is not None:
            raise InputError("--page-size is for --attention plugin only. Leave it out.")
        return None
    page_size = DEFAULT_PAGE_SIZE if options.page_size is None else options.page_size
    refuse_without_kernel(pageable(binding.spec), page_size)
    return page_size


def check_capacity(binding: Binding, capacity: int | None, *, paged: bool = False) -> int:
    """The cache's positions, which are no more than the model was trained for. Raises InputError."""
    limit = binding.spec.max_positions
    if capacity is None:
        return limit if paged else min(DEFAULT_CAPACITY, limit)
    if not 1 <= capacity <= limit:
        raise InputError(
            f"A cache of {capacity} positions is asked for, and the model was trained for {limit} "
            f"(max_position_embeddings). Give --capacity {limit} or less."
        )
    return capacity
