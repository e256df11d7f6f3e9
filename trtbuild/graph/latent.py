"""Multi-head latent attention (DeepSeek-V2) with its up-projections absorbed, so that only the latent is cached."""

from __future__ import annotations

from trtbuild.architectures import Role
from trtbuild.architectures.rope_spec import Rope
from trtbuild.architectures.spec import LatentAttention
from trtbuild.graph import contract
from trtbuild.graph.attention import Scores, attend, merge_heads, rotate, update_cache
from trtbuild.graph.network import Network
from trtbuild.graph.positions import Mask, Step


def latent_attention(
    net: Network,
    spec: LatentAttention,
    layer: int,
    x: str,
    rope: Rope | None,
    mask: Mask,
    step: Step,
) -> str:
    """Attention of normalised x [batch, tokens, hidden].

    A head's score is q_c·(W_uk c) + q_r·k_r = (W_uk^T q_c)·c + q_r·k_r, and its output W_uv (sum of c): with the
    up-projections moved to the query's and the output's side, all heads attend to one key [c, k_r] and one value c per
    token, latent_dim + rope_dim numbers instead of heads * (content_dim + rope_dim + value_head_dim).
    """
    graph, path = net.graph, f"layers.{layer}/attn"
    content, rotated = _queries(net, spec, layer, x)
    latent = net.linear(x, Role.LATENT, layer)
    latent, key_rotated = net.split(latent, [spec.latent_dim, spec.rope_dim], 2, Role.LATENT.path(layer))
    latent = net.norm(latent, spec.norm, Role.LATENT_NORM, layer, width=spec.latent_dim)
    one_head = graph.constant("one", [1])
    latent = graph.node("Unsqueeze", [latent, one_head], f"{path}/latent")
    key_rotated = graph.node("Unsqueeze", [key_rotated, one_head], f"{path}/k_rope")
    if rope is not None:
        rotated = rotate(net, rotated, step.rotations[rope], rope, spec.rope_dim, f"{path}/q_rope")
        key_rotated = rotate(net, key_rotated, step.rotations[rope], rope, spec.rope_dim, f"{path}/k_rope")
    to_key, to_value = _up_projections(net, spec, layer)
    q = graph.node("Concat", [graph.node("MatMul", [content, to_key], f"{path}/q"), rotated], f"{path}/q", axis=3)
    key = graph.node("Concat", [latent, key_rotated], f"{path}/k", axis=3)
    key = update_cache(net, contract.past_key(layer), key, contract.present_key(layer), step, f"{path}/key_cache")
    zero, end, axis = graph.constant("zero", [0]), [spec.latent_dim], graph.constant("axis_3", [3])
    value = graph.node("Slice", [key, zero, graph.constant("latent_dim", end), axis], f"{path}/value")
    scores = Scores(spec.heads, 1, spec.key_dim, spec.latent_dim, spec.scale)
    mixed = attend(net, scores, q, key, value, mask, path)
    heads = graph.node("MatMul", [mixed, to_value], f"{path}/v_up")
    return net.linear(merge_heads(net, heads, path), Role.OUTPUT, layer)


def _queries(net: Network, spec: LatentAttention, layer: int, x: str) -> tuple[str, str]:
    """[batch, heads, tokens, content_dim] and [batch, heads, tokens, rope_dim]."""
    if spec.query_rank is None:
        role, y = Role.Q, net.linear(x, Role.Q, layer)
    else:
        y = net.linear(x, Role.Q_DOWN, layer)
        y = net.norm(y, spec.norm, Role.Q_DOWN_NORM, layer, width=spec.query_rank)
        role, y = Role.Q_UP, net.linear(y, Role.Q_UP, layer)
    path = role.path(layer)
    y = net.reshape(y, [0, 0, spec.heads, spec.content_dim + spec.rope_dim], path)
    y = net.graph.node("Transpose", [y], f"{path}/heads", perm=[0, 2, 1, 3])
    content, rotated = net.split(y, [spec.content_dim, spec.rope_dim], 3, path)
    return content, rotated


def _up_projections(net: Network, spec: LatentAttention, layer: int) -> tuple[str, str]:
    """W_uk [heads, content_dim, latent_dim], and W_uv transposed, [heads, latent_dim, value_head_dim]."""
    graph, path = net.graph, Role.KV_UP.path(layer)
    weight = graph.weight(net.binding.tensor(Role.KV_UP, layer), net.dtype)
    weight = net.reshape(weight, [spec.heads, spec.content_dim + spec.value_head_dim, spec.latent_dim], path)
    to_key, to_value = net.split(weight, [spec.content_dim, spec.value_head_dim], 1, path)
    return to_key, graph.node("Transpose", [to_value], path, perm=[0, 2, 1])
