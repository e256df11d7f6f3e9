#include "trtbuild/head_dim.cuh"

template int trtbuild::decode_of<64>(Problem const&, void*);
template int trtbuild::prefill_of<64>(Problem const&, void*);
