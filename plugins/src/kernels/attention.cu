// The C API: checks, the division of the work, and which kernels run.
#include "trtbuild/attention.h"
#include "trtbuild/fp32.cuh"
#include "trtbuild/head_dim.h"

namespace trtbuild {
namespace {

constexpr int INVALID = 1;  // cudaErrorInvalidValue

// What keeps a grid within 65535 blocks in y and z, and products of lengths within 32 bits.
constexpr int MOST_SEQUENCES = 32767, MOST_TOKENS = 1 << 22, MOST_HEADS = 1 << 14;

// Blocks of the decode kernel that a multiprocessor runs at a time, and how many rounds of them even out their ends.
constexpr int BLOCKS_AT_A_TIME = 3;
constexpr int ROUNDS = 2;

Problem problem_of(TrtbuildAttention const& a) {
    int const head_groups = divide_up(a.heads / a.kv_heads, DECODE_HEADS), blocks = a.batch * a.kv_heads * head_groups;
    int const wanted = divide_up(a.multiprocessors * BLOCKS_AT_A_TIME * ROUNDS, blocks > 0 ? blocks : 1);
    int64_t const positions = static_cast<int64_t>(a.max_pages) * a.page_size;
    auto const most = static_cast<int>((positions + DECODE_TILE * LEAST_TILES - 1) / (DECODE_TILE * LEAST_TILES));
    int const splits = wanted < most ? wanted : most;
    int shift = 0;
    while (1 << shift < a.page_size) ++shift;
    return {a, splits > 0 ? splits : 1, head_groups, shift};
}

template <class T>
int write(Problem const& problem, void* stream) {
    TrtbuildAttention const& a = problem.a;
    constexpr int vector = 16 / sizeof(T);
    int const part = a.interleaved != 0 ? a.rotary_dim : a.rotary_dim / 2, heads = a.heads + 2 * a.kv_heads;
    if (part % vector == 0) {
        Grid const grid{a.tokens, divide_up(heads * a.head_dim / vector, WRITE_THREADS), 1};
        return launch(rope_and_write<T, vector>, grid, WRITE_THREADS, 0, stream, problem);
    }
    Grid const grid{a.tokens, divide_up(heads * a.head_dim, WRITE_THREADS), 1};
    return launch(rope_and_write<T, 1>, grid, WRITE_THREADS, 0, stream, problem);
}

template <int head_dim>
int fp32(Problem const& problem, void* stream) {
    TrtbuildAttention const& a = problem.a;
    size_t const shared = sizeof(float) * FP32_WARPS * head_dim;
    Grid const grid{a.tokens, divide_up(a.heads, FP32_WARPS), 1};
    return launch(attention_fp32<head_dim>, grid, FP32_WARPS * WARP, shared, stream, problem);
}

bool nothing_to_do(TrtbuildAttention const& a) { return a.tokens == 0 || a.batch == 0; }

#define TRTBUILD_BY_HEAD_DIM(function, problem, stream)  \
    switch ((problem).a.head_dim) {                      \
        case 64: return function<64>(problem, stream);   \
        case 80: return function<80>(problem, stream);   \
        case 96: return function<96>(problem, stream);   \
        case 128: return function<128>(problem, stream); \
        default: return function<256>(problem, stream);  \
    }

int decode(Problem const& problem, void* stream) { TRTBUILD_BY_HEAD_DIM(decode_of, problem, stream) }
int prefill(Problem const& problem, void* stream) { TRTBUILD_BY_HEAD_DIM(prefill_of, problem, stream) }
int single_precision(Problem const& problem, void* stream) { TRTBUILD_BY_HEAD_DIM(fp32, problem, stream) }

}  // namespace

}  // namespace trtbuild

using namespace trtbuild;

char const* trtbuild_attention_check(TrtbuildAttention const* attention) {
    TrtbuildAttention const& a = *attention;
    if (a.type != TRTBUILD_FLOAT32 && a.type != TRTBUILD_FLOAT16 && a.type != TRTBUILD_BFLOAT16) {
        return "type is none of FP32, FP16 and BF16";
    }
    if (a.tokens < 0 || a.batch < 0) return "tokens or batch is below zero";
    if (a.pages < 1 || a.max_pages < 1) return "there is no page";
    if (a.batch > MOST_SEQUENCES || a.tokens > MOST_TOKENS) return "more than 32767 sequences or 4194304 tokens";
    if (a.page_size != 16 && a.page_size != 32 && a.page_size != 64 && a.page_size != 128) {
        return "page_size is none of 16, 32, 64 and 128";
    }
    if (static_cast<int64_t>(a.max_pages) * a.page_size > INT32_MAX) return "max_pages * page_size is above 2^31 - 1";
    if (a.heads > MOST_HEADS) return "heads is above 16384";
    if (a.heads < 1 || a.kv_heads < 1 || a.heads % a.kv_heads != 0) return "kv_heads does not divide heads";
    int const sizes[] = {64, 80, 96, 128, 256};
    bool known = false;
    for (int size : sizes) known = known || a.head_dim == size;
    if (!known) return "head_dim is none of 64, 80, 96, 128 and 256";
    if (a.rotary_dim < 0 || a.rotary_dim > a.head_dim || a.rotary_dim % 2 != 0) {
        return "rotary_dim is odd, or not between 0 and head_dim";
    }
    if (a.window < 0) return "window is below zero";
    if (!(a.scale > 0.0f) || a.scale > 1e30f) return "scale is not a positive number";
    if (!(a.soft_cap >= 0.0f) || a.soft_cap > 1e30f) return "soft_cap is below zero or no number";
    if (a.has_alibi != 0) {
        if (a.heads > TRTBUILD_MAX_ALIBI_HEADS) return "more than 256 heads with ALiBi";
        for (int head = 0; head < a.heads; ++head) {
            if (!(a.alibi_slopes[head] >= 0.0f) || a.alibi_slopes[head] > 1e30f) {
                return "an ALiBi slope is below zero or no number";
            }
        }
    }
    if (a.multiprocessors < 1) return "multiprocessors is below one";
    return nullptr;
}

size_t trtbuild_attention_workspace(TrtbuildAttention const* attention) {
    Problem const problem = problem_of(*attention);
    TrtbuildAttention const& a = problem.a;
    if (problem.splits == 1 || a.type == TRTBUILD_FLOAT32) return 0;
    return sizeof(float) * static_cast<size_t>(a.batch) * a.heads * problem.splits * (a.head_dim + 2);
}

int trtbuild_rope_and_write(TrtbuildAttention const* attention, void* stream) {
    if (trtbuild_attention_check(attention) != nullptr) return INVALID;
    if (nothing_to_do(*attention)) return 0;
    Problem const problem = problem_of(*attention);
    if (attention->type == TRTBUILD_FLOAT16) return write<Half>(problem, stream);
    if (attention->type == TRTBUILD_BFLOAT16) return write<BFloat16>(problem, stream);
    return write<float>(problem, stream);
}

int trtbuild_decode(TrtbuildAttention const* attention, void* stream) {
    if (trtbuild_attention_check(attention) != nullptr || attention->type == TRTBUILD_FLOAT32) return INVALID;
    return nothing_to_do(*attention) ? 0 : decode(problem_of(*attention), stream);
}

int trtbuild_prefill(TrtbuildAttention const* attention, void* stream) {
    if (trtbuild_attention_check(attention) != nullptr || attention->type == TRTBUILD_FLOAT32) return INVALID;
    return nothing_to_do(*attention) ? 0 : prefill(problem_of(*attention), stream);
}

int trtbuild_attention_run(TrtbuildAttention const* attention, void* stream) {
    int error = trtbuild_rope_and_write(attention, stream);
    if (error != 0 || nothing_to_do(*attention)) return error;
    Problem const problem = problem_of(*attention);
    if (attention->type == TRTBUILD_FLOAT32) return single_precision(problem, stream);
    error = decode(problem, stream);
    return error != 0 ? error : prefill(problem, stream);
}

char const* trtbuild_kernels_version(void) { return "1"; }
