/* What tests call beside the kernels' own C API: the buffers that kernels may touch, what went wrong, and what was
 * done. */
#ifndef TRTBUILD_EMULATOR_H
#define TRTBUILD_EMULATOR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
void simt_register(void* begin, size_t bytes, int writable);
/* Forgets all buffers, and begins to count anew. */
void simt_forget(void);
/* Whether lengths and page numbers out of range are put into range, as on a GPU; otherwise they are reported. */
void simt_tolerate(int tolerate);
/* Sectors of 32 bytes of global memory that blocks read and wrote, each once for a block, and mma operations. */
void simt_counts(unsigned long long counts[3]);
char const* simt_error(void);
#ifdef __cplusplus
}
#endif
#endif
