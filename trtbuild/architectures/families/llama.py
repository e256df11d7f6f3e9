"""The Llama family: Llama 2 to 3.2, SmolLM, Mistral, Qwen2, Qwen2.5, Qwen3."""

from __future__ import annotations

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope
from trtbuild.architectures.spec import Activation, Attention, DecoderSpec, Mlp

NAMES = {
    Role.EMBEDDING: "model.embed_tokens",
    Role.ATTENTION_NORM: "model.layers.{}.input_layernorm",
    Role.Q: "model.layers.{}.self_attn.q_proj",
    Role.K: "model.layers.{}.self_attn.k_proj",
    Role.V: "model.layers.{}.self_attn.v_proj",
    Role.Q_NORM: "model.layers.{}.self_attn.q_norm",
    Role.K_NORM: "model.layers.{}.self_attn.k_norm",
    Role.OUTPUT: "model.layers.{}.self_attn.o_proj",
    Role.MLP_NORM: "model.layers.{}.post_attention_layernorm",
    Role.GATE: "model.layers.{}.mlp.gate_proj",
    Role.UP: "model.layers.{}.mlp.up_proj",
    Role.DOWN: "model.layers.{}.mlp.down_proj",
    Role.FINAL_NORM: "model.norm",
    Role.HEAD: "lm_head",
}


def read_llama(config: ConfigReader) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    return _spec(
        config,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
    )


def read_mistral(config: ConfigReader) -> DecoderSpec:
    window = config.optional("sliding_window", int) if config.has("sliding_window") else 4096
    return _spec(config, windows=(window,) * config.integer("num_hidden_layers"))


def read_qwen2(config: ConfigReader) -> DecoderSpec:
    return _spec(config, qkv_bias=True, windows=_qwen_windows(config))


def read_qwen3(config: ConfigReader) -> DecoderSpec:
    bias = config.flag("attention_bias", False)
    return _spec(config, qkv_bias=bias, output_bias=bias, qk_norm=True, windows=_qwen_windows(config))


def _qwen_windows(config: ConfigReader) -> tuple[int | None, ...]:
    """`use_sliding_window` turns the window on; `layer_types`, or else `max_window_layers`, says for which layers."""
    layers = config.integer("num_hidden_layers")
    window = config.optional("sliding_window", int)
    first = config.optional("max_window_layers", int)
    kinds = config.words("layer_types")
    if not config.flag("use_sliding_window", False) or window is None:
        return (None,) * layers
    if kinds is None:
        if first is None:
            raise config.refuse(
                "use_sliding_window is true and neither 'layer_types' nor 'max_window_layers' says for which layers",
                "Correct the file.",
            )
        return tuple(window if layer >= first else None for layer in range(layers))
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise config.refuse(
            f"'layer_types' must name full_attention or sliding_attention for each of {layers} layers",
            "Correct the file.",
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _spec(
    config: ConfigReader,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    windows: tuple[int | None, ...] | None = None,
) -> DecoderSpec:
    layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.refuse(f"{heads} query heads are not a multiple of {kv_heads} key/value heads", "Correct it.")
    head_dim = config.optional("head_dim", int)
    if head_dim is None:
        if hidden % heads:
            raise config.refuse(
                f"hidden_size {hidden} is not a multiple of {heads} heads and 'head_dim' is not given", "Correct it."
            )
        head_dim = hidden // heads
    activation = config.text("hidden_act", "silu")
    try:
        function = Activation(activation)
    except ValueError:
        known = ", ".join(a.value for a in Activation)
        raise config.refuse(f"the activation {activation!r} is not known", f"Known are {known}.") from None
    return DecoderSpec(
        model_type=config.text("model_type"),
        layers=layers,
        hidden=hidden,
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings"),
        norm_epsilon=config.real("rms_norm_eps"),
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            qk_norm=qk_norm,
            windows=windows or (None,) * layers,
        ),
        rope=read_rope(config, head_dim),
        mlp=Mlp(width=config.integer("intermediate_size"), activation=function, bias=mlp_bias),
        tied_embeddings=config.flag("tie_word_embeddings", False),
    )


RECIPES = (
    Recipe(("llama",), read_llama, NAMES),
    Recipe(("mistral",), read_mistral, NAMES),
    Recipe(("qwen2",), read_qwen2, NAMES),
    Recipe(("qwen3",), read_qwen3, NAMES),
)
