/* What a launch costs its application besides time: system calls (a filter traps every one of the launching thread), allocations
 * (the program's own malloc counts), and errno. Runs on quiet_cuda.c. Prints "calls C allocations A errno E edges N wakes W other
 * O": calls and allocations of launches on a busy device, launches that changed errno or a result, launches on an idle device, and
 * the futex calls and other system calls of those. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuStreamCreate(void **, unsigned);
int cuGraphLaunch(void *, void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLaunchKernel_ptsz(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLaunchKernelEx(const void *, void *, void **, void **);
int cuMemcpyHtoDAsync_v2(unsigned long long, const void *, size_t, void *);
int cuMemsetD8Async(unsigned long long, unsigned char, size_t, void *);
void quiet_done(int);

enum { STREAMS = 4, ROUNDS = 20000, EDGES = 3, MINE = 4321 };

static __thread int counted;
static _Atomic long allocations, futexes, others;
static _Atomic int phase, launched;
static long wrong;
static void *context, *stream[STREAMS];
static int (*busy)(uint32_t);

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
void __libc_free(void *);
static void count(void) { allocations += counted; }
void *malloc(size_t n) { count(); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { count(); return __libc_calloc(n, m); }
void *realloc(void *at, size_t n) { count(); return __libc_realloc(at, n); }
void *memalign(size_t to, size_t n) { count(); return __libc_memalign(to, n); }
void *aligned_alloc(size_t to, size_t n) { return memalign(to, n); }
int posix_memalign(void **at, size_t to, size_t n) { return (*at = memalign(to, n)) ? 0 : ENOMEM; }
void free(void *at) { count(); __libc_free(at); }

static void trapped(int signal, siginfo_t *info, void *of)
{
    (void)signal;
    if (info->si_syscall == SYS_futex) futexes++;
    else others++;
    ((ucontext_t *)of)->uc_mcontext.gregs[REG_RAX] = 0;
}

/* From here on every system call of this thread is counted instead of made, but for the end of a handler and of the process. */
static int trap_all(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    return sigaction(SIGSYS, &action, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void expect(int result, int meant, int number)
{
    if (result != meant || errno != number) wrong++;
    errno = MINE;
}

static void launches(int round)
{
    struct { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned count; } config = {
        {1, 1, 1}, {1, 1, 1}, 0, stream[1], 0, 0};
    void *other = stream[round % STREAMS];
    errno = MINE;
    for (int i = 0; i < 3; i++) expect(cuLaunchKernel((void *)48, 1, 1, 1, 1, 1, 1, 0, stream[0], 0, 0), 0, MINE);
    expect(cuGraphLaunch((void *)80, stream[0]), 0, MINE);
    expect(cuMemcpyHtoDAsync_v2(1, 0, 1 << 20, other), 0, MINE);
    expect(cuLaunchKernelEx(&config, (void *)48, 0, 0), 0, MINE);
    expect(cuLaunchKernel((void *)48, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), 0, MINE);
    expect(cuLaunchKernel_ptsz((void *)48, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), 0, MINE);
    expect(cuMemsetD8Async(1, 0, 13, other), 719, EDOM);
}

static void wait_for(_Atomic int *word, int value)
{
    while (*word != value) {}
}

static void *launch(void *unused)
{
    cuCtxSetCurrent(context);
    launches(0);
    if (trap_all()) return perror("quiet"), (void *)1;
    wrong = 0;
    counted = 1;
    for (int round = 0; round < ROUNDS; round++) launches(round);
    phase = 1;
    for (int edge = 0; edge < EDGES; edge++) {
        wait_for(&launched, edge + 1);
        cuLaunchKernel((void *)48, 1, 1, 1, 1, 1, 1, 0, stream[0], 0, 0);
        phase = 2 + edge;
    }
    counted = 0;
    wait_for(&launched, EDGES + 1);
    return unused;
}

static void rest(void)
{
    struct timespec one = {0, 1000000};
    nanosleep(&one, 0);
}

/* Whether the library's prober sleeps. It publishes that a device is idle, looks again whether a launch came in between, and
 * may take it back: only when it has gone to sleep does the idle edge stand. */
static int prober_sleeps(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int sleeps = 0;
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300], name[32], state;
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", task->d_name);
        FILE *stat = fopen(path, "r");
        if (!stat) continue;
        if (fscanf(stat, "%*d (%31[^)]) %c", name, &state) == 2 && !strcmp(name, "tidegate-prober")) sleeps |= state == 'S';
        fclose(stat);
    }
    if (tasks) closedir(tasks);
    return sleeps;
}

int main(void)
{
    pthread_t thread;
    busy = (int (*)(uint32_t))dlsym(RTLD_DEFAULT, "tidegate_busy");
    if (!busy || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    for (int i = 0; i < STREAMS; i++)
        if (cuStreamCreate(&stream[i], 1)) return 1;
    cuLaunchKernel((void *)48, 1, 1, 1, 1, 1, 1, 0, stream[0], 0, 0);
    rest();
    if (pthread_create(&thread, 0, launch, 0)) return 1;
    while (phase != 1) rest();
    long calls = futexes + others, allocated = allocations;
    long wakes = futexes, rest_of = others;
    for (int edge = 0; edge < EDGES; edge++) {
        quiet_done(1);
        cuCtxSynchronize(); /* Of a thread's own stream only its thread can ask, and this call vouches for it. */
        for (int i = 0; (busy(0) || !prober_sleeps() || busy(0)) && i < 20000; i++) rest();
        if (busy(0)) return fprintf(stderr, "never idle\n"), 2;
        quiet_done(0);
        launched = edge + 1;
        while (phase != 2 + edge) rest();
        if (!busy(0)) return fprintf(stderr, "no edge\n"), 3;
    }
    printf("calls %ld allocations %ld errno %ld edges %d wakes %ld other %ld\n", calls, allocated, wrong, EDGES,
           futexes - wakes, others - rest_of);
    fflush(stdout);
    _exit(0);
}
