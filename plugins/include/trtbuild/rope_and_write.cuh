// The first step: RoPE on queries and keys, and the new keys and values into their pages, in one pass over qkv.
//
// Rotated queries go to `output`, which the attention kernels read them from before they write there.
#pragma once

#include "trtbuild/problem.h"

namespace trtbuild {

constexpr int WRITE_THREADS = 128;

// `width` elements as floats, from and to one vector where there are several.
template <class T, int width>
struct Elements {
    float at[width];

    static TRTBUILD_DEVICE Elements read(Global<T const> from) {
        Elements e;
        if constexpr (width == 1) {
            T const x = from[0];
            e.at[0] = to_float(x);
        } else {
            union {
                uint4 vector;
                T element[width];
            } u{load<uint4>(from)};
            TRTBUILD_UNROLL
            for (int i = 0; i < width; ++i) e.at[i] = to_float(u.element[i]);
        }
        return e;
    }
    TRTBUILD_DEVICE void write(Global<T> to) const {
        if constexpr (width == 1) {
            to[0] = from_float<T>(at[0]);
        } else {
            union {
                uint4 vector;
                T element[width];
            } u{};
            TRTBUILD_UNROLL
            for (int i = 0; i < width; ++i) u.element[i] = from_float<T>(at[i]);
            store<uint4>(to, u.vector);
        }
    }
};

// Which sequence a row of qkv belongs to: how many end at it or before. A warp looks at 32 of them at a time.
TRTBUILD_DEVICE int sequence_of(TrtbuildAttention const& a, int token) {
    Global<int32_t const> const ends = Global<int32_t const>(a.cu_seqlens) + 1;
    int found = 0;
    for (int first = 0; first < a.batch; first += WARP) {
        int const index = first + thread_index() % WARP;
        bool ended = false;
        if (index < a.batch) ended = ends[index] <= token;
        uint32_t const votes = ballot(ended);
        found += count_bits(votes);
        if (votes != 0xffffffffu) break;
    }
    return found;
}

// A block turns WRITE_THREADS vectors of one token. A thread reads its own vector and, for RoPE by halves, the one that
// is rotated into it, which a neighbour of it reads too. `width` is the elements of a vector: those of 16 bytes, or 1
// where RoPE's parts are no whole number of such vectors.
template <class T, int width>
TRTBUILD_KERNEL(WRITE_THREADS, 8)
rope_and_write(TRTBUILD_PARAMETER Problem problem) {
    TrtbuildAttention const& a = problem.a;
    int const token = block_index().x, heads = a.heads + 2 * a.kv_heads;
    int const index = sequence_of(a, token);
    int const vector = block_index().y * WRITE_THREADS + thread_index(), vectors = a.head_dim / width;
    if (vector >= heads * vectors) return;
    int const head = vector / vectors, first = vector % vectors * width;
    bool const is_query = head < a.heads, is_value = head >= a.heads + a.kv_heads;

    Global<T> to;
    if (is_query) {
        to = Global<T>(static_cast<T*>(a.output)) + (static_cast<int64_t>(token) * a.heads + head) * a.head_dim + first;
    }
    Sequence const own = index < a.batch ? sequence(a, index) : Sequence{token, 0, 0};
    int const local = token - own.begin;
    if (local < 0 || local >= own.tokens) {  // padding
        if (is_query) Elements<T, width>{}.write(to);
        return;
    }
    if (!is_query) {
        int const position = own.past + local, kv_head = (head - a.heads) % a.kv_heads;
        Pages<T> const pages(problem, index, kv_head);
        to = pages.keys + pages.offset(pages.page(position), position) + (is_value ? pages.values : 0) + first;
    }

    Global<T const> const from = Global<T const>(static_cast<T const*>(a.qkv)) +
                                 (static_cast<int64_t>(token) * heads + head) * a.head_dim + first;
    Elements<T, width> x = Elements<T, width>::read(from);
    if (!is_value && first < a.rotary_dim) {
        int const half = a.rotary_dim / 2;
        Global<float const> const cosines =
            Global<float const>(a.rope_cos_sin) + static_cast<int64_t>(token) * a.rotary_dim;
        Global<float const> const sines = cosines + half;
        if (a.interleaved == 0) {
            bool const upper = first >= half;
            Elements<T, width> const other = Elements<T, width>::read(from + (upper ? -half : half));
            int const angle = upper ? first - half : first;
            TRTBUILD_UNROLL
            for (int i = 0; i < width; ++i) {
                float const turned = other.at[i] * sines[angle + i];
                x.at[i] = x.at[i] * cosines[angle + i] + (upper ? turned : -turned);
            }
        } else if constexpr (width == 1) {
            bool const upper = first % 2 == 1;
            T const element = (from + (upper ? -1 : 1))[0];
            float const turned = to_float(element) * sines[first / 2];
            x.at[0] = x.at[0] * cosines[first / 2] + (upper ? turned : -turned);
        } else {
            TRTBUILD_UNROLL
            for (int i = 0; i < width; i += 2) {
                float const cosine = cosines[(first + i) / 2], sine = sines[(first + i) / 2];
                float const even = x.at[i], odd = x.at[i + 1];
                x.at[i] = even * cosine - odd * sine;
                x.at[i + 1] = odd * cosine + even * sine;
            }
        }
    }
    x.write(to);
}

}  // namespace trtbuild
