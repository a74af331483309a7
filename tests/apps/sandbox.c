/* A preloaded library that stands for a sandbox which lets no descriptor pass through a stream socket, as gVisor's does
 * with the host's: what comes loses its descriptors without a word, what goes is sent without them. The virtual
 * GPU's sockets are of another kind. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int is_stream(int fd)
{
    int type = 0;
    socklen_t length = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    static ssize_t (*next)(int, struct msghdr *, int);
    if (!next) next = (ssize_t (*)(int, struct msghdr *, int))dlsym(RTLD_NEXT, "recvmsg");
    ssize_t got = next(fd, message, flags);
    if (got < 0 || !is_stream(fd)) return got;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
        for (size_t i = 0; i < (at->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int file;
            memcpy(&file, CMSG_DATA(at) + i * sizeof file, sizeof file);
            close(file);
        }
    }
    message->msg_controllen = 0;
    return got;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static ssize_t (*next)(int, const struct msghdr *, int);
    if (!next) next = (ssize_t (*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    struct msghdr bare = *message;
    if (is_stream(fd)) {
        bare.msg_control = 0;
        bare.msg_controllen = 0;
    }
    return next(fd, &bare, flags);
}
