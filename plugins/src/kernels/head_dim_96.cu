#include "trtbuild/head_dim.cuh"

template int trtbuild::decode_of<96>(Problem const&, void*);
template int trtbuild::prefill_of<96>(Problem const&, void*);
