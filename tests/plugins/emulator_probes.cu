// Small kernels for the emulator's own tests: each does one thing wrong, or
// shows one operation's layout.
#include "trtbuild/platform.h"

namespace trtbuild {

enum Fault {
  NONE,
  RACE,
  RACE_IN_WARP,
  READ_RACE,
  UNWRITTEN,
  UNDER_WAY,
  OUTSIDE,
  INPUT,
  MISALIGNED,
  SHARED_OUTSIDE,
  DIVERGENT,
  MIXED,
};

TRTBUILD_KERNEL(64, 1) faulty(Fault fault, float *out, float const *in) {
  Global<float> const to(out);
  Global<float const> const from(in);
  Shared<float> const shared = shared_memory<float>();
  int const thread = thread_index();
  if (fault == UNWRITTEN) {
    float const x = shared[thread];
    to[thread] = x;
    return;
  }
  if (fault == UNDER_WAY) {
    if (thread == 1)
      copy_async(shared, from, true);
    copy_async_commit();
    sync_threads();
    if (thread == 0)
      to[0] = float(shared[0]);
    copy_async_wait<0>();
    return;
  }
  shared[thread] = static_cast<float>(thread);
  if (fault == RACE_IN_WARP) {
    if (thread == 0)
      shared[1] = 0.0f;
    return;
  }
  sync_warp();
  if (fault == RACE) {
    if (thread >= 32)
      to[thread] = float(shared[thread - 32]);
    return;
  }
  sync_threads();
  if (fault == READ_RACE) {
    float const x = shared[(thread + 1) % 64];
    shared[thread] = x;
    return;
  }
  if (fault == OUTSIDE && thread == 63)
    to[64] = 1.0f;
  if (fault == INPUT && thread == 5)
    Global<float>(const_cast<float *>(in))[0] = 1.0f;
  if (fault == MISALIGNED && thread == 3)
    store<uint4>(to + 1, uint4{});
  if (fault == SHARED_OUTSIDE && thread == 3)
    shared[64] = 1.0f;
  if (fault == DIVERGENT && thread % 32 == 3)
    return;
  if (fault == MIXED && thread % 32 == 3) {
    ballot(true);
  } else {
    float const sum = shuffle_xor(static_cast<float>(shared[thread]), 1);
    to[thread] = sum;
  }
}

// One mma: a [32, 4], b [32, 2], d [32, 4], each lane's registers.
template <class T>
TRTBUILD_KERNEL(32, 1)
one_mma(uint32_t *a, uint32_t *b, float *d) {
  int const lane = thread_index();
  float own[4] = {d[4 * lane], d[4 * lane + 1], d[4 * lane + 2],
                  d[4 * lane + 3]};
  mma<T>(own, a[4 * lane], a[4 * lane + 1], a[4 * lane + 2], a[4 * lane + 3],
         b[2 * lane], b[2 * lane + 1]);
  for (int i = 0; i < 4; ++i)
    d[4 * lane + i] = own[i];
}

// Four matrices of 8 x 8 elements, one behind the other; what each lane gets,
// [32, 4].
TRTBUILD_KERNEL(32, 1)
matrices(bool transposed, uint16_t const *from, uint32_t *to) {
  Shared<Half> const shared = shared_memory<Half>();
  int const lane = thread_index();
  for (int i = 0; i < 8; ++i)
    shared[8 * lane + i] = Half{from[8 * lane + i]};
  sync_warp();
  uint32_t own[4];
  if (transposed) {
    load_matrices_transposed(own, shared + 8 * lane);
  } else {
    load_matrices(own, shared + 8 * lane);
  }
  for (int i = 0; i < 4; ++i)
    to[4 * lane + i] = own[i];
}

} // namespace trtbuild

using namespace trtbuild;

extern "C" {
int probe_fault(int fault, float *out, float const *in) {
  return launch(faulty, Grid{1, 1, 1}, 64, 256, nullptr,
                static_cast<Fault>(fault), out, in);
}
int probe_mma(int bf16, uint32_t *a, uint32_t *b, float *d) {
  if (bf16 != 0)
    return launch(one_mma<BFloat16>, Grid{1, 1, 1}, 32, 0, nullptr, a, b, d);
  return launch(one_mma<Half>, Grid{1, 1, 1}, 32, 0, nullptr, a, b, d);
}
int probe_matrices(int transposed, uint16_t const *from, uint32_t *to) {
  return launch(matrices, Grid{1, 1, 1}, 32, 512, nullptr, transposed != 0,
                from, to);
}
void probe_to_half(float const *from, uint16_t *to, int count) {
  for (int i = 0; i < count; ++i)
    to[i] = from_float<Half>(from[i]).bits;
}
void probe_to_bfloat(float const *from, uint16_t *to, int count) {
  for (int i = 0; i < count; ++i)
    to[i] = from_float<BFloat16>(from[i]).bits;
}
void probe_from_half(uint16_t const *from, float *to, int count) {
  for (int i = 0; i < count; ++i)
    to[i] = to_float(Half{from[i]});
}
}
