"""`trtbuild export`."""

from __future__ import annotations

from dataclasses import asdict

from trtbuild.cli import arguments as a
from trtbuild.cli.console import output, print_json, progress, stage_table
from trtbuild.options import AttentionForm


def export_command(
    model: a.ModelArgument,
    out: a.OutOption,
    precision: a.PrecisionOption = None,
    capacity: a.CapacityOption = None,
    activations: a.ActivationsOption = None,
    block_size: a.BlockOption = None,
    int4_layers: a.LayersOption = "attention,mlp",
    revision: a.RevisionOption = None,
    ignore_config: a.IgnoreOption = None,
    copy_weights: a.CopyOption = False,
    audit: a.AuditOption = None,
    attention: a.AttentionOption = AttentionForm.NATIVE,
    page_size: a.PageOption = None,
    force: a.ForceOption = False,
    cache: a.CacheOption = None,
    json: a.JsonOption = False,
) -> None:
    """Write a model's decoder as ONNX (opset 24), without reading its weights.

    ```
    trtbuild export ./SmolLM2-135M-Instruct --out smollm2-onnx
    trtbuild export Qwen/Qwen3-8B -p int4 --capacity 8192 --out qwen3-onnx
    trtbuild export Qwen/Qwen3-8B --attention plugin --out qwen3-paged
    ```
    """
    from trtbuild.exporting import export

    options = a.export_options(
        precision,
        activations,
        block_size,
        int4_layers,
        revision,
        ignore_config,
        copy_weights,
        cache,
        audit,
        attention,
        page_size,
    )
    with progress(quiet=json) as shown:
        result = export(model, out, options, capacity=capacity, force=force, progress=shown)
    if json:
        print_json(
            {
                "onnx": result.onnx_file,
                "precision": result.precision.value,
                "network_type": result.dtype.value,
                "nodes": result.nodes,
                "capacity": result.capacity,
                "page_size": result.page_size,
                "stages": [asdict(stage) for stage in result.stages],
            }
        )
        return
    output.print(stage_table(result.stages))
    cache_text = f"a cache of {result.capacity} positions a sequence"
    if result.page_size is not None:
        cache_text = f"a cache in pages of {result.page_size}, sequences of up to {result.capacity} positions"
    output.print(f"{result.onnx_file}: {result.precision.value}, {cache_text}")
