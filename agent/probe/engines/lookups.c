/* Which functions of the driver a program looks up, and how: dlsym, cuGetProcAddress, private tables.
 *
 *   cc -O2 -shared -fPIC -o liblookups.so lookups.c
 *   LOOKUPS=FILE LD_PRELOAD=./liblookups.so PROGRAM
 *
 * A line each in FILE: "dlsym NAME", "proc NAME VERSION FLAGS RESULT", "table UUID". It changes no answer but
 * those for cuGetProcAddress and cuGetExportTable, in whose place it puts itself. -O2 is needed: glibc looks
 * at its caller's address, so dlsym has to be left by a jump.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *(*find_t)(void *, const char *);
typedef int (*proc_t)(const char *, void **, int, unsigned long long);
typedef int (*proc_v2_t)(const char *, void **, int, unsigned long long, int *);
typedef int (*table_t)(const void **, const unsigned char *);

int cuGetProcAddress(const char *, void **, int, unsigned long long);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *);
int cuGetExportTable(const void **, const unsigned char *);

static proc_t real_proc;
static proc_v2_t real_proc_v2;
static table_t real_table;

static void say(const char *format, ...)
{
    char line[512];
    const char *path = getenv("LOOKUPS");
    va_list rest;
    if (!path)
        return;
    va_start(rest, format);
    int length = vsnprintf(line, sizeof line, format, rest);
    va_end(rest);
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    if (length > 0 && write(file, line, (size_t)length) < 0) { /* Nothing to be done about it. */ }
    close(file);
}

static find_t finder(void)
{
    static find_t found;
    if (!found)
        found = (find_t)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!found)
        found = (find_t)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return found;
}

/* What stands in for a function that was found; the function itself if nothing does. */
static void *stand_in(const char *name, void *found)
{
    if (!strcmp(name, "cuGetProcAddress_v2") && found != (void *)cuGetProcAddress_v2) {
        real_proc_v2 = (proc_v2_t)found;
        return (void *)cuGetProcAddress_v2;
    }
    if (!strcmp(name, "cuGetProcAddress") && found != (void *)cuGetProcAddress) {
        real_proc = (proc_t)found;
        return (void *)cuGetProcAddress;
    }
    if (!strcmp(name, "cuGetExportTable") && found != (void *)cuGetExportTable) {
        real_table = (table_t)found;
        return (void *)cuGetExportTable;
    }
    return found;
}

void *dlsym(void *handle, const char *name)
{
    find_t real = finder();
    if (handle == RTLD_NEXT || name[0] != 'c' || name[1] != 'u')
        return real(handle, name);
    void *found = real(handle, name);
    say("dlsym %s\n", name);
    return found ? stand_in(name, found) : found;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status)
{
    if (!real_proc_v2)
        real_proc_v2 = (proc_v2_t)finder()(RTLD_NEXT, "cuGetProcAddress_v2");
    int result = real_proc_v2 ? real_proc_v2(name, found, version, flags, status) : 3;
    say("proc %s %d %llu %d\n", name ? name : "?", version, flags, result);
    if (!result && found && *found) {
        /* Under one name the newer of two functions may be had. */
        if (name && !strcmp(name, "cuGetProcAddress") && version >= 12000)
            *found = stand_in("cuGetProcAddress_v2", *found);
        else if (name)
            *found = stand_in(name, *found);
    }
    return result;
}

int cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags)
{
    if (!real_proc)
        real_proc = (proc_t)finder()(RTLD_NEXT, "cuGetProcAddress");
    int result = real_proc ? real_proc(name, found, version, flags) : 3;
    say("proc %s %d %llu %d\n", name ? name : "?", version, flags, result);
    return result;
}

int cuGetExportTable(const void **table, const unsigned char *id)
{
    char text[33] = "";
    if (!real_table)
        real_table = (table_t)finder()(RTLD_NEXT, "cuGetExportTable");
    for (int at = 0; id && at < 16; at++)
        snprintf(text + 2 * at, 3, "%02x", id[at]);
    say("table %s\n", text);
    return real_table ? real_table(table, id) : 3;
}
