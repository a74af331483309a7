/* A driver whose work ends soon after it was launched, and which knows better than anyone what is running: a launch counts
 * from its entry until its stream's work is done, and streams report done exactly then. It finds the page its process shares
 * with the agent and looks, at the entry and at the end of every launch and all the time between, whether IDLE stands there.
 *
 * IDLE counts as published when its edge rings. The library rings once for every edge. Whoever makes a busy edge rings before
 * it calls the driver, and no probe begins before it is back; so the highest doorbell that launches have seen under a BUSY
 * word is the doorbell of the last busy edge, and a doorbell above it under an IDLE word is the ring of the idle edge. Inside
 * a probe IDLE may be taken back, unrung, and appear again under the same generation; after the ring the next edge has
 * another generation. So: the same IDLE word before and after, and between the two a rung doorbell and something that runs,
 * is a violation. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define OUT __attribute__((visibility("default")))
/* The last stream is the default one. */
enum { STREAMS = 9, DOORBELL = 128, ACTIVITY = 192 };
typedef int R;

static struct {
    _Atomic uint64_t submitted, done;
    char apart[48];
} stream_work[STREAMS];
static _Atomic(const char *) page;
static _Atomic uint32_t top;
static _Atomic uint64_t violations, launches, first_word;
static _Atomic int end;
static pthread_t engine;

static uint32_t doorbell(const char *at) { return atomic_load((const _Atomic uint32_t *)(at + DOORBELL)); }
static uint64_t activity(const char *at) { return atomic_load((const _Atomic uint64_t *)(at + ACTIVITY)); }

/* Something runs while this is called. */
static void look(void)
{
    const char *at = atomic_load(&page);
    if (!at) return;
    uint64_t word = activity(at);
    if (word & 1) return;
    uint32_t seen = atomic_load(&top), bell = doorbell(at);
    if ((int32_t)(bell - seen) > 0 && activity(at) == word) atomic_fetch_add(&violations, 1);
}

static void launched(void)
{
    const char *at = atomic_load(&page);
    if (!at) return;
    uint32_t bell = doorbell(at), seen = atomic_load(&top);
    if (!(activity(at) & 1)) return;
    while ((int32_t)(bell - seen) > 0 && !atomic_compare_exchange_weak(&top, &seen, bell)) {}
}

static void *run(void *unused)
{
    while (!atomic_load(&end)) {
        int ran = 0;
        for (int i = 0; i < STREAMS; i++) {
            uint64_t until = atomic_load(&stream_work[i].submitted);
            if (until == atomic_load(&stream_work[i].done)) continue;
            for (int turn = 0; turn < 4; turn++) look();
            atomic_store(&stream_work[i].done, until);
            ran = 1;
        }
        if (!ran) sched_yield();
    }
    return unused;
}

/* Uses the page that is mapped by now; 0 if there is none. Nothing may run meanwhile. */
OUT int running_watch(void)
{
    char line[512];
    unsigned long long at = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:tidegate-page")) sscanf(line, "%llx", &at);
    if (maps) fclose(maps);
    if (!at) return 0;
    atomic_store(&top, doorbell((const char *)(uintptr_t)at));
    atomic_store(&first_word, activity((const char *)(uintptr_t)at));
    atomic_store(&page, (const char *)(uintptr_t)at);
    return 1;
}
OUT int running_idle(void)
{
    const char *at = atomic_load(&page);
    return at && !(activity(at) & 1);
}
/* Every busy period has two edges, and every edge a generation. */
OUT void running_report(void)
{
    uint64_t edges = (activity(atomic_load(&page)) >> 1) - (first_word >> 1);
    printf("launches %llu idle %llu violations %llu\n", (unsigned long long)launches, (unsigned long long)(edges / 2),
           (unsigned long long)violations);
}

static R launch(void *stream)
{
    uint64_t index = stream ? ((uint64_t)(uintptr_t)stream >> 8) - 1 : STREAMS - 1;
    if (index >= STREAMS) return 400;
    launched();
    look();
    atomic_fetch_add(&launches, 1);
    atomic_fetch_add(&stream_work[index].submitted, 1);
    return 0;
}
static R state(void *stream)
{
    uint64_t index = ((uint64_t)(uintptr_t)stream >> 8) - 1;
    if (index >= STREAMS) {
        for (int i = 0; i < STREAMS; i++)
            if (atomic_load(&stream_work[i].submitted) != atomic_load(&stream_work[i].done)) return 600;
        return 0;
    }
    return atomic_load(&stream_work[index].submitted) == atomic_load(&stream_work[index].done) ? 0 : 600;
}

OUT R cuInit(unsigned flags)
{
    (void)flags;
    static atomic_flag once = ATOMIC_FLAG_INIT;
    return atomic_flag_test_and_set(&once) ? 0 : pthread_create(&engine, 0, run, 0);
}
OUT R cuDriverGetVersion(int *version) { *version = 13000; return 0; }
OUT R cuDeviceGetCount(int *count) { *count = 1; return 0; }
OUT R cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
OUT R cuDeviceGetUuid_v2(unsigned char *uuid, int device) { (void)device; memset(uuid, 7, 16); return 0; }
OUT R cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
OUT R cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = (void *)16; return 0; }
OUT R cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { (void)device; *flags = 0; *active = 1; return 0; }
OUT R cuCtxSetCurrent(void *context) { (void)context; return 0; }
OUT R cuCtxGetCurrent(void **context) { *context = (void *)16; return 0; }
OUT R cuCtxGetDevice(int *device) { *device = 0; return 0; }
OUT R cuCtxPushCurrent_v2(void *context) { (void)context; return 0; }
OUT R cuCtxPopCurrent_v2(void **context) { *context = (void *)16; return 0; }
OUT R cuCtxGetApiVersion(void *context, unsigned *version) { (void)context; *version = 3020; return 0; }
OUT R cuCtxSynchronize(void) { while (state(0)) sched_yield(); return 0; }
OUT R cuEventCreate(void **event, unsigned flags) { (void)flags; *event = (void *)96; return 0; }
OUT R cuEventRecord(void *event, void *stream) { (void)event; (void)stream; return 0; }
OUT R cuEventQuery(void *event) { (void)event; return state(0); }
OUT R cuEventDestroy_v2(void *event) { (void)event; return 0; }
OUT R cuStreamCreate(void **stream, unsigned flags)
{
    static _Atomic uint64_t made;
    (void)flags;
    *stream = (void *)(uintptr_t)((atomic_fetch_add(&made, 1) + 1) << 8);
    return 0;
}
OUT R cuStreamSynchronize(void *stream) { while (state(stream)) sched_yield(); return 0; }
OUT R cuStreamQuery(void *stream) { return state(stream); }
OUT R cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return 0; }
OUT R cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return 0; }
/* A synchronous copy promises no more than the documentation says: to a device it is under way when it returns. */
OUT R cuMemcpyDtoD_v2(unsigned long long to, unsigned long long from, size_t bytes)
{
    (void)to, (void)from, (void)bytes;
    return launch(0);
}
OUT R cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes)
{
    (void)to, (void)from, (void)bytes;
    return launch(0);
}
OUT R cuGraphLaunch(void *exec, void *stream) { (void)exec; return launch(stream); }
OUT R cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                     unsigned shared, void *stream, void **params, void **extra)
{
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)params, (void)extra;
    return launch(stream);
}
