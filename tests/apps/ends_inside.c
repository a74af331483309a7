/* A thread that ends inside a launch, as one that is cancelled or whose handler of a fault gives it up does: its
 * parameters cannot be read, and the handler ends the thread. Prints "gone" then, and lives until its input ends. */
#define _GNU_SOURCE
#include "tg.h"
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static CUfunction spin;
static CUstream stream;
static CUcontext context;

CUresult cuCtxGetCurrent(CUcontext *);

static void give_up(int signal)
{
    (void)signal;
    syscall(SYS_exit, 0);
}

static void *launch(void *arg)
{
    void *nowhere[] = {(void *)8, (void *)8};
    MUST(cuCtxSetCurrent(context));
    tg_spin(spin, stream, 1000000, 0);
    cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, nowhere, 0);
    fprintf(stderr, "the launch came back\n");
    exit(1);
    return arg;
}

int main(void)
{
    pthread_t thread;
    struct sigaction action = {.sa_handler = give_up};
    tg_context(0);
    MUST(cuCtxGetCurrent(&context));
    spin = tg_kernel("tg_spin_ns");
    MUST(cuStreamCreate(&stream, 1));
    CHECK(sigaction(SIGSEGV, &action, 0) == 0);
    CHECK(pthread_create(&thread, 0, launch, 0) == 0);
    CHECK(pthread_join(thread, 0) == 0);
    puts("gone");
    fflush(stdout);
    while (getchar() != EOF) {}
    return 0;
}
