/* Another preloaded library: wraps a launch and a libc function by RTLD_NEXT, as profilers do, and says at the end
 * how often it was called. Exits with 3 if RTLD_NEXT led back to itself.
 * With OWN_DLSYM it answers dlsym too, for the launch, as interposers of CUDA do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/types.h>

static int calls;
static __thread int depth;

typedef void *(*Dlsym)(void *, const char *);

static Dlsym libc_dlsym(void)
{
#ifdef OWN_DLSYM
    Dlsym found = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    return found ? found : (Dlsym)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#else
    return dlsym;
#endif
}

static void *next(const char *name)
{
    if (++depth > 3) _exit(3);
    return libc_dlsym()(RTLD_NEXT, name);
}

typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static Launch given;

static int launch(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s, void **p, void **x)
{
    Launch real = next("cuLaunchKernel");
    if (given) real = given;
    __sync_fetch_and_add(&calls, 1);
    int result = real(f, a, b, c, d, e, g, h, s, p, x);
    depth--;
    return result;
}

int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s, void **p, void **x)
{
    return launch(f, a, b, c, d, e, g, h, s, p, x);
}

#ifdef OWN_DLSYM
void *dlsym(void *handle, const char *name)
{
    void *found = libc_dlsym()(handle, name);
    if (!found || handle == RTLD_NEXT || strcmp(name, "cuLaunchKernel")) return found;
    given = (Launch)found;
    return (void *)launch;
}
#endif

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
