/* Finds the driver by path and by dlsym alone, and launches through the functions that it was given.
 *   two PATH PATH   two copies of its library at once, 20 launches by turns; says "counted N of 20"
 *   loop PATH NS    one copy; says "running", and launches kernels of NS until it is ended
 *   elsewhere PATH NS  opens a plugin (elsewhere.c) in a namespace of its own, which does the same
 *   namespace PATH  opens a library in a namespace of its own, and says "opened" */
#define _GNU_SOURCE
#include "tg.h"
#include <dlfcn.h>

typedef struct {
    CUcontext context;
    CUfunction spin;
    CUstream stream;
    CUresult (*set)(CUcontext);
    CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
    CUresult (*sync)(CUstream);
} Driver;

static void *get(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "%s\n", dlerror()), exit(2);
    return found;
}

static Driver open_driver(const char *path)
{
    Driver driver;
    CUdevice device;
    CUmodule module;
    void *library = dlopen(path, RTLD_NOW);
    if (!library) fprintf(stderr, "%s\n", dlerror()), exit(2);
    MUST(((CUresult(*)(unsigned))get(library, "cuInit"))(0));
    MUST(((CUresult(*)(CUdevice *, int))get(library, "cuDeviceGet"))(&device, 0));
    MUST(((CUresult(*)(CUcontext *, CUdevice))get(library, "cuDevicePrimaryCtxRetain"))(&driver.context, device));
    *(void **)&driver.set = get(library, "cuCtxSetCurrent");
    MUST(driver.set(driver.context));
    MUST(((CUresult(*)(CUmodule *, const void *))get(library, "cuModuleLoadData"))(&module, TG_PTX));
    MUST(((CUresult(*)(CUfunction *, CUmodule, const char *))get(library, "cuModuleGetFunction"))(&driver.spin, module, "tg_spin_ns"));
    MUST(((CUresult(*)(CUstream *, unsigned))get(library, "cuStreamCreate"))(&driver.stream, 1));
    *(void **)&driver.launch = get(library, "cuLaunchKernel");
    *(void **)&driver.sync = get(library, "cuStreamSynchronize");
    return driver;
}

static void spin(Driver *driver, uint64_t ns)
{
    uint64_t tag = 7;
    void *arguments[] = {&ns, &tag};
    MUST(driver->launch(driver->spin, 1, 1, 1, 1, 1, 1, 0, driver->stream, arguments, 0));
    MUST(driver->sync(driver->stream));
}

int main(int argc, char **argv)
{
    uint64_t (*counted)(unsigned) = (uint64_t(*)(unsigned))dlsym(RTLD_DEFAULT, "tidegate_launches");
    if (argc == 3 && !strcmp(argv[1], "namespace")) {
        if (!dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW)) fprintf(stderr, "%s\n", dlerror()), exit(2);
        printf("opened\n");
        return 0;
    }
    if (argc != 4) return 2;
    if (!strcmp(argv[1], "elsewhere")) {
        void *plugin = dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
        if (!plugin) fprintf(stderr, "%s\n", dlerror()), exit(2);
        return ((int (*)(uint64_t))get(plugin, "go"))(strtoull(argv[3], 0, 10));
    }
    Driver one = open_driver(argv[2]);
    if (!strcmp(argv[1], "loop")) {
        printf("running\n");
        fflush(stdout);
        for (;;) spin(&one, strtoull(argv[3], 0, 10));
    }
    Driver two = open_driver(argv[3]);
    for (int i = 0; i < 10; i++) {
        MUST(one.set(one.context));
        spin(&one, 1000);
        MUST(two.set(two.context));
        spin(&two, 1000);
    }
    printf("counted %d of 20\n", counted ? (int)counted(0) : 0);
    return 0;
}
