/* Another preloaded library: wraps a launch and a libc function by RTLD_NEXT, as profilers do, and says at the end
 * how often it was called. Exits with 3 if RTLD_NEXT led back to itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/types.h>

static int calls;
static __thread int depth;

static void *next(const char *name)
{
    if (++depth > 3) _exit(3);
    return dlsym(RTLD_NEXT, name);
}

int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s, void **p, void **x)
{
    int (*real)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) = next("cuLaunchKernel");
    __sync_fetch_and_add(&calls, 1);
    int result = real(f, a, b, c, d, e, g, h, s, p, x);
    depth--;
    return result;
}

pid_t getppid(void)
{
    pid_t (*real)(void) = next("getppid");
    pid_t parent = real();
    depth--;
    return parent;
}

__attribute__((destructor)) static void end(void)
{
    if (calls) printf("second saw %d\n", calls);
    if (getppid() <= 0) _exit(4);
}
