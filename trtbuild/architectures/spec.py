"""DecoderSpec: everything in which one decoder differs from another, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trtbuild.architectures.rope_spec import Rope


class NormKind(Enum):
    RMS = "rms"
    """x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019)."""
    LAYER = "layer"
    """(x - mean(x)) / sqrt(var(x) + epsilon) (Ba et al. 2016)."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation of the last axis, times its weight and plus its bias where it has them."""

    kind: NormKind
    epsilon: float
    weight: bool = True
    bias: bool = False
    unit_offset: bool = False
    """The weight is stored less one (Gemma)."""


class NormPlace(Enum):
    """Where a block's norms stand around each of its two parts, attention and MLP."""

    BEFORE = "before"
    """x + part(norm(x))."""
    AFTER = "after"
    """x + norm(part(x)), as in OLMo 2."""
    AROUND = "around"
    """x + norm'(part(norm(x))), as in Gemma 2."""
    AFTER_RESIDUAL = "after residual"
    """norm(x + part(x)), the order of the first transformers."""


class Wiring(Enum):
    """How attention and MLP are joined to the residual stream."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    """x + attention(norm(x)) + mlp(norm'(x)), as in GPT-NeoX."""
    PARALLEL_ONE_NORM = "parallel, one norm"
    """x + attention(y) + mlp(y), y = norm(x), as in GPT-J; the norm is the attention's."""


class QkvLayout(Enum):
    """How the rows of the three projections lie in the checkpoint."""

    SEPARATE = "separate"
    BLOCKS = "blocks"
    """One matrix: all queries, all keys, all values."""
    GROUPS = "groups"
    """One matrix: for each key/value head its query heads, its key, its value."""


class QkNormSpan(Enum):
    """What a norm of queries and keys covers, and its weight's shape."""

    HEAD = "head"
    """Each head, all with one weight [head_dim]."""
    EACH_HEAD = "each head"
    """Each head with a weight of its own, [heads, head_dim]."""
    WIDTH = "width"
    """All heads together, weight [heads * head_dim]."""


@dataclass(frozen=True, slots=True)
class QkNorm:
    """A norm of queries and of keys, before RoPE."""

    norm: Norm
    span: QkNormSpan = QkNormSpan.HEAD


@dataclass(frozen=True, slots=True)
class PositionScale:
    """Queries at position p are multiplied by 1 + beta * ln(1 + floor(p / original_positions)) (Llama 4's)."""

    beta: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention: `heads` query heads share `kv_heads` heads of keys and values."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """q·k is multiplied by this before anything is added to it."""
    layout: QkvLayout = QkvLayout.SEPARATE
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QkNorm | None = None
    alibi: tuple[float, ...] | None = None
    """By query head, what a key's score loses per position of distance (Press et al. 2022), after `scale`."""
    soft_cap: float | None = None
    """Scores become cap * tanh(score / cap)."""
    sinks: bool = False
    """Each head has a learned score that takes part in the softmax and mixes in nothing."""
    clip: float | None = None
    """Queries, keys and values are clamped to +-clip as they leave their projections."""
    position_scale: PositionScale | None = None

    @property
    def key_dim(self) -> int:
        """Width of a cached key."""
        return self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of a cached value; 0 if values are not cached apart."""
        return self.head_dim


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """DeepSeek-V2's multi-head latent attention: one latent per token, shared by all heads, is all that is cached.

    A key is [W_uk latent (content_dim), rotated (rope_dim)], a value W_uv latent (value_head_dim).
    """

    heads: int
    query_rank: int | None
    """Width of the queries' own bottleneck; None: one projection."""
    latent_dim: int
    content_dim: int
    rope_dim: int
    value_head_dim: int
    scale: float
    norm: Norm
    """Of the queries' bottleneck and of the latent."""
    bias: bool = False
    """Of the projections into the bottlenecks and of the output projection."""

    @property
    def kv_heads(self) -> int:
        return 1

    @property
    def key_dim(self) -> int:
        """The latent and the rotated part."""
        return self.latent_dim + self.rope_dim

    @property
    def value_dim(self) -> int:
        """Values are the latent again, which is the keys' first part: none are cached apart."""
        return 0


class Activation(Enum):
    """The function between an MLP's projections."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    RELU_SQUARED = "relu2"
    QUICK_GELU = "quick_gelu"
    """x * sigmoid(1.702 x)."""
    CLAMPED_SWIGLU = "clamped_swiglu"
    """GPT-OSS's, of gate and up together: g * sigmoid(1.702 g) * (u + 1), g <= 7 and -7 <= u <= 7."""


class GateLayout(Enum):
    """Whether an MLP has a gate, and how gate and up lie in the checkpoint."""

    NONE = "none"
    """down(activation(up(x)))."""
    SEPARATE = "separate"
    """down(activation(gate(x)) * up(x)), of two matrices."""
    BLOCKS = "blocks"
    """The same, of one matrix: all of the gate, all of up."""
    INTERLEAVED = "interleaved"
    """The same, of one matrix: the gate's and up's rows by turns."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """Two or three projections of `width`, each with a bias or none."""

    width: int
    activation: Activation
    gate: GateLayout = GateLayout.SEPARATE
    bias: bool = False


class RouterScore(Enum):
    """How a router's logits become the scores of experts."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class GroupScore(Enum):
    """By what a group of experts is kept."""

    BEST = "best"
    """Its best expert's score (DeepSeek-V2)."""
    BEST_TWO = "best two"
    """The sum of its two best experts' scores (DeepSeek-V3)."""


@dataclass(frozen=True, slots=True)
class Router:
    """Which experts a token goes to, and with what weight."""

    score: RouterScore
    top_k: int
    normalise: bool
    """The chosen experts' scores are divided by their sum. Of softmax scores it is the softmax over the chosen."""
    scale: float = 1.0
    """Of the weights, after that."""
    bias: bool = False
    correction_bias: bool = False
    """An offset for each expert that enters the choice and not the weight."""
    groups: int = 1
    kept_groups: int = 1
    group_score: GroupScore = GroupScore.BEST


@dataclass(frozen=True, slots=True)
class Experts:
    """`count` MLPs of which each token uses some, and perhaps one that all use."""

    count: int
    mlp: Mlp
    router: Router
    shared: Mlp | None = None
    shared_gate: bool = False
    """The shared MLP's output is multiplied by the sigmoid of a projection of the token (Qwen2-MoE)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from one layer to the next."""

    mlp: Mlp | Experts
    rope: Rope | None = None
    window: int | None = None
    """How many positions, its own included, a token sees; None for all."""


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """A trained vector for each position, row `offset` + p for position p."""

    rows: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer."""

    model_type: str
    hidden: int
    vocab_size: int
    max_positions: int
    """Positions that the model can take (config.json's max_position_embeddings)."""
    layers: tuple[Layer, ...]
    attention: Attention | LatentAttention
    norm: Norm
    """Every norm on the residual stream."""
    norm_place: NormPlace = NormPlace.BEFORE
    wiring: Wiring = Wiring.SEQUENTIAL
    tied_embeddings: bool = False
    """The head is the embedding matrix, transposed."""
    learned_positions: LearnedPositions | None = None
    embedding_norm: bool = False
    embedding_scale: float = 1.0
    embedding_width: int | None = None
    """Where embeddings are of another width than the layers, with a projection on either side (OPT-350M)."""
    residual_scale: float = 1.0
    """Of what attention and MLP add to the residual stream."""
    final_norm: bool = True
    head_bias: bool = False
    head_normalised: bool = False
    """The head's rows are brought to length 1 (Baichuan 2)."""
    logits_scale: float = 1.0
    logits_soft_cap: float | None = None
