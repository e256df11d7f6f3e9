// The kernels of one head size, for FP16 and BF16. Each size is compiled apart, from a source file of its own.
#pragma once

#include "trtbuild/problem.h"

namespace trtbuild {

template <int head_dim>
int decode_of(Problem const& problem, void* stream);
template <int head_dim>
int prefill_of(Problem const& problem, void* stream);

}  // namespace trtbuild
