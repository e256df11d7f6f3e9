"""StableLM 3B, StableLM 2, Stable Code: LayerNorm, a quarter of each head rotated; 12B is parallel, its q, k normed."""

from __future__ import annotations

from dataclasses import replace

from trtbuild.architectures.config_reader import ConfigReader
from trtbuild.architectures.families.llama import NAMES, change_attention, llama_spec
from trtbuild.architectures.reading import read_heads, read_layer_norm
from trtbuild.architectures.recipe import Recipe, Role
from trtbuild.architectures.rope import read_rope
from trtbuild.architectures.spec import DecoderSpec, QkNorm, QkNormSpan, Wiring


def read_stablelm(config: ConfigReader) -> DecoderSpec:
    norm = read_layer_norm(config, "layer_norm_eps", 1e-5)
    rope = read_rope(config, read_heads(config).head_dim, default_partial=0.25, default_theta=10_000.0)
    spec = llama_spec(config, qkv_bias=config.flag("use_qkv_bias", False), norm=norm, rope=rope)
    if config.flag("qk_layernorm", False):
        spec = change_attention(spec, qk_norm=QkNorm(replace(norm, bias=False), QkNormSpan.EACH_HEAD))
    parallel = config.flag("use_parallel_residual", False)
    return replace(spec, wiring=Wiring.PARALLEL_ONE_NORM if parallel else Wiring.SEQUENTIAL)


RECIPES = (
    Recipe(
        ("stablelm",),
        read_stablelm,
        {
            **NAMES,
            Role.Q_NORM: "layers.{}.self_attn.q_layernorm.norms.{}",
            Role.K_NORM: "layers.{}.self_attn.k_layernorm.norms.{}",
        },
    ),
)
