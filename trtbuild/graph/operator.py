"""`trtbuild::RopeAlibiAttention`: its node, its definition in standard operators, and a model without definitions.

Attention with RoPE and ALiBi over a paged KV cache, for ragged tokens. Inputs:

0. qkv [tokens, (heads + 2 * kv_heads) * head_dim], F32, F16 or BF16: all queries, all keys, all values
1. kv_pages [pages, 2, kv_heads, page_size, head_dim] in the same type
2. block_table i32 [batch, max_pages]
3. cu_seqlens i32 [batch + 1]: sequence b's tokens are rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1
4. past_lengths i32 [batch]: the position of each sequence's first token
5. rope_cos_sin f32 [tokens, rotary_dim], only where rotary_dim is not 0: each token's cosines, then its sines

Outputs: attended [tokens, heads * head_dim]; kv_pages with the new keys (rotated) and values, in the same memory as
input 1. Position p of sequence b lies in page block_table[b, p // page_size], row p % page_size; a token at p attends
to max(0, p - window + 1) .. p. Rows of qkv from cu_seqlens[batch] on are padding: zeros come out and nothing is
written. Entries of block_table that no such position needs may be anything, and so may all other rows of the pages.
plugins/include/trtbuild/attention.h is the same operator in CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onnx import FunctionProto, ModelProto, NodeProto, helper

from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import Attention
from trtbuild.errors import InputError
from trtbuild.graph.definition import FEATURES, definition, overload

NAME, DOMAIN, VERSION = "RopeAlibiAttention", "trtbuild", 1

PAGE_SIZES = (16, 32, 64, 128)
HEAD_DIMS = (64, 80, 96, 128, 256)
"""Those that the kernels are compiled for; the definition takes any."""
MOST_ALIBI_HEADS = 256


@dataclass(frozen=True, slots=True)
class PagedInputs:
    """Names of what every layer's node takes besides its tokens and its pages."""

    block_table: str
    cu_seqlens: str
    past_lengths: str


def attention_node(
    spec: Attention,
    rope: Rope | None,
    window: int | None,
    *,
    qkv: str,
    kv_pages: str,
    shared: PagedInputs,
    cos_sin: str | None,
    outputs: tuple[str, str],
    name: str,
) -> NodeProto:
    """One layer's attention; `outputs` name what is attended and the updated pages."""
    inputs = [qkv, kv_pages, shared.block_table, shared.cu_seqlens, shared.past_lengths]
    attributes: dict[str, Any] = {
        "num_heads": spec.heads,
        "num_kv_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "rotary_dim": 0 if rope is None else rope.rotary_dim,
        "interleaved": int(rope is not None and rope.interleaved),
        "window": window or 0,
        "scale": spec.scale,
        "soft_cap": spec.soft_cap or 0.0,
        "plugin_version": str(VERSION),
        "plugin_namespace": DOMAIN,
    }
    if spec.alibi is not None:
        attributes["alibi_slopes"] = spec.alibi
    if cos_sin is not None:
        inputs.append(cos_sin)
    node = helper.make_node(NAME, inputs, outputs, name=name, domain=DOMAIN, **attributes)
    node.overload = overload(_features(node))
    return node


def _features(node: NodeProto) -> frozenset[str]:
    given = {attribute.name for attribute in node.attribute if helper.get_attribute_value(attribute)}
    return frozenset(feature for feature, attribute in FEATURES.items() if attribute in given)


def add_definitions(model: ModelProto) -> None:
    """Give the model the definition of each kind of RopeAlibiAttention that it has, which ONNX Runtime runs."""
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    kinds = {_features(node) for node in _nodes(model)}
    if not kinds:
        return
    model.opset_import.append(helper.make_opsetid(DOMAIN, VERSION))
    model.functions.extend(definition(DOMAIN, NAME, kind, opset) for kind in sorted(kinds, key=overload))


def strip_functions(model: ModelProto) -> int:
    """Take the definitions out, in place, so that TensorRT's parser finds the plugin; return how many there were."""
    kept = [function for function in model.functions if not is_definition(function)]
    removed = len(model.functions) - len(kept)
    if removed:
        del model.functions[:]
        model.functions.extend(kept)
        for node in _nodes(model):
            node.ClearField("overload")
    return removed


def is_operator(node: NodeProto) -> bool:
    return node.domain == DOMAIN and node.op_type == NAME


def is_definition(function: FunctionProto) -> bool:
    return function.domain == DOMAIN and function.name == NAME


def stand_ins(node: NodeProto) -> list[NodeProto]:
    """Standard nodes with the operator's inputs and outputs whose shapes are its own, and are refused where it would
    refuse them; for shape inference, which does not see through the definition's loop."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    widths = [heads * given["head_dim"] for heads in (given["num_heads"], 2 * given["num_kv_heads"])]
    rest, sizes = f"{node.name}/rest", f"{node.name}/sizes"
    return [
        helper.make_node("Constant", [], [sizes], name=sizes, value_ints=widths),
        helper.make_node("Split", [node.input[0], sizes], [node.output[0], rest], name=node.name, axis=1),
        helper.make_node("Identity", [node.input[1]], [node.output[1]], name=f"{node.name}/pages"),
    ]


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    return filter(is_operator, model.graph.node)


def refuse_without_kernel(spec: Attention, page_size: int) -> None:
    """Raise InputError for what the CUDA kernels are not compiled for."""
    if spec.head_dim not in HEAD_DIMS:
        raise InputError(
            f"Heads are {spec.head_dim} wide, and the plugin's kernels are for {_listed(HEAD_DIMS)}. "
            "Use --attention native."
        )
    if page_size not in PAGE_SIZES:
        raise InputError(f"--page-size is {_listed(PAGE_SIZES)}, not {page_size}.")
    if spec.alibi is not None and spec.heads > MOST_ALIBI_HEADS:
        raise InputError(
            f"The plugin's kernels take ALiBi's slopes of up to {MOST_ALIBI_HEADS} heads, and there are {spec.heads}. "
            "Use --attention native."
        )


def _listed(values: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, values[:-1]))} or {values[-1]}"
