/* No CUDA, many short threads. Prints how many threads the process has while they wait, itself included, and its sockets. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 64 };
static pthread_barrier_t all, go;

static void *wait_twice(void *unused)
{
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&go);
    return unused;
}

static int entries(const char *path, const char *containing)
{
    DIR *dir = opendir(path);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char target[256] = "";
        if (entry->d_name[0] == '.') continue;
        if (containing) {
            char name[512];
            snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
            if (readlink(name, target, sizeof target - 1) < 0) continue;
        }
        if (!containing || strstr(target, containing)) count++;
    }
    closedir(dir);
    return count;
}

int main(void)
{
    for (int round = 0; round < 8; round++) {
        pthread_t thread[THREADS];
        pthread_barrier_init(&all, 0, THREADS + 1);
        pthread_barrier_init(&go, 0, THREADS + 1);
        for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], 0, wait_twice, 0);
        pthread_barrier_wait(&all);
        if (entries("/proc/self/task", 0) != THREADS + 1) return 1;
        pthread_barrier_wait(&go);
        for (int i = 0; i < THREADS; i++) pthread_join(thread[i], 0);
    }
    printf("threads %d sockets %d\n", entries("/proc/self/task", 0), entries("/proc/self/fd", "socket"));
    return 0;
}
