// A program of another C library than glibc: its own questions for functions are answered as without us.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int main(void) {
    size_t (*length)(const char *) = (size_t (*)(const char *))dlsym(RTLD_DEFAULT, "strlen");
    if (!length || length("four") != 4) return printf("no strlen: %s\n", dlerror()), 1;
    if (!dlsym(RTLD_NEXT, "ioctl")) return printf("no next ioctl: %s\n", dlerror()), 1;
    if (dlsym(RTLD_DEFAULT, "cuInit")) return puts("a cuInit was invented"), 1;
    if (!dlerror()) return puts("no word of what is missing"), 1;
    void *self = dlopen(NULL, RTLD_NOW);
    if (!self || !dlsym(self, "puts")) return printf("not itself: %s\n", dlerror()), 1;
    if (dlopen("libcuda.so.1", RTLD_NOW)) return puts("a driver was invented"), 1;
    int ends[2], waits = 0;
    if (pipe(ends) || write(ends[1], "abc", 3) != 3 || ioctl(ends[0], FIONREAD, &waits) || waits != 3)
        return printf("ioctl: %d\n", errno), 1;
    if (ioctl(-1, FIONREAD, &waits) != -1 || errno != EBADF) return printf("errno %d\n", errno), 1;
    puts("ok");
    return 0;
}
