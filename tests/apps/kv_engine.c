/* An offline engine in small: paged KV, continuous batching, tokens that are a function of what the pages really hold.
 * Every accepted token is compared with what the tokens before it make it; one that differs ends the program. It does for
 * lost blocks what tidegate.h asks for, unless --ignore-lost.
 *
 * Prints a line at each event:
 *   allocated                the cache is allocated
 *   ready BASE BYTES         the cache stands and is registered
 *   lost N                   blocks lost at a step
 *   back N                   blocks back at a step
 *   tokens N                 accepted in all, every 64 (--say)
 *   end tokens N recomputed N
 *   calling NAME TID         a thread of its own is about to make that call, which waits for the GPU
 *   called NAME              the call returned
 *   second 0|1               a second cache is gone, or stands
 *   plain N                  the result of an allocation outside of the cache
 *   prepared NAME            the same thread will make it when it reads a line more
 * "call NAME" on standard input makes such a call, "prepare NAME" does all but the call, "second 0|1" such a cache, "plain N" an allocation of N MiB; any
 * other line, or the end, ends the program; so do --tokens. */
#include "../../interposer/include/tidegate.h"
#include "kv.h"
#include "vmm.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { LAYERS = 4, PER_BLOCK = 4, PART = 512 << 10, SLOT = 4096, MAX_BLOCKS = 512, MAX_REQUESTS = 16, MAX_LENGTH = 64 };

CUresult cuMemAllocHost_v2(void **, size_t);
CUresult cuMemFreeHost(void *);
CUresult cuModuleUnload(CUmodule);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuCtxGetCurrent(CUcontext *);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream);
CUresult cuMemcpyDtoHAsync_v2(void *, CUdeviceptr, size_t, CUstream);

struct request {
    uint64_t seed;
    uint64_t tokens[MAX_LENGTH];
    uint32_t accepted; /* tokens known, the prompt's first among them */
    uint32_t computed; /* of them, in the cache */
    uint32_t blocks[MAX_LENGTH / PER_BLOCK];
    uint32_t held;
    int ran; /* in this step */
};

static const char *usage = "kv_engine [--layout layers|blocks] [--handle MIB] [--blocks N] [--requests N] [--length N]\n"
                           "          [--tokens N] [--ns N] [--say N] [--seed N] [--ignore-lost] [--unread]";

static struct tg_api tg;
static struct kv_kernels kernels;
static CUstream stream;
static CUdeviceptr cache, table_at, out_at;
static uint64_t *table, *out;
static uint32_t blocks = 32, request_count = 4, length = 24, free_list[MAX_BLOCKS], free_count, kv_number;
static int layers_outermost, ignore_lost, unread;
static uint64_t total, recomputed, ns = 200000, next_seed = 1, say = 64;
static char withheld[MAX_BLOCKS];
static uint64_t handle;
static struct request requests[MAX_REQUESTS];
static atomic_int stop;

static CUdeviceptr part(uint32_t block, uint32_t layer)
{
    if (layers_outermost) return cache + ((uint64_t)layer * blocks + block) * PART;
    return cache + ((uint64_t)block * LAYERS + layer) * PART;
}

static CUdeviceptr word(const struct request *r, uint32_t position, uint32_t layer)
{
    return part(r->blocks[position / PER_BLOCK], layer) + (position % PER_BLOCK) * SLOT + 8 * layer;
}

/* What the cache holds for a token, and the token that a context makes. */
static uint64_t value_of(const struct request *r, uint32_t position)
{
    return kv_mix(kv_mix(r->seed, position), r->tokens[position]);
}

static uint64_t right_token(const struct request *r)
{
    uint64_t token = r->seed;
    for (uint32_t position = 0; position < r->accepted; position++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) token = kv_mix(token, kv_mix(value_of(r, position), layer));
    return token;
}

static void drop_blocks(struct request *r)
{
    for (uint32_t i = 0; i < r->held; i++)
        if (!withheld[r->blocks[i]]) free_list[free_count++] = r->blocks[i];
    r->held = r->computed = 0;
    tg.forget_request(r->seed);
}

static void begin(struct request *r)
{
    memset(r, 0, sizeof *r);
    r->seed = next_seed++;
    r->tokens[0] = kv_mix(r->seed, 0x70726f6d7074u);
    r->accepted = 1;
}

/* Queues what a request computes in this step; 0 if it has no blocks for it. */
static int schedule(struct request *r, uint32_t index, uint64_t **at)
{
    uint32_t want = (r->accepted + PER_BLOCK - 1) / PER_BLOCK;
    while (r->held < want) {
        if (!free_count) return 0;
        r->blocks[r->held++] = free_list[--free_count];
    }
    if (r->computed + 1 < r->accepted) recomputed += r->accepted - r->computed - 1;
    for (; r->computed < r->accepted; r->computed++) {
        uint64_t *begin = *at;
        for (uint32_t layer = 0; layer < LAYERS; layer++) *(*at)++ = word(r, r->computed, layer);
        CUdeviceptr there = table_at + (CUdeviceptr)(begin - table) * 8;
        MUST(cuMemcpyHtoDAsync_v2(there, begin, LAYERS * 8, stream));
        MUST(kv_store(&kernels, stream, there, LAYERS, value_of(r, r->computed), ns / 8));
    }
    uint64_t *begin = *at;
    for (uint32_t position = 0; position < r->accepted; position++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) *(*at)++ = word(r, position, layer);
    CUdeviceptr there = table_at + (CUdeviceptr)(begin - table) * 8;
    MUST(cuMemcpyHtoDAsync_v2(there, begin, (uint64_t)(*at - begin) * 8, stream));
    MUST(kv_token(&kernels, stream, there, (uint64_t)(*at - begin), r->seed, out_at + 8 * index, ns));
    tg.publish_request(r->seed, r->accepted, r->blocks, r->held);
    return r->ran = 1;
}

static void poll_lost(uint64_t step)
{
    static uint32_t lost[MAX_BLOCKS], back[MAX_BLOCKS];
    size_t lost_count = MAX_BLOCKS, back_count = MAX_BLOCKS;
    uint64_t seq = 0;
    int answer = tg.poll(step, lost, &lost_count, back, &back_count, &seq);
    if (answer == -ENOSYS) return;
    CHECK(answer == 0);
    if (ignore_lost) {
        tg.ack_withheld(seq);
        return;
    }
    for (size_t i = 0; i < lost_count; i++) {
        CHECK(lost[i] > 0 && lost[i] < blocks);
        withheld[lost[i]] = 1;
        for (uint32_t f = 0; f < free_count; f++)
            if (free_list[f] == lost[i]) free_list[f--] = free_list[--free_count];
    }
    for (uint32_t i = 0; i < request_count && lost_count; i++)
        for (uint32_t b = 0; b < requests[i].held; b++)
            if (withheld[requests[i].blocks[b]]) {
                drop_blocks(&requests[i]);
                requests[i].ran = 0;
            }
    for (size_t i = 0; i < back_count; i++) {
        CHECK(withheld[back[i]]);
        withheld[back[i]] = 0;
        free_list[free_count++] = back[i];
    }
    if (lost_count) printf("lost %zu\n", lost_count);
    if (back_count) printf("back %zu\n", back_count);
    if (lost_count || back_count) fflush(stdout);
    CHECK(tg.ack_withheld(seq) == 0);
}

static void accept(struct request *r, uint64_t token)
{
    uint64_t right = right_token(r);
    if (token != right) {
        fprintf(stderr, "request %llu: token %u is %llx, not %llx\n", (unsigned long long)r->seed, r->accepted,
                (unsigned long long)token, (unsigned long long)right);
        exit(3);
    }
    r->tokens[r->accepted++] = token;
    if (++total % say == 0) {
        printf("tokens %llu\n", (unsigned long long)total);
        fflush(stdout);
    }
    if (r->accepted == length) {
        drop_blocks(r);
        begin(r);
    }
}

/* Oldest first: who has waited longest gets the free blocks. */
static void by_age(uint32_t *order)
{
    for (uint32_t i = 0; i < request_count; i++) {
        uint32_t at = i;
        for (; at > 0 && requests[order[at - 1]].seed > requests[i].seed; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

/* When nobody can go on, the youngest gives up what it holds; whether it held anything. */
static int preempt_youngest(void)
{
    struct request *youngest = 0;
    for (uint32_t i = 0; i < request_count; i++)
        if (requests[i].held && (!youngest || requests[i].seed > youngest->seed)) youngest = &requests[i];
    if (youngest) drop_blocks(youngest);
    return youngest != 0;
}

/* A call that waits for the GPU, which spins for a while. */
static void make_call(const char *name, CUcontext engine, int waits)
{
    const uint64_t spin_ns = 600000000;
    CUdeviceptr plain;
    CUmodule module, fresh;
    CUstream other;
    CUevent event;
    CUcontext context;
    CUdevice device;
    void *host;
    uint64_t value;
    int makes_context = !strcmp(name, "context");
    if (makes_context) {
        MUST(cuDeviceGet(&device, 0));
        MUST(cuCtxCreate_v2(&context, 0, device));
    }
    CUfunction spin = tg_kernel("tg_spin_ns");
    MUST(cuModuleLoadData(&module, TG_PTX));
    MUST(cuMemAlloc_v2(&plain, 4 * MIB));
    MUST(cuMemAllocHost_v2(&host, 4096));
    MUST(cuStreamCreate(&other, 0));
    tg_spin(spin, other, spin_ns, 1);
    MUST(cuEventCreate(&event, 0));
    if (!strcmp(name, "event")) MUST(cuEventRecord(event, other));
    if (!strcmp(name, "launch"))
        for (int i = 1; i < 1024; i++) tg_spin(spin, other, 1000, 1);
    if (waits) {
        char line[64];
        printf("prepared %s\n", name);
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return;
    }
    printf("calling %s %d\n", name, (int)gettid());
    fflush(stdout);
    if (!strcmp(name, "copy")) MUST(cuMemcpyDtoH_v2(&value, plain, 8));
    else if (!strcmp(name, "free")) MUST(cuMemFree_v2(plain));
    else if (!strcmp(name, "host_free")) MUST(cuMemFreeHost(host));
    else if (!strcmp(name, "unload")) MUST(cuModuleUnload(module));
    else if (!strcmp(name, "launch")) tg_spin(spin, other, 1000, 1);
    else if (!strcmp(name, "load")) MUST(cuModuleLoadData(&fresh, TG_PTX));
    else if (!strcmp(name, "stream")) MUST(cuStreamDestroy_v2(other));
    else if (!strcmp(name, "event")) MUST(cuEventDestroy_v2(event));
    else if (!strcmp(name, "sync")) MUST(cuCtxSynchronize());
    else if (makes_context) MUST(cuCtxDestroy_v2(context));
    else exit(2);
    printf("called %s\n", name);
    fflush(stdout);
    MUST(cuCtxSetCurrent(engine));
}

/* A second cache beside the one that is used, and its end. */
static void second_cache(int wanted)
{
    static CUdeviceptr second;
    static uint32_t number;
    if (wanted) {
        MUST(tg.kv_scope_begin(0, 0));
        MUST(cuMemAlloc_v2(&second, 4 * MIB));
        MUST(tg.kv_scope_end());
        struct tg_kv_region region = {second, 2 * MIB, 2 * MIB, 0, 2};
        MUST(tg.kv_register(&region, 1, 0, 0, &number));
    } else {
        MUST(tg.kv_unregister(number));
        MUST(cuMemFree_v2(second));
    }
    printf("second %d\n", wanted);
    fflush(stdout);
}

static void *obey(void *context)
{
    char line[64], name[32];
    MUST(cuCtxSetCurrent(context));
    for (;;) {
        int wanted;
        if (!fgets(line, sizeof line, stdin)) break;
        if (sscanf(line, "call %31s", name) == 1) make_call(name, context, 0);
        else if (sscanf(line, "prepare %31s", name) == 1) make_call(name, context, 1);
        else if (sscanf(line, "second %d", &wanted) == 1) second_cache(wanted);
        else if (sscanf(line, "plain %d", &wanted) == 1) {
            CUdeviceptr plain;
            printf("plain %d\n", (int)cuMemAlloc_v2(&plain, (size_t)wanted * MIB));
            fflush(stdout);
        }
        else break;
    }
    stop = 1;
    return 0;
}

static void make_cache(void)
{
    struct tg_kv_region regions[LAYERS];
    MUST(tg.kv_scope_begin(handle, 0));
    MUST(cuMemAlloc_v2(&cache, (uint64_t)blocks * LAYERS * PART));
    MUST(tg.kv_scope_end());
    printf("allocated\n");
    fflush(stdout);
    MUST(cuMemsetD8_v2(cache, 0, (uint64_t)blocks * LAYERS * PART));
    MUST(cuCtxSynchronize());
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint64_t stride = layers_outermost ? PART : LAYERS * PART;
        regions[layer] = (struct tg_kv_region){part(0, layer), stride, PART, 0, blocks};
    }
    MUST(tg.kv_register(regions, LAYERS, 1, 0, &kv_number));
}

int main(int argc, char **argv)
{
    uint64_t limit = ~0ull, step = 0;
    pthread_t waiter;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--ignore-lost")) {
            ignore_lost = 1;
            continue;
        }
        if (!strcmp(argv[i], "--unread")) {
            unread = 1;
            continue;
        }
        if (!strcmp(argv[i], "--layout")) layers_outermost = !strcmp(value, "layers");
        else if (!strcmp(argv[i], "--handle")) handle = strtoull(value, 0, 10) * MIB;
        else if (!strcmp(argv[i], "--blocks")) blocks = (uint32_t)atoi(value);
        else if (!strcmp(argv[i], "--requests")) request_count = (uint32_t)atoi(value);
        else if (!strcmp(argv[i], "--length")) length = (uint32_t)atoi(value);
        else if (!strcmp(argv[i], "--tokens")) limit = strtoull(value, 0, 10);
        else if (!strcmp(argv[i], "--say")) say = strtoull(value, 0, 10);
        else if (!strcmp(argv[i], "--seed")) next_seed += strtoull(value, 0, 10);
        else if (!strcmp(argv[i], "--ns")) ns = strtoull(value, 0, 10);
        else {
            fprintf(stderr, "usage: %s\n", usage);
            return 2;
        }
        i++;
    }
    CHECK(say && blocks <= MAX_BLOCKS && request_count <= MAX_REQUESTS && length <= MAX_LENGTH);
    CHECK(tg_open(&tg) == TG_ABI_VERSION);
    MUST(tg.attach(0, 0, 1));
    tg_context(0);
    kernels = kv_kernels();
    MUST(cuStreamCreate(&stream, 1));
    size_t room = (size_t)request_count * LAYERS * (2 * MAX_LENGTH) * 8;
    MUST(cuMemAllocHost_v2((void **)&table, room));
    MUST(cuMemAllocHost_v2((void **)&out, MAX_REQUESTS * 8));
    MUST(cuMemAlloc_v2(&table_at, room));
    MUST(cuMemAlloc_v2(&out_at, MAX_REQUESTS * 8));
    make_cache();
    printf("ready %llu %llu\n", (unsigned long long)cache, (unsigned long long)blocks * LAYERS * PART);
    fflush(stdout);
    for (uint32_t b = 1; b < blocks; b++) free_list[free_count++] = b;
    for (uint32_t i = 0; i < request_count; i++) begin(&requests[i]);
    CUcontext context;
    MUST(cuCtxGetCurrent(&context));
    MUST(pthread_create(&waiter, 0, obey, context));
    while (!stop && total < limit) {
        uint64_t *at = table;
        uint32_t order[MAX_REQUESTS];
        int any = 0;
        by_age(order);
        for (uint32_t i = 0; i < request_count; i++) {
            requests[order[i]].ran = 0;
            any |= schedule(&requests[order[i]], order[i], &at);
        }
        MUST(cuMemcpyDtoHAsync_v2(out, out_at, MAX_REQUESTS * 8, stream));
        MUST(cuStreamSynchronize(stream));
        if (!unread) poll_lost(step++);
        for (uint32_t i = 0; i < request_count; i++)
            if (requests[i].ran) accept(&requests[i], out[i]);
        if (!any && !preempt_youngest()) usleep(1000);
    }
    printf("end tokens %llu recomputed %llu\n", (unsigned long long)total, (unsigned long long)recomputed);
    return 0;
}
