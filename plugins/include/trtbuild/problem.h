// What a kernel is given: the parameters, how the work is divided, and typed views of the buffers.
#pragma once

#include "trtbuild/attention.h"
#include "trtbuild/platform.h"

namespace trtbuild {

constexpr int WARP = 32;

// Query heads that a block of the decode kernel serves together: the columns of an mma.
constexpr int DECODE_HEADS = 8;
// Positions that a warp of it reads at a time: the depth of an mma. They lie in one page.
constexpr int DECODE_TILE = 16;
constexpr int DECODE_WARPS = 4;
// A split of a sequence is not shorter than this many tiles: two for each warp.
constexpr int LEAST_TILES = 2 * DECODE_WARPS;

constexpr int PREFILL_ROWS = 64;
constexpr int PREFILL_WARPS = PREFILL_ROWS / 16;

constexpr float LOG2E = 1.4426950408889634f;
constexpr float NEVER = -INFINITY;

TRTBUILD_ANYWHERE constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

struct Problem {
    TrtbuildAttention a;
    int splits;       // at most, of each sequence that decodes
    int head_groups;  // of up to DECODE_HEADS query heads, for each key/value head
};

// The tokens of one sequence in this step.
struct Sequence {
    int begin;   // row of qkv
    int tokens;
    int past;
};

TRTBUILD_DEVICE Sequence sequence(TrtbuildAttention const& a, int index) {
    Global<int32_t const> const starts(a.cu_seqlens), pasts(a.past_lengths);
    int const begin = starts[index], end = starts[index + 1];
    return {begin, end - begin, pasts[index]};
}

// Position p's row of keys (which = 0) or values (1), [head_dim], of a page of the cache.
template <class T>
TRTBUILD_DEVICE Global<T> page_row(TrtbuildAttention const& a, int page, int which, int kv_head, int row) {
    int64_t const block = (static_cast<int64_t>(page) * 2 + which) * a.kv_heads + kv_head;
    return Global<T>(static_cast<T*>(a.kv_pages)) + (block * a.page_size + row) * a.head_dim;
}

TRTBUILD_DEVICE int page_of(TrtbuildAttention const& a, int index, int position) {
    Global<int32_t const> const table(a.block_table);
    return table[static_cast<int64_t>(index) * a.max_pages + position / a.page_size];
}

// The first position that a token at `own` sees.
TRTBUILD_DEVICE int first_seen(TrtbuildAttention const& a, int own) {
    return a.window > 0 && own >= a.window ? own - a.window + 1 : 0;
}

// From q.k to the score in units of log 2: scaled, capped, and less what ALiBi takes for the distance.
TRTBUILD_DEVICE float score(TrtbuildAttention const& a, float product, float slope, int distance) {
    float s = product * a.scale;
    if (a.soft_cap > 0.0f) s = a.soft_cap * tanh(s / a.soft_cap);
    return (s - slope * static_cast<float>(distance)) * LOG2E;
}

TRTBUILD_DEVICE float slope_of(TrtbuildAttention const& a, int head) {
    return a.has_alibi != 0 && head < a.heads ? a.alibi_slopes[head] : 0.0f;
}

}  // namespace trtbuild
