#include "call.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace trtbuild {
namespace {

using nvinfer1::DataType;
using nvinfer1::Dims;

constexpr char const* NAMES[] = {"qkv", "kv_pages", "block_table", "cu_seqlens", "past_lengths", "rope_cos_sin"};

// One extent that a shape must have: a name for any, a number, or both.
struct Extent {
    char const* name;
    int64_t needed;  // -1 for any
};

std::string text_of(std::vector<Extent> const& extents) {
    std::string text;
    for (Extent const& extent : extents) {
        text += text.empty() ? "" : ", ";
        text += extent.name;
        if (extent.needed >= 0) text += (*extent.name != '\0' ? "=" : "") + std::to_string(extent.needed);
    }
    return "[" + text + "]";
}

std::string text_of(Dims const& dims) {
    std::string text;
    for (int32_t i = 0; i < dims.nbDims; ++i) {
        text += (i > 0 ? ", " : "") + (dims.d[i] < 0 ? std::string("?") : std::to_string(dims.d[i]));
    }
    return dims.nbDims < 0 ? "of no known rank" : "[" + text + "]";
}

void check_shape(Shapes const& shapes, Input input, std::vector<Extent> const& extents) {
    Dims const& dims = shapes[input];
    bool fits = dims.nbDims == static_cast<int32_t>(extents.size());
    for (size_t i = 0; fits && i < extents.size(); ++i) {
        fits = dims.d[i] < 0 || extents[i].needed < 0 || dims.d[i] == extents[i].needed;
    }
    if (!fits) {
        throw std::invalid_argument("input " + std::to_string(input) + " (" + NAMES[input] + ") is " + text_of(dims) +
                                    "; it must be " + text_of(extents));
    }
}

int32_t narrow(int64_t extent, char const* name) {
    if (extent < 0 || extent > std::numeric_limits<int32_t>::max()) {
        throw std::invalid_argument("there are " + std::to_string(extent) + " " + name + ", which is out of range");
    }
    return static_cast<int32_t>(extent);
}

}  // namespace

void check_counts(AttentionFields const& fields, int32_t inputs, int32_t outputs) {
    if (inputs != input_count(fields)) {
        throw std::invalid_argument("there are " + std::to_string(inputs) + " inputs; there must be " +
                                    std::to_string(input_count(fields)) +
                                    (fields.rotary_dim > 0 ? ", with rope_cos_sin" : ", as rotary_dim is 0"));
    }
    if (outputs != OUTPUTS) {
        throw std::invalid_argument("there are " + std::to_string(outputs) + " outputs; there must be 2");
    }
}

void check_shapes(AttentionFields const& fields, Shapes const& shapes) {
    int64_t const width = (static_cast<int64_t>(fields.num_heads) + 2 * fields.num_kv_heads) * fields.head_dim;
    check_shape(shapes, QKV, {{"tokens", -1}, {"", width}});
    check_shape(shapes, KV_PAGES,
                {{"pages", -1}, {"", 2}, {"", fields.num_kv_heads}, {"page_size", -1}, {"", fields.head_dim}});
    check_shape(shapes, BLOCK_TABLE, {{"batch", -1}, {"max_pages", -1}});
    int64_t const batch = shapes[BLOCK_TABLE].d[0];
    check_shape(shapes, CU_SEQLENS, {{"batch+1", batch < 0 ? -1 : batch + 1}});
    check_shape(shapes, PAST_LENGTHS, {{"batch", batch}});
    if (fields.rotary_dim > 0) {
        check_shape(shapes, ROPE_COS_SIN, {{"tokens", shapes[QKV].d[0]}, {"", fields.rotary_dim}});
    }
}

bool is_supported(DataType type) {
    return type == DataType::kHALF || type == DataType::kBF16 || type == DataType::kFLOAT;
}

TrtbuildType kernel_type(DataType type) {
    if (type == DataType::kHALF) return TRTBUILD_FLOAT16;
    return type == DataType::kBF16 ? TRTBUILD_BFLOAT16 : TRTBUILD_FLOAT32;
}

TrtbuildAttention make_attention(AttentionFields const& fields, Shapes const& shapes, DataType type,
                                 int32_t multiprocessors) {
    check_shapes(fields, shapes);
    if (!is_supported(type)) throw std::invalid_argument("the type of qkv is none of FP16, BF16 and FP32");
    TrtbuildAttention attention{};
    attention.type = kernel_type(type);
    attention.tokens = narrow(shapes[QKV].d[0], "tokens");
    attention.batch = narrow(shapes[BLOCK_TABLE].d[0], "sequences");
    attention.max_pages = narrow(shapes[BLOCK_TABLE].d[1], "pages of a sequence");
    attention.pages = narrow(shapes[KV_PAGES].d[0], "pages");
    attention.page_size = narrow(shapes[KV_PAGES].d[3], "positions of a page");
    attention.heads = fields.num_heads;
    attention.kv_heads = fields.num_kv_heads;
    attention.head_dim = fields.head_dim;
    attention.rotary_dim = fields.rotary_dim;
    attention.interleaved = fields.interleaved;
    attention.window = fields.window;
    attention.scale = fields.scale;
    attention.soft_cap = fields.soft_cap;
    attention.has_alibi = fields.alibi_slopes.empty() ? 0 : 1;
    std::copy(fields.alibi_slopes.begin(), fields.alibi_slopes.end(), attention.alibi_slopes);
    attention.multiprocessors = multiprocessors;
    if (char const* wrong = trtbuild_attention_check(&attention)) throw std::invalid_argument(wrong);
    return attention;
}

}  // namespace trtbuild
