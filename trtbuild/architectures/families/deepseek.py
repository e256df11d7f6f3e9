"""DeepSeek-V2, V2-Lite, V3 and R1: latent attention, routed and shared experts behind the first dense layers."""

from __future__ import annotations

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES
from trtbuild.architectures.reading import read_activation, read_rms_norm
from trtbuild.architectures.recipe import CORRECTION, Recipe, Role
from trtbuild.architectures.rope import extended_positions, read_rope, rope_parameters, yarn_magnitude
from trtbuild.architectures.spec import (
    DecoderSpec,
    Experts,
    GroupScore,
    LatentAttention,
    Layer,
    Mlp,
    Norm,
    NormKind,
    Router,
    RouterScore,
)

BOTTLENECK_NORM = Norm(NormKind.RMS, 1e-6)
"""The published code does not take its epsilon from the config."""


def read_deepseek_v2(config: ConfigReader) -> DecoderSpec:
    _only(config, "scoring_func", "softmax")
    if config.flag("norm_topk_prob", False):
        raise config.refuse("'norm_topk_prob' is true", "No published DeepSeek-V2 has it, and its meaning differs.")
    method = config.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.refuse(f"topk_method {method!r} is not known", "Known are greedy, group_limited_greedy.")
    limited = method == "group_limited_greedy"
    groups, kept = config.optional("n_group", int), config.optional("topk_group", int)
    router = Router(
        RouterScore.SOFTMAX,
        config.integer("num_experts_per_tok"),
        normalise=False,
        scale=config.real("routed_scaling_factor", 1.0),
        groups=(groups or 1) if limited else 1,
        kept_groups=(kept or 1) if limited else 1,
        group_score=GroupScore.BEST,
    )
    return _spec(config, router, first_dense=config.integer("first_k_dense_replace", 0))


def read_deepseek_v3(config: ConfigReader) -> DecoderSpec:
    _only(config, "scoring_func", "sigmoid")
    _only(config, "topk_method", "noaux_tc")
    router = Router(
        RouterScore.SIGMOID,
        config.integer("num_experts_per_tok", 8),
        normalise=config.flag("norm_topk_prob", True),
        scale=config.real("routed_scaling_factor", 2.5),
        correction_bias=True,
        groups=config.integer("n_group", 8),
        kept_groups=config.integer("topk_group", 4),
        group_score=GroupScore.BEST_TWO,
    )
    # A module that guesses a further token ahead, which decoding one by one leaves out.
    config.pass_over("num_nextn_predict_layers", "num_mtp_layers")
    return _spec(
        config,
        router,
        first_dense=config.integer("first_k_dense_replace", 3),
        interleaved=config.flag("rope_interleave", True),
    )


def _only(config: ConfigReader, field: str, value: str) -> None:
    if config.text(field, value) != value:
        raise config.refuse(f"{field} is {config.text(field)!r}", f"Only {value!r} is known for this model_type.")


def _spec(config: ConfigReader, router: Router, *, first_dense: int, interleaved: bool = True) -> DecoderSpec:
    config.pass_over("ep_size", "aux_loss_alpha", "seq_aux", "head_dim", "qk_head_dim", "output_router_logits")
    if config.integer("moe_layer_freq", 1) != 1:
        raise config.refuse("'moe_layer_freq' is not 1", "Only experts in every layer past the dense ones are known.")
    heads, bias = config.integer("num_attention_heads"), config.flag("attention_bias", False)
    if config.integer("num_key_value_heads", heads) != heads:
        raise config.refuse(
            "'num_key_value_heads' differs from 'num_attention_heads'", "Latent attention has no groups."
        )
    content, rotated = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    rope = read_rope(config, rotated, interleaved=interleaved)
    activation = read_activation(config)
    if config.flag("mlp_bias", False):
        raise config.refuse("'mlp_bias' is true", "No published DeepSeek has biases there.")
    width = config.integer("moe_intermediate_size")
    dense = Mlp(config.integer("intermediate_size"), activation)
    shared = config.integer("n_shared_experts")
    experts = Experts(
        config.integer("n_routed_experts"), Mlp(width, activation), router, Mlp(shared * width, activation)
    )
    layers = config.integer("num_hidden_layers")
    return DecoderSpec(
        model_type=config.text("model_type"),
        hidden=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size"),
        max_positions=extended_positions(config.integer("max_position_embeddings"), rope),
        layers=tuple(Layer(dense if index < first_dense else experts, rope) for index in range(layers)),
        attention=LatentAttention(
            heads=heads,
            query_rank=config.optional("q_lora_rank", int),
            latent_dim=config.integer("kv_lora_rank"),
            content_dim=content,
            rope_dim=rotated,
            value_head_dim=config.integer("v_head_dim"),
            scale=(content + rotated) ** -0.5 * _yarn_sharpening(config),
            norm=BOTTLENECK_NORM,
            bias=bias,
        ),
        norm=read_rms_norm(config),
        tied_embeddings=config.flag("tie_word_embeddings", False),
    )


def _yarn_sharpening(config: ConfigReader) -> float:
    """DeepSeek puts YaRN's magnitude, squared, on the scores where others put it on queries and keys."""
    parameters = rope_parameters(config)
    if parameters.get("rope_type", parameters.get("type", "default")) == "default":
        return 1.0
    mscale, factor = parameters.get("mscale_all_dim"), parameters.get("factor")
    return yarn_magnitude(float(factor), float(mscale)) ** 2 if mscale and factor else 1.0


NAMES_V2: dict[Role, str] = {
    **{role: name for role, name in NAMES.items() if role not in (Role.K, Role.V, Role.Q_NORM, Role.K_NORM)},
    Role.Q_DOWN: "layers.{}.self_attn.q_a_proj",
    Role.Q_DOWN_NORM: "layers.{}.self_attn.q_a_layernorm",
    Role.Q_UP: "layers.{}.self_attn.q_b_proj",
    Role.LATENT: "layers.{}.self_attn.kv_a_proj_with_mqa",
    Role.LATENT_NORM: "layers.{}.self_attn.kv_a_layernorm",
    Role.KV_UP: "layers.{}.self_attn.kv_b_proj",
    Role.ROUTER: "layers.{}.mlp.gate",
    Role.EXPERT_GATE: "layers.{}.mlp.experts.{}.gate_proj",
    Role.EXPERT_UP: "layers.{}.mlp.experts.{}.up_proj",
    Role.EXPERT_DOWN: "layers.{}.mlp.experts.{}.down_proj",
    Role.SHARED_GATE: "layers.{}.mlp.shared_experts.gate_proj",
    Role.SHARED_UP: "layers.{}.mlp.shared_experts.up_proj",
    Role.SHARED_DOWN: "layers.{}.mlp.shared_experts.down_proj",
}

RECIPES = (
    Recipe(("deepseek_v2",), read_deepseek_v2, NAMES_V2),
    Recipe(
        ("deepseek_v3",),
        read_deepseek_v3,
        NAMES_V2,
        irregular={(Role.ROUTER, CORRECTION): "layers.{}.mlp.gate.e_score_correction_bias"},
        ignored=r"^model\.layers\.{layers}\.",  # the speculative module
    ),
)
