/* An offline program: keeps every device it is given busy with counted kernels until it gets SIGTERM.
 * SIGUSR1 has it rest, without work, until SIGUSR2. Arguments: NS of one kernel (default 1 ms), then device ordinals
 * (default 0). Prints "running" after its first kernel finished, and the number of kernels it saw finish at the end. */
#include "tg.h"
#include <signal.h>
#include <unistd.h>

enum { DEPTH = 4, DEVICES = 8 };
static volatile sig_atomic_t stop, rests;
static void on_term(int signal) { (void)signal; stop = 1; }
static void on_user(int signal) { rests = signal == SIGUSR1; }

int main(int argc, char **argv)
{
    uint64_t ns = argc > 1 ? strtoull(argv[1], 0, 10) : 1000000, done = 0;
    int devices = argc > 2 ? argc - 2 : 1;
    struct { CUcontext context; CUstream stream; CUfunction count; CUdeviceptr counter; CUevent event[DEPTH]; } on[DEVICES];
    struct sigaction action = {.sa_handler = on_term};
    sigaction(SIGTERM, &action, 0);
    struct sigaction user = {.sa_handler = on_user, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &user, 0);
    sigaction(SIGUSR2, &user, 0);
    MUST(cuInit(0));
    for (int d = 0; d < devices; d++) {
        CUdevice device;
        MUST(cuDeviceGet(&device, argc > 2 ? atoi(argv[2 + d]) : 0));
        MUST(cuDevicePrimaryCtxRetain(&on[d].context, device));
        MUST(cuCtxSetCurrent(on[d].context));
        on[d].count = tg_kernel("tg_count");
        MUST(cuStreamCreate(&on[d].stream, 1));
        MUST(cuMemAlloc_v2(&on[d].counter, 8));
        MUST(cuMemsetD8_v2(on[d].counter, 0, 8));
        for (int i = 0; i < DEPTH; i++) MUST(cuEventCreate(&on[d].event[i], 2));
    }
    for (uint64_t i = 0; !stop; i++) {
        while (rests && !stop) usleep(1000);
        for (int d = 0; d < devices; d++) {
            void *args[] = {&on[d].counter, &ns, &i};
            MUST(cuCtxSetCurrent(on[d].context));
            if (i >= DEPTH) MUST(cuEventSynchronize(on[d].event[i % DEPTH]));
            MUST(cuLaunchKernel(on[d].count, 1, 1, 1, 1, 1, 1, 0, on[d].stream, args, 0));
            MUST(cuEventRecord(on[d].event[i % DEPTH], on[d].stream));
        }
        if (i == DEPTH) {
            printf("running\n");
            fflush(stdout);
        }
    }
    for (int d = 0; d < devices; d++) {
        uint64_t counted = 0;
        MUST(cuCtxSetCurrent(on[d].context));
        MUST(cuStreamSynchronize(on[d].stream));
        MUST(cuMemcpyDtoH_v2(&counted, on[d].counter, 8));
        done += counted;
    }
    printf("%llu\n", (unsigned long long)done);
    return 0;
}
