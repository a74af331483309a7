/* The offline program, in a process that looks at the GPU through a client of its own first, as NVML's is: torch
 * and vLLM count devices that way before they make a context. First argument, what becomes of that client:
 *   freed    freed, its file closed, before cuInit, which then gets the number of its file
 *   reused   the same, and the number is another file's for ever after
 *   closed   its file closed without a free
 *   kept     alive for ever
 *   later    freed, its file closed, once the program runs
 * The other arguments are the offline program's. */
#include "tg.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

static void running(void);
#define main offline_main
#define fflush(stream) (fflush(stream), running())
#include "offline.c"
#undef main
#undef fflush

struct nvos64 { uint32_t root, parent, handle, class; uint64_t params, rights; uint32_t size, flags, status, pad; };
struct nvos00 { uint32_t root, parent, old, status; };

static int later = -1;
static uint32_t client;

static uint32_t alloc(int ctl, uint32_t parent, uint32_t handle, uint32_t class, void *params, uint32_t size)
{
    struct nvos64 p = {.root = client, .parent = parent, .handle = handle, .class = class,
                       .params = (uintptr_t)params, .size = size};
    CHECK(ioctl(ctl, 0xc030462b, &p) == 0 && p.status == 0);
    return p.handle;
}

static void leave(int ctl)
{
    struct nvos00 p = {.root = client, .parent = client, .old = client};
    CHECK(ioctl(ctl, 0xc0104629, &p) == 0 && p.status == 0);
    CHECK(close(ctl) == 0);
}

static void running(void)
{
    if (later >= 0) leave(later);
    later = -1;
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    const char *fate = argv[1];
    uint8_t device[56] = {0}, subdevice[4] = {0};
    int ctl = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
    CHECK(ctl >= 0);
    client = alloc(ctl, 0, 0, 0x41, 0, 0);
    alloc(ctl, client, 0xa0000001, 0x80, device, sizeof device);
    alloc(ctl, 0xa0000001, 0xa0000002, 0x2080, subdevice, sizeof subdevice);
    if (!strcmp(fate, "freed") || !strcmp(fate, "reused")) {
        leave(ctl);
        if (!strcmp(fate, "reused")) CHECK(open("/dev/null", O_RDWR | O_CLOEXEC) == ctl);
    } else if (!strcmp(fate, "closed")) {
        CHECK(close(ctl) == 0);
    } else if (!strcmp(fate, "later")) {
        later = ctl;
    } else {
        CHECK(!strcmp(fate, "kept"));
    }
    return offline_main(argc - 1, argv + 1);
}
