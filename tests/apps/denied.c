/* Runs a program for which the kernel lacks system calls: denied [EPERM] NR[:ARG=VALUE]... -- PROGRAM ARGUMENTS. Each call of
 * that number fails with ENOSYS, in the program and all it starts; where ARG is given, only one whose argument of that place
 * is VALUE (its low half), and with ENOPROTOOPT, as for an option of getsockopt. After EPERM they fail with that, as under a
 * filter that refuses them.
 *
 * Or: denied only=ENOSYS|KILL NR... -- PROGRAM ARGUMENTS. Only calls of these numbers are allowed; any other fails, or
 * ends the program. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LOAD(at) (struct sock_filter) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(at))

int main(int argc, char **argv)
{
    struct sock_filter filter[1024];
    unsigned short length = 0;
    int at = 1;
    unsigned other = SECCOMP_RET_ALLOW;
    if (argc > 1 && !strncmp(argv[1], "only=", 5)) {
        other = strcmp(argv[1], "only=KILL") ? SECCOMP_RET_ERRNO | ENOSYS : SECCOMP_RET_KILL_PROCESS;
        filter[length++] = LOAD(offsetof(struct seccomp_data, nr));
        for (at = 2; at < argc && strcmp(argv[at], "--"); at++) {
            if (length > 1020) return fprintf(stderr, "denied: too many calls\n"), 2;
            filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(argv[at]), 0, 1);
            filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        }
    }
    int refused = at < argc && !strcmp(argv[at], "EPERM") ? (at++, EPERM) : 0;
    for (; at < argc && strcmp(argv[at], "--"); at++) {
        unsigned long nr, arg, value;
        int words = sscanf(argv[at], "%lu:%lu=%lu", &nr, &arg, &value);
        if ((words != 1 && words != 3) || length > 1000) return fprintf(stderr, "denied: %s\n", argv[at]), 2;
        filter[length++] = LOAD(offsetof(struct seccomp_data, nr));
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)nr, 0, words == 3 ? 3 : 1);
        if (words == 3) {
            filter[length++] = LOAD(offsetof(struct seccomp_data, args) + 8 * arg);
            filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)value, 0, 1);
        }
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)(refused ? refused : words == 3 ? ENOPROTOOPT : ENOSYS));
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, other);
    struct sock_fprog program = {length, filter};
    if (at + 1 >= argc) return fprintf(stderr, "denied: no program\n"), 2;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return perror("denied"), 2;
    execvp(argv[at + 1], argv + at + 1);
    perror(argv[at + 1]);
    return 2;
}
