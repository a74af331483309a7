/* Preloaded into a program: every clock that it reads through the C library is ahead by FAKED_S seconds, as those of
 * libraries that fake the time are. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    const char *ahead = getenv("FAKED_S");
    if (!result && ahead) now->tv_sec += atol(ahead);
    return result;
}
