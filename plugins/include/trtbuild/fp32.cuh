// Attention in FP32 throughout, prompts and single tokens alike: a warp for each query, 32 positions at a time.
//
// It is exact rather than fast: a group's heads do not share what they read. FP16 and BF16 have kernels of their own.
#pragma once

#include "trtbuild/rope_and_write.cuh"

namespace trtbuild {

constexpr int FP32_WARPS = 4;

// Grid: tokens, heads / FP32_WARPS. Shared memory: a query for each warp.
template <int head_dim>
TRTBUILD_KERNEL(FP32_WARPS* WARP, 2)
attention_fp32(TRTBUILD_PARAMETER Problem problem) {
    constexpr int own_dims = (head_dim + WARP - 1) / WARP;
    TrtbuildAttention const& a = problem.a;
    int const lane = thread_index() % WARP, warp = thread_index() / WARP;
    int const token = block_index().x, head = block_index().y * FP32_WARPS + warp;
    int const index = sequence_of(a, token);
    if (head >= a.heads || index >= a.batch) return;
    Sequence const own = sequence(a, index);
    int const local = token - own.begin;
    if (local < 0 || local >= own.tokens) return;
    int const position = own.past + local, kv_head = head / (a.heads / a.kv_heads);
    float const slope = slope_of(a, head);
    Pages<float> const pages(problem, index, kv_head);

    Global<float> const output =
        Global<float>(static_cast<float*>(a.output)) + (static_cast<int64_t>(token) * a.heads + head) * head_dim;
    Shared<float> const query = shared_memory<float>() + warp * head_dim;
    for (int d = lane; d < head_dim; d += WARP) {
        float const x = output[d];
        query[d] = x;
    }
    sync_warp();

    float mixed[own_dims] = {}, largest = NEVER, total = 0.0f;
    int const seen = first_seen(a, position);
    for (int first = seen / DECODE_TILE * DECODE_TILE; first <= position; first += WARP) {
        int const at = first + lane;
        bool const sees = at >= seen && at <= position;
        int const page = sees ? pages.page(at) : 0;
        float s = NEVER;
        if (sees) {
            Global<float const> const key = pages.keys + pages.offset(page, at);
            float product = 0.0f;
            for (int d = 0; d < head_dim; d += 4) {
                float4 const x = load<float4>(Shared<float const>(query + d)), y = load<float4>(key + d);
                product += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
            }
            s = score(a, product, slope, position - at);
        }
        float tile_largest = s;
        for (int step = WARP / 2; step > 0; step /= 2) {
            tile_largest = fmaxf(tile_largest, shuffle_xor(tile_largest, step));
        }
        if (tile_largest == NEVER) continue;  // the same in every lane
        float const now_largest = fmaxf(largest, tile_largest), shrink = exp2(largest - now_largest);
        float const weight = exp2(s - now_largest);
        largest = now_largest;
        total = total * shrink + weight;
        TRTBUILD_UNROLL
        for (int i = 0; i < own_dims; ++i) mixed[i] *= shrink;
        for (int other = 0; other < WARP; ++other) {
            float const its_weight = shuffle(weight, other);
            int const its_page = shuffle(page, other), its_position = first + other;
            if (its_position < seen || its_position > position) continue;
            Global<float const> const value = pages.keys + pages.offset(its_page, its_position) + pages.values;
            TRTBUILD_UNROLL
            for (int i = 0; i < own_dims; ++i) {
                int const d = lane + i * WARP;
                if (d < head_dim) mixed[i] += its_weight * value[d];
            }
        }
    }
    for (int step = WARP / 2; step > 0; step /= 2) total += shuffle_xor(total, step);
    TRTBUILD_UNROLL
    for (int i = 0; i < own_dims; ++i) {
        int const d = lane + i * WARP;
        if (d < head_dim) output[d] = mixed[i] / total;
    }
}

}  // namespace trtbuild
