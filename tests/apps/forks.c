/* Forks with a context, threads and a library attached: children that exit, exec, use files and fork again, while the
 * parent goes on launching. A child must see no descriptor that the parent's program did not open. Prints "ok". */
#define _GNU_SOURCE
#include "tg.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static int sockets(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char name[300], target[256] = "";
        snprintf(name, sizeof name, "/proc/self/fd/%s", entry->d_name);
        if (readlink(name, target, sizeof target - 1) > 0 && (strstr(target, "eventpoll") || strstr(target, "signalfd"))) count++;
    }
    closedir(dir);
    return count;
}

int main(int argc, char **argv)
{
    CUstream stream;
    if (argc > 1) return !strcmp(argv[1], "child") ? sockets() : 9;
    tg_context(0);
    CUfunction spin = tg_kernel("tg_spin_ns");
    MUST(cuStreamCreate(&stream, 1));
    for (int round = 0; round < 30; round++) {
        tg_spin(spin, stream, 10000, round);
        pid_t child = fork();
        if (child == 0) {
            /* CUDA is not usable here; what the driver answers is not asked, only that the call returns. */
            uint64_t ns = 1, tag = 1;
            void *args[] = {&ns, &tag};
            if (round % 3 == 0) cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0);
            if (sockets()) _exit(3);
            if (round % 3 == 1) {
                pid_t grandchild = fork();
                if (grandchild == 0) _exit(0);
                int status;
                waitpid(grandchild, &status, 0);
                _exit(status ? 4 : 0);
            }
            if (round % 3 == 2) {
                execl("/proc/self/exe", "forks", "child", (char *)0);
                _exit(5);
            }
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status) return fprintf(stderr, "child of round %d: %x\n", round, status), 1;
        MUST(cuStreamSynchronize(stream));
    }
    if (sockets()) return fprintf(stderr, "a descriptor of the library's shows in the application\n"), 2;
    printf("ok\n");
    return 0;
}
