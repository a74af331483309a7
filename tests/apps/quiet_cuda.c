/* sink_cuda.c with what quiet.c needs besides: more launches, streams that differ, results that are errors, and work that is
 * done when quiet_done says so. */
#define cuStreamQuery sink_stream_query
#define cuStreamCreate sink_stream_create
#include "sink_cuda.c"
#undef cuStreamQuery
#undef cuStreamCreate
#include <errno.h>

static _Atomic int done;
OUT void quiet_done(int is) { done = is; }
OUT R cuStreamQuery(void *stream) { (void)stream; return done ? 0 : 600; }
OUT R cuStreamCreate(void **stream, unsigned flags)
{
    static _Atomic unsigned long made = 0x7f0000001000;
    (void)flags;
    *stream = (void *)(made += 0x240);
    return 0;
}
OUT R cuLaunchKernelEx(const void *config, void *function, void **params, void **extra)
{
    (void)config, (void)function, (void)params, (void)extra;
    return 0;
}
OUT R cuLaunchKernel_ptsz(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra)
{
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
OUT R cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream)
{
    (void)to, (void)from, (void)bytes, (void)stream;
    return 0;
}
/* Fails, and says so in errno, as a driver's own system call may. */
OUT R cuMemsetD8Async(unsigned long long to, unsigned char value, size_t count, void *stream)
{
    (void)to, (void)value, (void)count, (void)stream;
    errno = EDOM;
    return 719;
}
