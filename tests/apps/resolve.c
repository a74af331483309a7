/* Reaches the driver in the way its first argument names, launches, and says whether each launch was counted.
 *   local                dlopen(RTLD_LOCAL), dlsym
 *   global               dlopen(RTLD_GLOBAL), dlsym(RTLD_DEFAULT)
 *   next                 dlopen(RTLD_GLOBAL), dlsym(RTLD_NEXT)
 *   gpa VERSION FLAGS    cuGetProcAddress_v2 for everything, itself included
 *   gpa1 VERSION FLAGS   the same by the first cuGetProcAddress
 *   deepbind             a plugin (second argument) opened with RTLD_DEEPBIND launches
 * From CUDA 13.2 on it launches by that version's functions, too.
 * Prints "counted N of M" for M launches; a library that is not there counts nothing. */
#define _GNU_SOURCE
#include "tg.h"
#include <dlfcn.h>

typedef CUresult (*Gpa1)(const char *, void **, int, uint64_t);
typedef CUresult (*Gpa2)(const char *, void **, int, uint64_t, int *);
typedef CUresult (*Launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

static void *driver;
static const char *how;
static int version;
static uint64_t flags;
static Gpa1 gpa1;
static Gpa2 gpa2;

static void *get(const char *base, const char *symbol)
{
    void *found = 0;
    if (!strcmp(how, "gpa")) {
        int status = -1;
        CUresult result = gpa2(base, &found, version, flags, &status);
        if (result || status) fprintf(stderr, "%s: %d, status %d\n", base, result, status), exit(1);
    } else if (!strcmp(how, "gpa1")) {
        CUresult result = gpa1(base, &found, version, flags);
        if (result) fprintf(stderr, "%s: %d\n", base, result), exit(1);
    } else {
        found = dlsym(!strcmp(how, "global") ? RTLD_DEFAULT : !strcmp(how, "next") ? RTLD_NEXT : driver, symbol);
    }
    if (!found) fprintf(stderr, "%s: %s not found\n", how, symbol), exit(1);
    return found;
}
#define GET(type, base, symbol) ((type)get(base, symbol))

static void edges(void)
{
    void *found = (void *)1;
    int status = 7;
    if (!strcmp(how, "gpa")) {
        if (!gpa2("cuNoSuchFunction", &found, version, flags, &status) && found) exit(3);
        if (!gpa2(0, &found, version, flags, &status)) exit(4);
        if (!gpa2("cuLaunchKernel", 0, version, flags, &status)) exit(5);
        if (gpa2("cuLaunchKernel", &found, version, flags, 0)) exit(6);
        found = 0;
        gpa2("cuGraphLaunch", &found, 9000, flags, &status);
        if (found) exit(7);
    } else if (!strcmp(how, "gpa1")) {
        if (!gpa1("cuNoSuchFunction", &found, version, flags) && found) exit(3);
        if (!gpa1(0, &found, version, flags)) exit(4);
    } else {
        if (dlsym(driver, "cuNoSuchFunction")) exit(3);
        if (!dlerror()) exit(8);
        if (dlsym(driver, "cudnnCreate")) exit(4);
    }
}

static _Atomic int calls;

static void called(void *data)
{
    (void)data;
    calls++;
}

static void called_back(CUstream stream, CUresult result, void *data)
{
    (void)stream, (void)result;
    called(data);
}

int main(int argc, char **argv)
{
    how = argv[1];
    uint64_t (*counted)(unsigned) = (uint64_t(*)(unsigned))dlsym(RTLD_DEFAULT, "tidegate_launches");
    if (!strcmp(how, "deepbind")) {
        /* Loaded before, the driver keeps the virtual device's libc functions. */
        if (!dlopen("libcuda.so.1", RTLD_NOW)) return 1;
        void *plugin = dlopen(argv[2], RTLD_NOW | RTLD_DEEPBIND);
        if (!plugin) fprintf(stderr, "%s\n", dlerror()), exit(1);
        int launches = ((int (*)(void))dlsym(plugin, "go"))();
        printf("counted %d of %d\n", counted ? (int)counted(0) : 0, launches);
        return 0;
    }
    if (!strcmp(how, "global") && dlsym(RTLD_DEFAULT, "cuInit")) {
        fprintf(stderr, "cuInit was invented\n");
        return 9;
    }
    for (int i = 0; !strcmp(how, "next") && i < 3; i++) {
        const char *name = (const char *[]){"cuInit", "cuLaunchKernel", "cuMemAlloc_v2"}[i];
        if (dlsym(RTLD_NEXT, name) || !dlerror()) {
            fprintf(stderr, "%s was invented\n", name);
            return 9;
        }
    }
    driver = dlopen("libcuda.so.1", RTLD_NOW | (!strcmp(how, "global") || !strcmp(how, "next") ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!driver) fprintf(stderr, "%s\n", dlerror()), exit(1);
    if (argc > 3) version = atoi(argv[2]), flags = strtoull(argv[3], 0, 10);
    if (!strcmp(how, "gpa")) {
        Gpa2 first = (Gpa2)dlsym(driver, "cuGetProcAddress_v2");
        if (first("cuGetProcAddress", (void **)&gpa2, version, flags, 0)) return 1;
        /* Asked with an older version it answers the older function. */
        if (version < 12000) gpa2 = first;
    } else if (!strcmp(how, "gpa1")) {
        gpa1 = (Gpa1)dlsym(driver, "cuGetProcAddress");
    }
    edges();
    CUcontext context;
    CUmodule module;
    CUfunction spin;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    uint64_t ns = 1000, tag = 1;
    void *args[] = {&ns, &tag};
    MUST(GET(CUresult(*)(unsigned), "cuInit", "cuInit")(0));
    MUST(GET(CUresult(*)(CUcontext *, CUdevice), "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain")(&context, 0));
    MUST(GET(CUresult(*)(CUcontext), "cuCtxSetCurrent", "cuCtxSetCurrent")(context));
    MUST(GET(CUresult(*)(CUmodule *, const void *), "cuModuleLoadData", "cuModuleLoadData")(&module, TG_PTX));
    MUST(GET(CUresult(*)(CUfunction *, CUmodule, const char *), "cuModuleGetFunction", "cuModuleGetFunction")(&spin, module, "tg_spin_ns"));
    MUST(GET(CUresult(*)(CUstream *, unsigned), "cuStreamCreate", "cuStreamCreate")(&stream, 1));
    Launch launch = GET(Launch, "cuLaunchKernel", "cuLaunchKernel");
    CUresult (*sync)(CUstream) = GET(CUresult(*)(CUstream), "cuStreamSynchronize", "cuStreamSynchronize");
    uint64_t before = counted ? counted(0) : 0;
    int launches = 0;
    for (int i = 0; i < 5; i++, launches++) MUST(launch(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
    for (int i = 0; i < 2; i++, launches++) MUST(launch(spin, 1, 1, 1, 1, 1, 1, 0, 0, args, 0));
    MUST(GET(CUresult(*)(CUstream, int), "cuStreamBeginCapture", "cuStreamBeginCapture_v2")(stream, 2));
    for (int i = 0; i < 3; i++) MUST(launch(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
    MUST(GET(CUresult(*)(CUstream, CUgraph *), "cuStreamEndCapture", "cuStreamEndCapture")(stream, &graph));
    MUST(GET(CUresult(*)(CUgraphExec *, CUgraph, uint64_t), "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags")(&exec, graph, 0));
    CUresult (*graph_launch)(CUgraphExec, CUstream) = GET(CUresult(*)(CUgraphExec, CUstream), "cuGraphLaunch", "cuGraphLaunch");
    for (int i = 0; i < 4; i++, launches++) MUST(graph_launch(exec, stream));
    MUST(GET(CUresult(*)(CUgraphExec, CUstream), "cuGraphUpload", "cuGraphUpload")(exec, stream));
    launches++;
    MUST(GET(CUresult(*)(CUstream, void (*)(CUstream, CUresult, void *), void *, unsigned), "cuStreamAddCallback", "cuStreamAddCallback")(stream, called_back, 0, 0));
    launches++;
    if (!version || version >= 13020) {
        CUdeviceptr at;
        uint64_t attributes[8] = {1};
        MUST(GET(CUresult(*)(CUdeviceptr *, size_t), "cuMemAlloc", "cuMemAlloc_v2")(&at, 8192));
        MUST(GET(CUresult(*)(CUstream, void (*)(void *), void *, unsigned), "cuLaunchHostFunc", "cuLaunchHostFunc_v2")(stream, called, 0, 0));
        launches++;
        MUST(GET(CUresult(*)(CUdeviceptr, CUdeviceptr, size_t, void *, CUstream), "cuMemcpyWithAttributesAsync", "cuMemcpyWithAttributesAsync")(at, at + 4096, 4096, attributes, stream));
        launches++;
    }
    MUST(sync(stream));
    MUST(sync(0));
    if (calls != launches - 12 - (!version || version >= 13020)) return 10;
    printf("counted %d of %d\n", counted ? (int)(counted(0) - before) : 0, launches);
    return 0;
}
