"""The attention kernels on a GPU next to torch's, in the same run, with the card's own ceilings measured first.

    trtbuild plugin build --target sm_90 --out plugin
    python scripts/bench_attention.py plugin/libtrtbuild_kernels.so [--json FILE]

Decoding is compared by its share of the copy bandwidth and with RoPE and SDPA over a cache without pages; prompts with
torch's FlashAttention, and with SDPA over a bias tensor where there is ALiBi. A time is the median of 20 runs, the L2
cache flushed before each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from tests.plugins.cases import Attention, slopes  # noqa: E402
from tests.plugins.cuda import Cuda  # noqa: E402

WARM_UP, REPEATS, FLUSHED = 3, 20, 256 << 20
HALF = torch.float16


@dataclass(frozen=True)
class Line:
    """One comparison; times in milliseconds."""

    what: str
    ours: float
    torch: float
    share: str
    """Of which ceiling, in words."""
    ours_mb: float
    torch_mb: float
    """Memory beside the inputs."""


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds, and the peak of memory that one run takes, in MB."""
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    for _ in range(WARM_UP):
        work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 1e6
    times = []
    for _ in range(REPEATS):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times), peak


def ceilings() -> tuple[float, float]:
    """Bytes a second of a copy (read and written), and FP16 operations a second of a matrix product."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy, _ = timed(lambda: target.copy_(source))
    a, b = (torch.randn(8192, 8192, dtype=HALF, device="cuda") for _ in range(2))
    product, _ = timed(lambda: a @ b)
    return 2 * (1 << 30) / copy * 1e3, 2 * 8192**3 / product * 1e3


@dataclass
class Inputs:
    """Buffers of a step in which all sequences have the same lengths, and the parameters that point to them."""

    fields: Attention
    kept: list[Any]
    qkv: Any
    cos_sin: Any


def inputs(
    cuda: Cuda, batch: int, past: int, new: int, heads: int, kv_heads: int, *, alibi: bool = False, page: int = 64
) -> Inputs:
    """Of heads 128 wide, in FP16, pages in random order."""
    wide, tokens = 128, batch * new
    each = -(-(past + new) // page)
    order = torch.randperm(batch * each, device="cuda", dtype=torch.int32).reshape(batch, each)
    pages = torch.randn(batch * each, 2, kv_heads, page, wide, device="cuda", dtype=HALF)
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * wide, device="cuda", dtype=HALF)
    starts = torch.arange(0, tokens + 1, new, device="cuda", dtype=torch.int32)
    pasts = torch.full((batch,), past, device="cuda", dtype=torch.int32)
    angles = torch.rand(tokens, wide // 2, device="cuda")
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).contiguous()
    output = torch.empty(tokens, heads * wide, device="cuda", dtype=HALF)
    fields = Attention(
        type=1, tokens=tokens, batch=batch, max_pages=each, pages=batch * each, page_size=page, heads=heads,
        kv_heads=kv_heads, head_dim=wide, rotary_dim=0 if alibi else wide, interleaved=0, window=0, scale=wide**-0.5,
        soft_cap=0.0, has_alibi=alibi, multiprocessors=cuda.multiprocessors,
    )  # fmt: skip
    if alibi:
        fields.alibi_slopes[:heads] = slopes(heads).tolist()
    buffers = {
        "qkv": qkv, "kv_pages": pages, "block_table": order, "cu_seqlens": starts, "past_lengths": pasts,
        "rope_cos_sin": cos_sin, "output": output,
    }  # fmt: skip
    for name, tensor in buffers.items():
        setattr(fields, name, tensor.data_ptr())
    return Inputs(fields, [*buffers.values(), cuda.workspace(fields)], qkv, cos_sin)


def turned(x: Any, cos_sin: Any) -> Any:
    """RoPE by halves as transformers' apply_rotary_pos_emb has it, on [batch, heads, tokens, wide]."""
    cosines, sines = (part.repeat(1, 2)[None, None].to(x.dtype) for part in cos_sin.chunk(2, dim=1))
    lower, upper = x.chunk(2, dim=-1)
    return x * cosines + torch.cat([-upper, lower], dim=-1) * sines


def decoding(cuda: Cuda, batch: int, past: int, copy: float) -> Line:
    heads, kv_heads, wide = 32, 8, 128
    given = inputs(cuda, batch, past, 1, heads, kv_heads)
    ours, ours_mb = timed(lambda: cuda.run(given.fields))
    cached = torch.randn(2, batch, kv_heads, past + 1, wide, device="cuda", dtype=HALF)
    q, k, v = given.qkv.view(batch, 1, heads + 2 * kv_heads, wide).transpose(1, 2).split([heads, kv_heads, kv_heads], 1)
    cos_sin = given.cos_sin[:1]

    def unfused() -> None:
        cached[0, :, :, past:] = turned(k, cos_sin)
        cached[1, :, :, past:] = v
        F.scaled_dot_product_attention(turned(q, cos_sin), cached[0], cached[1], enable_gqa=True)

    theirs, theirs_mb = timed(unfused)
    moved = 2 * batch * kv_heads * (past + 1) * wide * 2
    share = moved / ours * 1e3 / copy
    name = f"decode, batch {batch}, {past + 1} positions"
    return Line(name, ours, theirs, f"{share:.0%} of the copy bandwidth", ours_mb, theirs_mb)


def prompts(cuda: Cuda, batch: int, tokens: int, heads: int, kv_heads: int, *, alibi: bool, product: float) -> Line:
    wide = 128
    given = inputs(cuda, batch, 0, tokens, heads, kv_heads, alibi=alibi)
    ours, ours_mb = timed(lambda: cuda.run(given.fields))
    parts = given.qkv.view(batch, tokens, heads + 2 * kv_heads, wide).transpose(1, 2)
    q, k, v = parts.split([heads, kv_heads, kv_heads], 1)
    cos_sin = given.cos_sin[:tokens]

    def flash() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            turned_q, turned_k = turned(q, cos_sin), turned(k, cos_sin)
            F.scaled_dot_product_attention(turned_q, turned_k, v, is_causal=True, enable_gqa=heads != kv_heads)

    def biased() -> None:
        at = torch.arange(tokens, device="cuda")
        distance = (at[None, :] - at[:, None]).to(HALF)
        bias = torch.tensor(slopes(heads), device="cuda", dtype=HALF)[:, None, None] * distance
        bias = bias.masked_fill(at[None, :] > at[:, None], float("-inf"))[None]
        F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(batch, -1, -1, -1))

    theirs, theirs_mb = timed(biased if alibi else flash)
    operations = 4 * batch * heads * wide * tokens * (tokens + 1) / 2
    share = operations / ours * 1e3 / product
    name = f"prompt, batch {batch}, {tokens} tokens, {heads}/{kv_heads} heads{', ALiBi' if alibi else ''}"
    return Line(name, ours, theirs, f"{share:.0%} of a matrix product's speed", ours_mb, theirs_mb)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="libtrtbuild_kernels.so, built for this GPU")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This needs an NVIDIA GPU and a CUDA build of torch; there is none here.")
    torch.manual_seed(0)
    cuda = Cuda(arguments.library)
    copy, product = ceilings()
    print(
        f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}: copy {copy / 1e9:.0f} GB/s, FP16 product ", end=""
    )
    print(f"{product / 1e12:.0f} TFLOP/s\n")
    lines = [decoding(cuda, batch, past - 1, copy) for batch, past in ((1, 16384), (32, 4096), (32, 16384))]
    for batch, tokens in ((1, 2048), (4, 4096), (1, 16384)):
        lines.append(prompts(cuda, batch, tokens, 32, 8, alibi=False, product=product))
    for batch, tokens in ((1, 2048), (1, 4096)):
        lines.append(prompts(cuda, batch, tokens, 32, 32, alibi=True, product=product))
    print(f"{'':46} {'ours':>9} {'torch':>9} {'ratio':>6}  {'ours MB':>8} {'torch MB':>8}")
    for line in lines:
        print(
            f"{line.what:46} {line.ours:6.3f} ms {line.torch:6.3f} ms {line.torch / line.ours:6.2f}  "
            f"{line.ours_mb:8.1f} {line.torch_mb:8.1f}  {line.share}"
        )
    if arguments.json:
        found = {"gpu": torch.cuda.get_device_name(0), "copy": copy, "product": product}
        arguments.json.write_text(json.dumps({**found, "lines": [asdict(line) for line in lines]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
