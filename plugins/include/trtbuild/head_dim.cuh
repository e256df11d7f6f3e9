// The definitions of head_dim.h.
#pragma once

#include "trtbuild/decode.cuh"
#include "trtbuild/head_dim.h"
#include "trtbuild/prefill.cuh"

namespace trtbuild {

template <class T, int head_dim>
int launch_decode(Problem const& problem, void* stream) {
    TrtbuildAttention const& a = problem.a;
    Grid const grid{problem.splits, a.kv_heads * problem.head_groups, a.batch};
    int const error = launch(decode<T, head_dim>, grid, DECODE_WARPS * WARP, decode_shared(head_dim), stream, problem);
    if (error != 0 || problem.splits == 1) return error;
    return launch(merge_splits<T, head_dim>, Grid{a.heads, a.batch, 1}, head_dim, 0, stream, problem);
}

template <class T, int head_dim>
int launch_prefill(Problem const& problem, void* stream) {
    TrtbuildAttention const& a = problem.a;
    // As many tiles as any sequences of these tokens make.
    using Shape = PrefillShape<T, head_dim>;
    int const pairs = a.tokens / 2, tiles = min_of(a.tokens / Shape::rows + min_of(a.batch, pairs), pairs);
    if (tiles == 0) return 0;
    return launch(prefill<T, head_dim>, Grid{a.heads, tiles, 1}, Shape::warps * WARP, Shape::shared, stream, problem);
}

template <int head_dim>
int decode_of(Problem const& problem, void* stream) {
    return problem.a.type == TRTBUILD_FLOAT16 ? launch_decode<Half, head_dim>(problem, stream)
                                              : launch_decode<BFloat16, head_dim>(problem, stream);
}

template <int head_dim>
int prefill_of(Problem const& problem, void* stream) {
    return problem.a.type == TRTBUILD_FLOAT16 ? launch_prefill<Half, head_dim>(problem, stream)
                                              : launch_prefill<BFloat16, head_dim>(problem, stream);
}

}  // namespace trtbuild
