// Attention of sequences with several new tokens: tiles of queries against tiles of the cache, softmax as it goes along
// (Dao 2023, FlashAttention-2), over all positions that came before and those of this step, which are in their pages
// too.
//
// A block has 128 queries of one head (96 or 64 where registers or shared memory ask for it), a warp 16 of them, which
// passes over the tiles that none of its queries sees. Tiles of keys and values come to shared memory by asynchronous
// copies, the next one while this one is used; rows are 16 bytes longer there than in memory, which puts the eight rows
// that ldmatrix reads at a time into different banks for each of our head sizes.
#pragma once

#include "trtbuild/problem.h"

namespace trtbuild {

template <class T, int head_dim>
struct PrefillShape {
    // Of wide heads half as many positions: registers and shared memory are what they were.
    static constexpr int rows = head_dim <= 64 ? 96 : head_dim <= 128 ? 128 : 64;
    static constexpr int warps = rows / 16;
    static constexpr int positions = head_dim <= 128 ? 64 : 32;
    // That a multiprocessor has registers for.
    static constexpr int blocks = head_dim <= 64 ? 2 : 1;
    static constexpr int pitch = head_dim + 8;
    static constexpr int tile = positions * pitch;
    // Queries stay in registers as long as they fit.
    static constexpr bool queries_shared = head_dim > 128;
    static constexpr size_t shared = sizeof(T) * (4 * tile + (queries_shared ? rows * pitch : 0));
};

// The queries of a block: rows first .. first + rows - 1 of the tokens of a sequence.
struct QueryTile {
    int index;
    int first;
    int rows;  // 0: none
};

// Tiles are numbered through the sequences that have more than one token, the last of a sequence, which sees the most,
// first. A warp looks at 32 sequences at a time.
template <int rows>
TRTBUILD_DEVICE QueryTile query_tile(TrtbuildAttention const& a, int tile) {
    int const lane = thread_index() % WARP;
    int before = 0;
    for (int first = 0; first < a.batch; first += WARP) {
        int tokens = 0;
        if (first + lane < a.batch) tokens = sequence(a, first + lane).tokens;
        int const tiles = tokens > 1 ? divide_up(tokens, rows) : 0;
        int through = tiles;  // of this sequence and those of the lanes before
        for (int step = 1; step < WARP; step *= 2) {
            int const below = shuffle(through, lane >= step ? lane - step : lane);
            if (lane >= step) through += below;
        }
        uint32_t const done = ballot(before + through <= tile);
        if (done == 0xffffffffu) {
            before += shuffle(through, WARP - 1);
            continue;
        }
        int const found = count_bits(done);
        int const its_tiles = shuffle(tiles, found), its_tokens = shuffle(tokens, found);
        int const local = its_tiles - 1 - (tile - before - (shuffle(through, found) - its_tiles));
        int const left = its_tokens - local * rows;
        return {first + found, local * rows, left < rows ? left : rows};
    }
    return {0, 0, 0};
}

// Grid: heads, tiles (as many as there may be).
template <class T, int head_dim>
TRTBUILD_KERNEL((PrefillShape<T, head_dim>::warps * WARP), (PrefillShape<T, head_dim>::blocks))
prefill(TRTBUILD_PARAMETER Problem problem) {
    using Shape = PrefillShape<T, head_dim>;
    constexpr int positions = Shape::positions, pitch = Shape::pitch, chunks = head_dim / 8;
    constexpr int threads = Shape::warps * WARP;
    TrtbuildAttention const& a = problem.a;
    QueryTile const queries = query_tile<Shape::rows>(a, block_index().y);
    if (queries.rows == 0) return;
    Sequence const own = sequence(a, queries.index);
    int const thread = thread_index(), lane = thread % WARP, warp = thread / WARP, r = lane / 4, c = lane % 4;
    int const head = block_index().x, kv_head = head / (a.heads / a.kv_heads);
    float const slope = slope_of(a, head);
    int const first_own = own.past + queries.first;                             // position of the first query
    int const seen = first_seen(a, first_own), end = first_own + queries.rows;  // all that any of them sees

    Shared<T> const keys = shared_memory<T>(), values = keys + 2 * Shape::tile, query_rows = keys + 4 * Shape::tile;
    Global<T> const output = Global<T>(static_cast<T*>(a.output)) +
                             (static_cast<int64_t>(own.begin + queries.first) * a.heads + head) * head_dim;
    int const stride = a.heads * head_dim;
    Pages<T> const pages(problem, queries.index, kv_head);

    auto const fetch = [&](int tile, int stage) {
        for (int i = thread; i < positions * chunks; i += threads) {
            int const row = i / chunks, column = i % chunks * 8, at = tile * positions + row;
            bool const valid = at >= seen && at < end;
            Global<T const> const from = pages.keys + (valid ? pages.offset(pages.page(at), at) : 0) + column;
            int const to = stage * Shape::tile + row * pitch + column;
            copy_async(keys + to, from, valid);
            copy_async(values + to, from + pages.values, valid);
        }
        copy_async_commit();
    };

    int tile = seen / positions;
    int const last_tile = divide_up(end, positions);
    if constexpr (Shape::queries_shared) {
        for (int i = thread; i < Shape::rows * chunks; i += threads) {
            int const row = i / chunks, column = i % chunks * 8;
            bool const valid = row < queries.rows;
            copy_async(query_rows + row * pitch + column,
                       Global<T const>(output + (valid ? static_cast<int64_t>(row) * stride : 0) + column), valid);
        }
    }
    fetch(tile, 0);

    int const row0 = warp * 16 + r, row1 = row0 + 8;  // this lane's two queries
    uint32_t query[Shape::queries_shared ? 1 : head_dim / 16][4];
    if constexpr (!Shape::queries_shared) {
        TRTBUILD_UNROLL
        for (int i = 0; i < head_dim / 16; ++i) {
            TRTBUILD_UNROLL
            for (int j = 0; j < 4; ++j) {
                int const row = j % 2 == 0 ? row0 : row1, column = i * 16 + j / 2 * 8 + 2 * c;
                query[i][j] =
                    row < queries.rows
                        ? load<uint32_t>(Global<T const>(output + static_cast<int64_t>(row) * stride + column))
                        : 0u;
            }
        }
    }

    // Where a score is q.k times a factor, the factor waits until the exponential, where it costs nothing.
    bool const plain = a.soft_cap == 0.0f && a.has_alibi == 0;
    float const factor = plain ? a.scale * LOG2E : 1.0f;
    float mixed[head_dim / 8][4] = {};
    float largest[2] = {NEVER, NEVER}, total[2] = {0.0f, 0.0f};
    for (int stage = 0; tile < last_tile; ++tile, stage ^= 1) {
        if (tile + 1 < last_tile) {
            fetch(tile + 1, stage ^ 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        sync_threads();
        int const first = tile * positions;
        // What the first of this warp's queries sees of the tile, and the last.
        int const warp_own = first_own + warp * 16, warp_last = min_of(warp_own + 15, end - 1);
        if (warp * 16 < queries.rows && first <= warp_last && first + positions > first_seen(a, warp_own)) {
            Shared<T> const own_keys = keys + stage * Shape::tile, own_values = values + stage * Shape::tile;

            float scores[positions / 8][4] = {};
            TRTBUILD_UNROLL
            for (int i = 0; i < head_dim / 16; ++i) {
                uint32_t q[4];
                if constexpr (Shape::queries_shared) {
                    load_matrices(q, query_rows + (warp * 16 + lane % 16) * pitch + i * 16 + lane / 16 * 8);
                } else {
                    TRTBUILD_UNROLL
                    for (int j = 0; j < 4; ++j) q[j] = query[i][j];
                }
                TRTBUILD_UNROLL
                for (int j = 0; j < positions / 16; ++j) {
                    uint32_t
                        k[4];  // of positions 16j .. 16j + 7 the two halves of 16 dimensions, then of the next eight
                    int const from = (j * 16 + lane / 16 * 8 + lane % 8) * pitch + i * 16 + lane / 8 % 2 * 8;
                    load_matrices(k, own_keys + from);
                    mma<T>(scores[2 * j], q[0], q[1], q[2], q[3], k[0], k[1]);
                    mma<T>(scores[2 * j + 1], q[0], q[1], q[2], q[3], k[2], k[3]);
                }
            }

            bool const all_seen = first + positions <= warp_own + 1 && first >= first_seen(a, warp_last);
            if (!plain || !all_seen) {
                TRTBUILD_UNROLL
                for (int j = 0; j < positions / 8; ++j) {
                    TRTBUILD_UNROLL
                    for (int i = 0; i < 4; ++i) {
                        int const at = first + j * 8 + 2 * c + i % 2, mine = first_own + (i < 2 ? row0 : row1);
                        if (!plain) scores[j][i] = score(a, scores[j][i], slope, mine - at);
                        if (!all_seen && (at > mine || at < first_seen(a, mine))) scores[j][i] = NEVER;
                    }
                }
            }
            float now_largest[2] = {largest[0], largest[1]};
            TRTBUILD_UNROLL
            for (int j = 0; j < positions / 8; ++j) {
                TRTBUILD_UNROLL
                for (int i = 0; i < 4; ++i) now_largest[i / 2] = fmaxf(now_largest[i / 2], scores[j][i]);
            }
            float base[2];  // what scores are taken relative to: 0 as long as a query has seen nothing
            TRTBUILD_UNROLL
            for (int i = 0; i < 2; ++i) {
                now_largest[i] = fmaxf(now_largest[i], shuffle_xor(now_largest[i], 1));
                now_largest[i] = fmaxf(now_largest[i], shuffle_xor(now_largest[i], 2));
                base[i] = now_largest[i] == NEVER ? 0.0f : now_largest[i] * factor;
                float const shrink = exp2(largest[i] * factor - base[i]);
                largest[i] = now_largest[i];
                total[i] *= shrink;
                TRTBUILD_UNROLL
                for (int j = 0; j < head_dim / 8; ++j) {
                    mixed[j][2 * i] *= shrink;
                    mixed[j][2 * i + 1] *= shrink;
                }
            }

            TRTBUILD_UNROLL
            for (int j = 0; j < positions / 16; ++j) {
                uint32_t weights[4];  // rows r, r + 8 at positions 16j + 2c, then r, r + 8 at 16j + 8 + 2c
                TRTBUILD_UNROLL
                for (int i = 0; i < 4; ++i) {
                    float const* const s = scores[2 * j + i / 2] + i % 2 * 2;
                    float const low = exp2(s[0] * factor - base[i % 2]), high = exp2(s[1] * factor - base[i % 2]);
                    total[i % 2] += low + high;
                    weights[i] = pack<T>(low, high);
                }
                TRTBUILD_UNROLL
                for (int i = 0; i < head_dim / 16; ++i) {
                    uint32_t
                        v[4];  // of dimensions 16i .. 16i + 7 the two halves of 16 positions, then of the next eight
                    load_matrices_transposed(v, own_values + (j * 16 + lane % 16) * pitch + i * 16 + lane / 16 * 8);
                    mma<T>(mixed[2 * i], weights[0], weights[1], weights[2], weights[3], v[0], v[1]);
                    mma<T>(mixed[2 * i + 1], weights[0], weights[1], weights[2], weights[3], v[2], v[3]);
                }
            }
        }
        sync_threads();
    }

    TRTBUILD_UNROLL
    for (int i = 0; i < 2; ++i) {
        total[i] += shuffle_xor(total[i], 1);
        total[i] += shuffle_xor(total[i], 2);
        int const row = i == 0 ? row0 : row1;
        if (row >= queries.rows) continue;
        float const share = 1.0f / total[i];
        TRTBUILD_UNROLL
        for (int j = 0; j < head_dim / 8; ++j) {
            store<uint32_t>(output + static_cast<int64_t>(row) * stride + j * 8 + 2 * c,
                            pack<T>(mixed[j][2 * i] * share, mixed[j][2 * i + 1] * share));
        }
    }
}

}  // namespace trtbuild
