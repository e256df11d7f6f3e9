"""MLPs, and mixtures of them."""

from __future__ import annotations

import numpy as np

from trtbuild.architectures import Role
from trtbuild.architectures.recipe import CORRECTION
from trtbuild.architectures.spec import Experts, GateLayout, GroupScore, Mlp, Router, RouterScore
from trtbuild.architectures.weights import DENSE, EXPERT, SHARED, MlpRoles
from trtbuild.dtypes import DType
from trtbuild.graph.network import Network
from trtbuild.graph.positions import MASKED


def mlp(net: Network, spec: Mlp | Experts, layer: int, x: str) -> str:
    """A layer's MLP of normalised x [batch, tokens, hidden]."""
    return dense_mlp(net, spec, DENSE, layer, x) if isinstance(spec, Mlp) else mixture(net, spec, layer, x)


def dense_mlp(net: Network, spec: Mlp, roles: MlpRoles, layer: int, x: str) -> str:
    path = roles.down.path(layer).rpartition("/")[0]
    if spec.gate is GateLayout.NONE:
        hidden = net.activation(net.linear(x, roles.up, layer), spec.activation, f"{path}/act")
    elif spec.gate is GateLayout.SEPARATE:
        gate = net.linear(x, roles.gate, layer)
        hidden = net.gated(gate, net.linear(x, roles.up, layer), spec.activation, path)
    else:
        gate, up = _gate_and_up(net, spec, net.linear(x, roles.gate_up, layer), 1, roles.gate_up.path(layer))
        hidden = net.gated(gate, up, spec.activation, path)
    return net.linear(hidden, roles.down, layer)


def _gate_and_up(net: Network, spec: Mlp, x: str, count: int, path: str) -> tuple[str, str]:
    """The two halves, each [batch, tokens, count * width], of the fused projection of `count` MLPs side by side."""
    if spec.gate is GateLayout.BLOCKS and count == 1:
        gate, up = net.split(x, [spec.width, spec.width], 2, path)
        return gate, up
    if spec.gate is GateLayout.BLOCKS:
        halves = net.split(net.reshape(x, [0, 0, count, 2 * spec.width], path), [spec.width, spec.width], 3, path)
    else:
        halves = net.split(net.reshape(x, [0, 0, count * spec.width, 2], path), [1, 1], 3, path)
    gate, up = (
        net.reshape(half, [0, 0, count * spec.width], f"{path}/{name}")
        for half, name in zip(halves, ("gate", "up"), strict=True)
    )
    return gate, up


def mixture(net: Network, spec: Experts, layer: int, x: str) -> str:
    """Experts as one wide MLP whose hidden units are multiplied by the weight of the expert they belong to.

    All experts are computed for every token: count / top_k times the arithmetic of the chosen ones, in matrix products
    that TensorRT, its INT4 kernels and ONNX Runtime know, and the sum over experts is the product's own.
    """
    graph, path = net.graph, f"layers.{layer}/mlp"
    routes = _routes(net, spec, layer, x)
    result = None
    for index, group in enumerate(net.binding.expert_groups(spec)):
        part = f"{path}/experts" if index == 0 else f"{path}/experts.{index}"
        own = routes if len(group) == spec.count else _columns(net, routes, group, part)
        y = _experts(net, spec, layer, x, own, group, part)
        result = y if result is None else graph.node("Add", [result, y], part)
    assert result is not None
    if spec.shared is not None:
        shared = dense_mlp(net, spec.shared, SHARED, layer, x)
        if spec.shared_gate:
            gate = graph.node("Sigmoid", [net.linear(x, Role.SHARED_ROUTER, layer)], f"{path}/shared/gate")
            shared = graph.node("Mul", [shared, gate], f"{path}/shared/gate")
        result = graph.node("Add", [result, shared], f"{path}/shared/sum")
    return result


def _experts(net: Network, spec: Experts, layer: int, x: str, routes: str, group: range, path: str) -> str:
    """What the experts of `group` add, given their weights [batch, tokens, len(group)]."""
    graph, own, count = net.graph, spec.mlp, len(group)

    def project(x: str, role: Role, name: str) -> str:
        return net.product(x, net.binding.experts(role, layer, group, spec.count), f"{path}/{name}", routes)

    def biased(y: str, role: Role, name: str) -> str:
        if not own.bias:
            return y
        return graph.node("Add", [y, _biases(net, spec, role, layer, group, f"{path}/{name}")], f"{path}/{name}")

    if own.gate is GateLayout.NONE:
        up = biased(project(x, EXPERT.up, "up_proj"), EXPERT.up, "up_proj")
        hidden = net.activation(up, own.activation, f"{path}/act")
    elif own.gate is GateLayout.SEPARATE:
        gate = biased(project(x, EXPERT.gate, "gate_proj"), EXPERT.gate, "gate_proj")
        up = biased(project(x, EXPERT.up, "up_proj"), EXPERT.up, "up_proj")
        hidden = net.gated(gate, up, own.activation, path)
    else:
        fused = biased(project(x, EXPERT.gate_up, "gate_up_proj"), EXPERT.gate_up, "gate_up_proj")
        gate, up = _gate_and_up(net, own, fused, count, f"{path}/gate_up_proj")
        hidden = net.gated(gate, up, own.activation, path)
    hidden = net.reshape(hidden, [0, 0, count, own.width], f"{path}/by_expert")
    weights = graph.node("Unsqueeze", [routes, graph.constant("axis_3", [3])], f"{path}/weights")
    hidden = graph.node("Mul", [hidden, weights], f"{path}/routed")
    hidden = net.reshape(hidden, [0, 0, count * own.width], f"{path}/routed")
    y = project(hidden, EXPERT.down, "down_proj")
    if own.bias:
        bias = _biases(net, spec, EXPERT.down, layer, group, f"{path}/down_proj")
        bias = net.reshape(bias, [count, net.binding.spec.hidden], f"{path}/down_proj/bias")
        y = graph.node("Add", [y, graph.node("MatMul", [routes, bias], f"{path}/down_proj/bias")], f"{path}/down_proj")
    return y


def _biases(net: Network, spec: Experts, role: Role, layer: int, group: range, path: str) -> str:
    """The experts' biases, one behind the other."""
    parts = net.binding.expert_biases(role, layer, group, spec.count)
    return net.graph.weight(parts[0], net.dtype) if len(parts) == 1 else net.joined(parts, f"{path}/bias")


def _columns(net: Network, routes: str, group: range, path: str) -> str:
    first, last = (net.graph.constant(f"expert_{index}", [index]) for index in (group.start, group.stop))
    return net.graph.node("Slice", [routes, first, last, net.graph.constant("axis_2", [2])], f"{path}/weights")


def _routes(net: Network, spec: Experts, layer: int, x: str) -> str:
    """Each expert's weight for each token, [batch, tokens, count]; 0 for those not chosen. Computed in FP32."""
    graph, router, path = net.graph, spec.router, Role.ROUTER.path(layer)
    if net.dtype is not DType.F32:
        x = graph.cast(x, DType.F32, f"{path}/to_f32")
    weight = graph.weight(net.binding.tensor(Role.ROUTER, layer), DType.F32)
    scores = graph.node("MatMul", [x, graph.node("Transpose", [weight], path, perm=[1, 0])], path)
    bias = net.binding.bias(Role.ROUTER, layer)
    if bias is not None:
        scores = graph.node("Add", [scores, graph.weight(bias, DType.F32)], path)
    if router.score is RouterScore.SIGMOID:
        scores = graph.node("Sigmoid", [scores], path)
    else:
        scores = graph.node("Softmax", [scores], path, axis=-1)
    choice = scores
    if router.correction_bias:
        correction = graph.weight(net.binding.tensor(Role.ROUTER, layer, CORRECTION), DType.F32)
        choice = graph.node("Add", [scores, correction], f"{path}/corrected")
    if router.groups > 1:
        choice = _within_kept_groups(net, router, spec.count, choice, f"{path}/groups")
    count = graph.constant(f"top_{router.top_k}", [router.top_k])
    weights, indices = graph.top_k(choice, count, f"{path}/chosen")
    if choice is not scores:
        weights = graph.node("GatherElements", [scores, indices], f"{path}/weights", axis=2)
    if router.normalise:
        total = graph.node("ReduceSum", [weights, graph.constant("axis_2", [2])], f"{path}/total")
        weights = graph.node("Div", [weights, total], f"{path}/weights")
    if router.scale != 1.0:
        weights = graph.node("Mul", [weights, net.scalar(router.scale, DType.F32)], f"{path}/weights")
    last = graph.constant("axis_2", [2])
    own = graph.constant(f"indices_{spec.count}", np.arange(spec.count).reshape(-1, 1))
    chosen = graph.node("Equal", [own, graph.node("Unsqueeze", [indices, last], f"{path}/chosen")], f"{path}/chosen")
    weights = graph.node("Unsqueeze", [weights, last], f"{path}/weights")
    weights = graph.node("Where", [chosen, weights, net.scalar(0.0, DType.F32)], f"{path}/chosen")
    routes = graph.node("ReduceSum", [weights, graph.constant("axis_3", [3])], f"{path}/routes", keepdims=0)
    return routes if net.dtype is DType.F32 else graph.cast(routes, net.dtype, f"{path}/narrow")


def _within_kept_groups(net: Network, router: Router, count: int, choice: str, path: str) -> str:
    """The scores with those of experts outside the best groups out of the running."""
    graph, size = net.graph, count // router.groups
    grouped = net.reshape(choice, [0, 0, router.groups, size], path)
    axis = graph.constant("axis_3", [3])
    if router.group_score is GroupScore.BEST:
        scores = graph.node("ReduceMax", [grouped, axis], path, keepdims=0)
    else:
        best, _ = graph.top_k(grouped, graph.constant("top_2", [2]), f"{path}/best")
        scores = graph.node("ReduceSum", [best, axis], path, keepdims=0)
    kept_count = graph.constant(f"top_{router.kept_groups}", [router.kept_groups])
    _, kept = graph.top_k(scores, kept_count, f"{path}/kept")
    kept = graph.node("Unsqueeze", [kept, graph.constant("axis_2", [2])], f"{path}/kept")
    own = graph.constant(f"indices_{router.groups}", np.arange(router.groups).reshape(-1, 1))
    same = graph.cast(graph.node("Equal", [own, kept], f"{path}/kept"), DType.F32, f"{path}/mask")
    mask = graph.node("ReduceSum", [same, axis], f"{path}/mask")
    allowed = graph.node("Greater", [mask, net.scalar(0.0, DType.F32)], f"{path}/mask")
    masked = graph.node("Where", [allowed, grouped, net.scalar(MASKED, DType.F32)], f"{path}/mask")
    return net.reshape(masked, [0, 0, count], f"{path}/mask")
