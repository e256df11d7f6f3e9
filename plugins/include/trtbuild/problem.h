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

constexpr float LOG2E = 1.4426950408889634f;
constexpr float NEVER = -INFINITY;

TRTBUILD_ANYWHERE constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }
TRTBUILD_ANYWHERE constexpr int min_of(int a, int b) { return a < b ? a : b; }

struct Problem {
    TrtbuildAttention a;
    int splits;       // at most, of each sequence that decodes
    int head_groups;  // of up to DECODE_HEADS query heads, for each key/value head
    int page_shift;   // page_size = 1 << page_shift
};

// The tokens of one sequence in this step.
struct Sequence {
    int begin;  // row of qkv
    int tokens;
    int past;
};

TRTBUILD_DEVICE Sequence sequence(TrtbuildAttention const& a, int index) {
    Global<int32_t const> const starts(a.cu_seqlens), pasts(a.past_lengths);
    int const begin = within(starts[index], 0, a.tokens), end = within(starts[index + 1], begin, a.tokens);
    int const room = a.max_pages * a.page_size, tokens = within(end - begin, 0, room);
    return {begin, tokens, within(pasts[index], 0, room - tokens)};
}

// One sequence's rows of one key/value head. What can be computed once is, since every 16 bytes need an address.
template <class T>
struct Pages {
    Global<T> keys;  // of page 0
    Global<int32_t const> table;
    int page_length, values;  // elements from page to page, and from a page's keys to its values
    int head_dim, shift, mask, last_page;

    TRTBUILD_DEVICE Pages(Problem const& problem, int index, int kv_head) {
        TrtbuildAttention const& a = problem.a;
        int const head_length = a.page_size * a.head_dim;
        keys = Global<T>(static_cast<T*>(a.kv_pages)) + static_cast<int64_t>(kv_head) * head_length;
        table = Global<int32_t const>(a.block_table) + static_cast<int64_t>(index) * a.max_pages;
        values = head_length * a.kv_heads;
        page_length = 2 * values;
        head_dim = a.head_dim;
        shift = problem.page_shift;
        mask = a.page_size - 1;
        last_page = a.pages - 1;
    }
    TRTBUILD_DEVICE int page(int position) const { return within(table[position >> shift], 0, last_page); }
    // From `keys` to a position's row of keys, [head_dim]; its values are `values` further on.
    TRTBUILD_DEVICE int64_t offset(int page, int position) const {
        return static_cast<int64_t>(page) * page_length + (position & mask) * head_dim;
    }
};

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
