/* A driver that does nothing, as fast as it can: what `bench hook` measures our wrappers against. A launch costs one
 * call and one increment, so the difference between native and preloaded is the wrapper's own cost. Streams never
 * report done, so a process stays busy, as in the middle of a burst. */
#include <stddef.h>
#include <string.h>

#define OUT __attribute__((visibility("default")))
typedef int R;
static __thread unsigned long launches __attribute__((tls_model("initial-exec")));

OUT R cuInit(unsigned flags) { (void)flags; return 0; }
OUT R cuDriverGetVersion(int *version) { *version = 13000; return 0; }
OUT R cuDeviceGetCount(int *count) { *count = 1; return 0; }
OUT R cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
OUT R cuDeviceGetUuid_v2(unsigned char *uuid, int device) { (void)device; memset(uuid, 7, 16); return 0; }
OUT R cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
OUT R cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = (void *)16; return 0; }
OUT R cuCtxSetCurrent(void *context) { (void)context; return 0; }
OUT R cuCtxGetCurrent(void **context) { *context = (void *)16; return 0; }
OUT R cuCtxGetDevice(int *device) { *device = 0; return 0; }
OUT R cuCtxPushCurrent_v2(void *context) { (void)context; return 0; }
OUT R cuCtxPopCurrent_v2(void **context) { *context = (void *)16; return 0; }
OUT R cuCtxGetApiVersion(void *context, unsigned *version) { (void)context; *version = 3020; return 0; }
OUT R cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { (void)device; *flags = 0; *active = 1; return 0; }
OUT R cuEventCreate(void **event, unsigned flags) { (void)flags; *event = (void *)96; return 0; }
OUT R cuEventRecord(void *event, void *stream) { (void)event; (void)stream; return 0; }
OUT R cuEventQuery(void *event) { (void)event; return 600; }
OUT R cuEventDestroy_v2(void *event) { (void)event; return 0; }
OUT R cuCtxSynchronize(void) { return 0; }
OUT R cuModuleLoadData(void **module, const void *image) { (void)image; *module = (void *)32; return 0; }
OUT R cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module;
    (void)name;
    *function = (void *)48;
    return 0;
}
OUT R cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = (void *)64; return 0; }
OUT R cuStreamSynchronize(void *stream) { (void)stream; return 0; }
OUT R cuStreamQuery(void *stream) { (void)stream; return 600; }
OUT R cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return 0; }
OUT R cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return 0; }
OUT R cuGraphLaunch(void *exec, void *stream) { (void)exec; (void)stream; launches++; return 0; }
OUT R cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                     unsigned shared, void *stream, void **params, void **extra)
{
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)params, (void)extra;
    launches++;
    return 0;
}
