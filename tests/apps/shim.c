/* Looks at the device files in every way that libc offers, and at other files to see that those are left alone.
 * Needs no driver library. Prints "ok" and ends with 0, or says which line went wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)

int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);

struct nvos64 { uint32_t root, parent, handle, class; uint64_t params, rights; uint32_t size, flags, status, pad; };
struct nvos54 { uint32_t client, object, cmd, flags; uint64_t params; uint32_t size, status; };

static int is_device(const struct stat *s, unsigned minor_number)
{
    return S_ISCHR(s->st_mode) && major(s->st_rdev) == 195 && minor(s->st_rdev) == minor_number;
}

static uint32_t root(int ctl)
{
    struct nvos64 p = { .class = 0x41 };
    CHECK(ioctl(ctl, 0xc030462b, &p) == 0 && p.status == 0);
    return p.handle;
}

static uint32_t attached(int ctl, uint32_t client)
{
    uint32_t ids[32];
    struct nvos54 p = { .client = client, .object = client, .cmd = 0x201, .params = (uintptr_t)ids, .size = sizeof ids };
    CHECK(ioctl(ctl, 0xc020462a, &p) == 0);
    return p.status;
}

static int shared;
static uint32_t shared_client;

static volatile sig_atomic_t handled;

/* Until a signal has come, too: whoever sends them may be late. */
static void *ask_often(void *unused)
{
    (void)unused;
    for (int i = 0; i < 300 || !handled; i++) CHECK(attached(shared, shared_client) == 0);
    return 0;
}

static void ask_in_handler(int signal_number)
{
    (void)signal_number;
    CHECK(attached(shared, shared_client) == 0);
    handled++;
}

int main(void)
{
    const char *ctl_path = "/dev/nvidiactl";
    struct stat s;
    struct statx x;

    int opened[] = {
        open(ctl_path, O_RDWR), open64(ctl_path, O_RDWR | O_CLOEXEC), openat(AT_FDCWD, ctl_path, O_RDWR),
        openat64(AT_FDCWD, ctl_path, O_RDWR), __open_2(ctl_path, O_RDWR), __open64_2(ctl_path, O_RDWR),
        __openat_2(AT_FDCWD, ctl_path, O_RDWR), __openat64_2(AT_FDCWD, ctl_path, O_RDWR), creat(ctl_path, 0600),
    };
    for (unsigned i = 0; i < sizeof opened / sizeof *opened; i++) {
        CHECK(opened[i] >= 0);
        CHECK(fstat(opened[i], &s) == 0 && is_device(&s, 255));
        CHECK(attached(opened[i], root(opened[i])) == 0);
        CHECK(!!(fcntl(opened[i], F_GETFD) & FD_CLOEXEC) == (i == 1));
    }
    CHECK(open("/dev/nvidia7", O_RDWR) == -1 && errno == ENOENT);

    int gpu = open("/dev/nvidia0", O_RDWR), uvm = open("/dev/nvidia-uvm", O_RDWR);
    CHECK(gpu >= 0 && uvm >= 0);
    CHECK(fstat64(gpu, (struct stat64 *)&s) == 0 && is_device(&s, 0));
    CHECK(fstatat(gpu, "", &s, AT_EMPTY_PATH) == 0 && is_device(&s, 0));
    CHECK(statx(gpu, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) == 0 && x.stx_rdev_major == 195 && x.stx_rdev_minor == 0);
    CHECK(fstat(uvm, &s) == 0 && S_ISCHR(s.st_mode) && major(s.st_rdev) != 195);
    CHECK(stat("/dev/nvidia0", &s) == 0 && is_device(&s, 0));
    CHECK(lstat(ctl_path, &s) == 0 && is_device(&s, 255));
    CHECK(stat64(ctl_path, (struct stat64 *)&s) == 0 && is_device(&s, 255));
    CHECK(fstatat(AT_FDCWD, ctl_path, &s, 0) == 0 && is_device(&s, 255));
    CHECK(statx(AT_FDCWD, ctl_path, 0, STATX_BASIC_STATS, &x) == 0 && S_ISCHR(x.stx_mode) && x.stx_rdev_minor == 255);
    CHECK(access(ctl_path, R_OK | W_OK) == 0 && faccessat(AT_FDCWD, "/dev/nvidia0", F_OK, 0) == 0);
    CHECK(stat("/dev/nvidia7", &s) == -1 && errno == ENOENT);
    int (*fxstat)(int, int, struct stat *) = (int (*)(int, int, struct stat *))dlsym(RTLD_DEFAULT, "__fxstat");
    if (fxstat) CHECK(fxstat(1, gpu, &s) == 0 && is_device(&s, 0));

    /* Identity: dup, a passed descriptor, another file. */
    int ctl = opened[0], other = opened[1], copy = dup(ctl);
    uint32_t client = root(ctl);
    CHECK(attached(copy, client) == 0 && attached(other, client) == 0x23);
    CHECK(dup2(ctl, other) == other && attached(other, client) == 0);
    close(copy);

    /* Calls of threads and of signal handlers on one file. */
    shared = ctl;
    shared_client = client;
    struct sigaction action = { .sa_handler = ask_in_handler };
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], 0, ask_often, 0) == 0);
    for (int i = 0; i < 50; i++) {
        CHECK(pthread_kill(threads[i % 4], SIGUSR1) == 0 || 1);
        usleep(100);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    CHECK(handled > 0);

    /* A child goes on with the parent's file, also past an exec's worth of closing. */
    pid_t child = fork();
    if (child == 0) _exit(attached(ctl, client));
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    /* Everything else is left alone, errno included. */
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    CHECK(fstat(pair[0], &s) == 0 && S_ISSOCK(s.st_mode));
    errno = 0;
    CHECK(ioctl(pair[0], 0xc020462a, &s) == -1 && errno == ENOTTY);
    CHECK(ioctl(1000, 27, &s) == -1 && errno == EBADF);
    int null = open("/dev/null", O_RDWR);
    CHECK(null >= 0 && fstat(null, &s) == 0 && major(s.st_rdev) == 1);
    CHECK(open("/dev/nvidia-nothing", O_RDWR) == -1 && errno == ENOENT);
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (file >= 0) {
        CHECK(fstat(file, &s) == 0 && (s.st_mode & 0777) == 0600);
        CHECK(ftruncate(file, 4096) == 0);
        CHECK(mmap(0, 4096, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED);
    }
    CHECK(mmap(0, 4096, PROT_READ, MAP_SHARED, gpu, 0) == MAP_FAILED && errno == EINVAL);

    /* A call of the driver takes no descriptor, so it works where there is none; and the limit stays what it was. */
    struct rlimit had, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &had) == 0);
    none = (struct rlimit){ 3, had.rlim_max };
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0 && dup(0) == -1 && errno == EMFILE);
    CHECK(attached(ctl, client) == 0);
    CHECK(dup(0) == -1 && errno == EMFILE);
    CHECK(getrlimit(RLIMIT_NOFILE, &none) == 0 && none.rlim_cur == 3);
    CHECK(setrlimit(RLIMIT_NOFILE, &had) == 0);
    puts("ok");
    return 0;
}
