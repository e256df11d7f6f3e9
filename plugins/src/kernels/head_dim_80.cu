#include "trtbuild/head_dim.cuh"

template int trtbuild::decode_of<80>(Problem const&, void*);
template int trtbuild::prefill_of<80>(Problem const&, void*);
