// The operator's tensors: which there are, what shapes they have, and the kernels' parameters that follow from these.
#pragma once

#include <NvInfer.h>

#include <array>

#include "fields.h"
#include "trtbuild/attention.h"

namespace trtbuild {

enum Input { QKV, KV_PAGES, BLOCK_TABLE, CU_SEQLENS, PAST_LENGTHS, ROPE_COS_SIN, MOST_INPUTS };
enum Output { ATTENDED, UPDATED_PAGES, OUTPUTS };

// By input; an extent of -1 is not known yet.
using Shapes = std::array<nvinfer1::Dims, MOST_INPUTS>;

// rope_cos_sin is there only if something is rotated.
inline int32_t input_count(AttentionFields const& fields) { return fields.rotary_dim > 0 ? MOST_INPUTS : ROPE_COS_SIN; }

// Throws std::invalid_argument, saying which, for a wrong number of inputs or outputs.
void check_counts(AttentionFields const& fields, int32_t inputs, int32_t outputs);

// Throws std::invalid_argument, with the shape that is needed, for a tensor of the wrong rank or extent.
void check_shapes(AttentionFields const& fields, Shapes const& shapes);

bool is_supported(nvinfer1::DataType type);

// Of a supported type.
TrtbuildType kernel_type(nvinfer1::DataType type);

// Everything but the pointers, of shapes that are all known. Throws std::invalid_argument for what kernels cannot do.
TrtbuildAttention make_attention(AttentionFields const& fields, Shapes const& shapes, nvinfer1::DataType type,
                                 int32_t multiprocessors);

}  // namespace trtbuild
