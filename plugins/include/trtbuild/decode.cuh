// Attention of sequences with one new token: split over the sequence, then merged.
//
// Reading the cache is all of the time, so each row of keys and values is read once for a group's query heads, straight
// into registers in 16-byte pieces, and multiplied by tensor cores that the few heads only half fill. Two choices make
// that work without a word of shared memory in the loop:
//   - q.k does not mind in which order its products are added. Where an mma wants columns 2c, 2c + 1, 2c + 8, 2c + 9 of
//     lane c, it is given the eight elements that lie side by side at 8c, of queries and keys alike, as two steps.
//   - Values come in by rows, and the mma (values transposed, times weights) wants two positions in a word: pairs of
//   rows
//     are taken apart and put together in registers. Its rows are any 16 dimensions: those that a lane has.
// The weights need no rearranging: q k^T leaves them where the second product wants its right operand.
#pragma once

#include "trtbuild/problem.h"

namespace trtbuild {

// How a sequence is divided: the tiles that it is seen in, and how many of them a split takes.
struct Division {
    int first, last;  // tiles of DECODE_TILE positions
    int each;         // tiles of a split
    int splits;
};

TRTBUILD_DEVICE Division divide(Problem const& problem, int position) {
    Division d;
    d.first = first_seen(problem.a, position) / DECODE_TILE;
    d.last = position / DECODE_TILE + 1;
    int const tiles = d.last - d.first;
    d.each = divide_up(tiles, problem.splits);
    if (d.each < LEAST_TILES) d.each = LEAST_TILES;
    d.splits = divide_up(tiles, d.each);
    return d;
}

// A lane's share of a row of head_dim elements of 16 bits, cut so that a whole warp reads runs of the row: pieces of 8
// elements as long as there are enough, then one of 4 or 2.
template <int head_dim, int lanes>
struct Pieces {
    static constexpr int whole = head_dim / (8 * lanes);
    static constexpr int rest = head_dim % (8 * lanes) / lanes;  // elements of the last piece, 0, 2 or 4
    static_assert(rest == 0 || rest == 2 || rest == 4);
    uint4 piece[whole > 0 ? whole : 1];
    uint32_t last[rest > 0 ? rest / 2 : 1];

    // `lane` of `lanes`; zeros where not valid.
    template <class T>
    TRTBUILD_DEVICE void read(Global<T const> row, int lane, bool valid) {
        TRTBUILD_UNROLL
        for (int i = 0; i < whole; ++i) {
            piece[i] = valid ? load_once<uint4>(row + (i * lanes + lane) * 8) : uint4{0, 0, 0, 0};
        }
        if constexpr (rest == 4) {
            uint2 const two = valid ? load_once<uint2>(row + whole * lanes * 8 + lane * 4) : uint2{0, 0};
            last[0] = two.x;
            last[1] = two.y;
        }
        if constexpr (rest == 2) {
            last[0] = valid ? load_once<uint32_t>(row + whole * lanes * 8 + lane * 2) : 0u;
        }
    }

    static constexpr int words = whole * 4 + rest / 2;
    TRTBUILD_DEVICE uint32_t word(int i) const {
        if (i >= whole * 4) return last[i - whole * 4];
        uint4 const& p = piece[i / 4];
        return i % 4 == 0 ? p.x : i % 4 == 1 ? p.y : i % 4 == 2 ? p.z : p.w;
    }
    // The row's element that word i begins with.
    static TRTBUILD_DEVICE int element(int i, int lane) {
        if (i >= whole * 4) return whole * lanes * 8 + lane * rest + (i - whole * 4) * 2;
        return (i / 4 * lanes + lane) * 8 + i % 4 * 2;
    }
};

// Bytes of shared memory: the warps' parts of the result, and wide heads' queries.
TRTBUILD_ANYWHERE constexpr size_t decode_parts(int head_dim) {
    return sizeof(float) * DECODE_WARPS * DECODE_HEADS * static_cast<size_t>(head_dim + 2);
}
constexpr size_t decode_shared(int head_dim) {
    return decode_parts(head_dim) + (head_dim > 128 ? 2 * DECODE_HEADS * static_cast<size_t>(head_dim) : 0);
}

// Where a split leaves its largest score, its sum of weights and its mixed values, of one head.
TRTBUILD_DEVICE Global<float> partial(Problem const& problem, int index, int head, int split) {
    int64_t const slot = (static_cast<int64_t>(index) * problem.a.heads + head) * problem.splits + split;
    return Global<float>(static_cast<float*>(problem.a.workspace)) + slot * (problem.a.head_dim + 2);
}

// Grid: splits, kv_heads * head_groups, batch.
template <class T, int head_dim>
TRTBUILD_KERNEL(DECODE_WARPS* WARP, 2)
decode(TRTBUILD_PARAMETER Problem problem) {
    TrtbuildAttention const& a = problem.a;
    int const index = block_index().z, split = block_index().x;
    Sequence const own = sequence(a, index);
    if (own.tokens != 1) return;
    int const position = own.past, seen = first_seen(a, position);
    Division const division = divide(problem, position);
    if (split >= division.splits) return;

    int const lane = thread_index() % WARP, warp = thread_index() / WARP, r = lane / 4, c = lane % 4;
    int const kv_head = block_index().y / problem.head_groups, group = a.heads / a.kv_heads;
    int const first_head = kv_head * group + block_index().y % problem.head_groups * DECODE_HEADS;
    int const heads = (kv_head + 1) * group - first_head;  // from first_head on; DECODE_HEADS of them at most are ours

    Global<T> const output =
        Global<T>(static_cast<T*>(a.output)) + (static_cast<int64_t>(own.begin) * a.heads + first_head) * head_dim;
    // Of wide heads there are no registers for all of it at once: queries wait in shared memory, keys come for eight
    // positions, then for eight more.
    constexpr bool wide = head_dim > 128;
    Shared<float> const parts = shared_memory<float>();
    Shared<uint4> const queries = shared_memory<uint4>() + decode_parts(head_dim) / sizeof(uint4);
    Pieces<head_dim, 4> query;
    query.read(Global<T const>(output) + (r < heads ? r : 0) * head_dim, c, r < heads);
    if constexpr (wide) {
        if (warp == 0) {
            TRTBUILD_UNROLL
            for (int i = 0; i < query.whole; ++i) store<uint4>(queries + i * WARP + lane, query.piece[i]);
        }
        sync_threads();
    }
    float const slope = slope_of(a, first_head + r);
    Pages<T> const pages(problem, index, kv_head);

    float mixed[head_dim / 16][4] = {};   // [dimension, head]
    float largest = NEVER, total = 0.0f;  // of head r; the total of this lane's positions
    int const begin = division.first + split * division.each;
    int const end = begin + division.each < division.last ? begin + division.each : division.last;
    for (int tile = begin + warp; tile < end; tile += DECODE_WARPS) {
        int const at = tile * DECODE_TILE;
        Global<T const> const keys = pages.keys + pages.offset(pages.page(at), at), values = keys + pages.values;
        auto const sees = [&](int offset) { return at + offset >= seen && at + offset <= position; };

        constexpr int at_once = wide ? 1 : 2;
        Pieces<head_dim, 4> key[at_once];
        auto const read_keys = [&](int j) { key[j % at_once].read(keys + (r + 8 * j) * head_dim, c, sees(r + 8 * j)); };
        Pieces<head_dim, 8> value[4];  // of positions 2c, 2c + 1, 2c + 8, 2c + 9
        auto const read_values = [&] {
            TRTBUILD_UNROLL
            for (int i = 0; i < 4; ++i) {
                int const offset = 2 * c + i / 2 * 8 + i % 2;
                value[i].read(values + offset * head_dim, r, sees(offset));
            }
        };
        if constexpr (!wide) {
            read_keys(0);
            read_keys(1);
            read_values();
        }

        float scores[2][4] = {};  // [head, position]
        TRTBUILD_UNROLL
        for (int j = 0; j < 2; ++j) {
            if constexpr (wide) read_keys(j);
            Pieces<head_dim, 4> const& k = key[j % at_once];
            TRTBUILD_UNROLL
            for (int i = 0; i < query.words; i += 2) {
                if constexpr (wide) {
                    if (i % 4 == 0) query.piece[i / 4] = load<uint4>(queries + i / 4 * WARP + lane);
                }
                mma<T>(scores[j], query.word(i), 0u, query.word(i + 1), 0u, k.word(i), k.word(i + 1));
            }
        }
        if constexpr (wide) read_values();

        float tile_largest = NEVER;
        TRTBUILD_UNROLL
        for (int j = 0; j < 2; ++j) {
            TRTBUILD_UNROLL
            for (int i = 0; i < 2; ++i) {
                int const offset = j * 8 + 2 * c + i;
                scores[j][i] = sees(offset) ? score(a, scores[j][i], slope, position - at - offset) : NEVER;
                tile_largest = fmaxf(tile_largest, scores[j][i]);
            }
        }
        tile_largest = fmaxf(tile_largest, shuffle_xor(tile_largest, 1));
        tile_largest = fmaxf(tile_largest, shuffle_xor(tile_largest, 2));
        // A tile holds one position at least that is seen, so this is finite.
        float const now_largest = fmaxf(largest, tile_largest), shrink = exp2(largest - now_largest);
        largest = now_largest;
        total *= shrink;
        uint32_t weights[2];
        TRTBUILD_UNROLL
        for (int j = 0; j < 2; ++j) {
            float const first = exp2(scores[j][0] - largest), second = exp2(scores[j][1] - largest);
            total += first + second;
            weights[j] = pack<T>(first, second);
        }
        float const shrink_even = shuffle(shrink, 8 * c), shrink_odd = shuffle(shrink, 8 * c + 4);
        TRTBUILD_UNROLL
        for (int i = 0; i < head_dim / 16; ++i) {
            mixed[i][0] *= shrink_even;
            mixed[i][1] *= shrink_odd;
            mixed[i][2] *= shrink_even;
            mixed[i][3] *= shrink_odd;
            mma<T>(mixed[i], low_halves(value[0].word(i), value[1].word(i)),
                   high_halves(value[0].word(i), value[1].word(i)), low_halves(value[2].word(i), value[3].word(i)),
                   high_halves(value[2].word(i), value[3].word(i)), weights[0], weights[1]);
        }
    }
    total += shuffle_xor(total, 1);
    total += shuffle_xor(total, 2);

    // The warps' parts, [warp, head, head_dim + 2], and their sum.
    constexpr int length = head_dim + 2;
    Shared<float> const mine = parts + warp * DECODE_HEADS * length;
    TRTBUILD_UNROLL
    for (int i = 0; i < head_dim / 16; ++i) {
        int const d = Pieces<head_dim, 8>::element(i, r);
        mine[2 * c * length + d] = mixed[i][0];
        mine[(2 * c + 1) * length + d] = mixed[i][1];
        mine[2 * c * length + d + 1] = mixed[i][2];
        mine[(2 * c + 1) * length + d + 1] = mixed[i][3];
    }
    if (c == 0) {
        mine[r * length + head_dim] = largest;
        mine[r * length + head_dim + 1] = total;
    }
    sync_threads();
    for (int i = thread_index(); i < DECODE_HEADS * head_dim; i += DECODE_WARPS * WARP) {
        int const head = i / head_dim, d = i % head_dim;
        if (head >= heads) break;
        float most = NEVER;
        for (int w = 0; w < DECODE_WARPS; ++w) {
            most = fmaxf(most, parts[(w * DECODE_HEADS + head) * length + head_dim]);
        }
        float sum = 0.0f, weight = 0.0f;
        for (int w = 0; w < DECODE_WARPS; ++w) {
            Shared<float> const part = parts + (w * DECODE_HEADS + head) * length;
            float const share = exp2(part[head_dim] - most);
            sum += share * part[d];
            weight += share * part[head_dim + 1];
        }
        if (division.splits == 1) {
            output[i] = from_float<T>(sum / weight);
        } else {
            Global<float> const to = partial(problem, index, first_head + head, split);
            to[d] = sum;
            if (d == 0) {
                to[head_dim] = most;
                to[head_dim + 1] = weight;
            }
        }
    }
}

// Grid: heads, batch; a thread for each dimension.
template <class T, int head_dim>
TRTBUILD_KERNEL(head_dim, 1)
merge_splits(TRTBUILD_PARAMETER Problem problem) {
    TrtbuildAttention const& a = problem.a;
    int const head = block_index().x, index = block_index().y, d = thread_index();
    Sequence const own = sequence(a, index);
    if (own.tokens != 1) return;
    int const splits = divide(problem, own.past).splits;
    if (splits == 1) return;
    float most = NEVER, sum = 0.0f, weight = 0.0f;
    for (int split = 0; split < splits; ++split) {
        Global<float> const part = partial(problem, index, head, split);
        float const its_most = part[head_dim], now_most = fmaxf(most, its_most);
        float const before = exp2(most - now_most), share = exp2(its_most - now_most);
        sum = sum * before + share * part[d];
        weight = weight * before + share * part[head_dim + 1];
        most = now_most;
    }
    Global<T> const output =
        Global<T>(static_cast<T*>(a.output)) + (static_cast<int64_t>(own.begin) * a.heads + head) * head_dim;
    output[d] = from_float<T>(sum / weight);
}

}  // namespace trtbuild
