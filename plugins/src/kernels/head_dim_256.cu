#include "trtbuild/head_dim.cuh"

template int trtbuild::decode_of<256>(Problem const&, void*);
template int trtbuild::prefill_of<256>(Problem const&, void*);
