/* The C functions of libtidegate.so, by which an LLM engine or a trainer cooperates with Tidegate.
 *
 * The library is preloaded, never linked. tg_open() finds its functions in the running process. If a function is
 * missing, because there is no library or an older one, a stub takes its place, which does nothing and returns -ENOSYS.
 * So an engine calls tg_open() once, and runs the same with and without Tidegate.
 *
 * Functions return 0 or a negative errno, and are safe from any thread. Functions marked "hot" only read and write
 * memory; the others may call the driver or wait.
 *
 * Terms: a *block* is the engine's KV block, with a part in every layer. A *rank* is one process of a job that holds
 * blocks. Block ids are the same in every rank. A block is *lost* when its content is gone, *withheld* while the engine
 * gives it to no request, and *back* when it has memory again and may be used. Its old content stays gone.
 *
 * An engine does this at each step, after the step's outputs are on the host and before it accepts them:
 *
 *   tg_poll(step, ...)         every rank that schedules gets the same answer at the same step
 *   for each lost block:       requests that hold it return to waiting, with their prompt and the output accepted so
 *                              far; their output in flight is dropped; the block and their later blocks leave the
 *                              prefix cache; the allocator withholds the block. It may be withheld already, if it came
 *                              back and was lost again
 *   for each block back:       the allocator may give it to requests again
 *   tg_ack_withheld(seq)       only after this call Tidegate gives the lost blocks memory again
 *
 * Versions: functions and flags are only added, and TG_ABI_VERSION grows with each addition. A library of version N has
 * everything that is marked with a version up to N. */
#ifndef TIDEGATE_H
#define TIDEGATE_H

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TG_ABI_VERSION 5

/* For tg_kv_scope_begin and tg_kv_register. */
#define TG_KV_ELASTIC 1u /* online: begins without memory, grows with tg_reserve and shrinks with tg_release */

/* For tg_beat. */
#define TG_EVERY_DEVICE UINT32_MAX /* each device that the process uses */

/* Results of tg_role. */
#define TG_ROLE_UNKNOWN 0 /* no agent has answered */
#define TG_ROLE_ONLINE 1
#define TG_ROLE_OFFLINE 2
#define TG_ROLE_IGNORE 3 /* neither gated nor counted as online */

/* One layer's part (or one of K and V) of the blocks [first_block, first_block + blocks). Block b has `block_bytes`
 * bytes at base + (b - first_block) * block_stride. All regions of a cache have the same blocks. If all layers of a
 * block lie together, the regions interleave: `base` differs by the offset in the block, and `block_stride` is the size
 * of a whole block. Addresses and sizes are in bytes. */
struct tg_kv_region {
    uint64_t base;
    uint64_t block_stride;
    uint64_t block_bytes;
    uint32_t first_block;
    uint32_t blocks;
};

/* The progress of a training, for status, metrics and events: tg_trainer. */
struct tg_training {
    uint64_t step;            /* optimizer steps done */
    uint64_t steps;           /* optimizer steps of the whole training; 0: unknown */
    uint64_t begun;           /* optimizer steps done before this process began */
    uint64_t tokens;          /* tokens that this process trained on */
    uint64_t units;           /* units (layers of token windows, forward or backward) that this process ran */
    uint64_t units_redone;    /* units that it ran again because memory was taken */
    uint64_t reclaims;        /* how often memory was taken from it */
    uint32_t layers;          /* layers that are trained in units; 0: it runs no units */
    uint32_t resident_layers; /* of these, layers whose frozen weights are on the device */
    double loss;              /* NaN: unknown */
    const char *adapter;      /* path of the finished adapter; NULL: it is not finished */
    const char *served;       /* the server that serves it; NULL: none */
};

/* What a trainer may run now: tg_lease. */
struct tg_leased {
    uint64_t until_ns;        /* when the units must be over (CLOCK_MONOTONIC); 0: the gate is open, no lease needed */
    uint64_t tokens;          /* tokens of a window that fits into the lease; 0: the trainer chooses */
    uint32_t units;           /* units that may still begin under the lease; UINT32_MAX: any number */
    uint32_t resident_layers; /* frozen layers that may stay in memory; UINT32_MAX: the agent sets no limit */
};

/* An iteration of an online engine that has ended, and what comes next: tg_beat. Times are on CLOCK_MONOTONIC. */
struct tg_iteration {
    uint64_t begin_ns;       /* before its first launch, even if the previous iteration was still running */
    uint64_t end_ns;         /* when its outputs were on the host; 0: now */
    uint64_t fingerprint;    /* number of its shape, such as that of its graph; 0: the library uses batch and prompt */
    uint64_t cached;         /* tokens in the KV cache of the requests that decoded */
    uint64_t prompt;         /* prompt tokens that it read */
    uint64_t waiting_tokens; /* prompt tokens that wait to be read; 0: the next iteration reads none */
    uint64_t free_blocks;    /* blocks of the KV cache that hold nothing */
    uint64_t blocks;         /* all blocks of the KV cache; 0: unknown */
    uint32_t batch;          /* requests that decoded; UINT32_MAX: unknown */
    uint32_t waiting;        /* requests that wait to be scheduled */
};

struct tg_api {
    /* The library's TG_ABI_VERSION; 0 without the library. */
    uint32_t (*abi_version)(void);

    /* Joins a job as rank `rank` of `world`. A name of NULL means TIDEGATE_JOB. Call it once per process, also in a
     * process that only schedules. It waits for the job's shared memory. */
    int (*attach)(const char *job, uint32_t rank, uint32_t world);

    /* Memory that the calling thread allocates with cuMemAlloc between these two calls is backed by handles of
     * `handle_bytes` each (a multiple of 2 MiB; 0: 2 MiB), so that it can be taken and given back. Allocations smaller
     * than a handle are not. First empty the framework's own memory cache. Scopes do not nest. */
    int (*kv_scope_begin)(uint64_t handle_bytes, uint32_t flags);
    int (*kv_scope_end)(void);

    /* Registers a KV cache that lies in memory of a KV scope; `*kv` is its number. Tidegate takes only registered
     * memory, and never blocks below `protected_blocks` (such as block 0, which padding reads). -EINVAL: the regions
     * are invalid; standard error says why. If an elastic cache cannot be registered, everything that elastic scopes
     * allocated and no cache claims gets memory before this function returns. -ENOMEM: there is too little memory for
     * that, and the allocation must not be used. */
    int (*kv_register)(const struct tg_kv_region *regions, size_t count, uint32_t protected_blocks, uint32_t flags,
                       uint32_t *kv);
    /* Ends the registration. Nothing more is taken from the cache, and all of it has memory when this function returns.
     * -ENOMEM: there is too little memory for that. Lost blocks then come back by tg_poll as before; an elastic cache
     * must not be used any more. */
    int (*kv_unregister)(uint32_t kv);

    /* Hot. Returns which blocks were lost and which are back since the last step, lost ones first. On entry the counts
     * give the size of the arrays, on return the number of ids written. -ENOSPC: the counts give the size that is
     * needed, and nothing was consumed. Pass `*seq` to tg_ack_withheld. A scheduler counts its steps upwards from 0 or
     * 1. A step that is 0, or lower than the last one, begins the next scheduler of the process, which gets every block
     * that is lost. -ENOTCONN: tg_attach was not called. -EBUSY: another process of the job reads for this rank,
     * because a second engine is in the job. Then nothing of this engine may be taken, because it would not learn of
     * it. */
    int (*poll)(uint64_t step, uint32_t *lost, size_t *lost_count, uint32_t *back, size_t *back_count, uint64_t *seq);
    /* Hot. Reports that the engine withholds every block that polls up to the one with this `seq` returned as lost. */
    int (*ack_withheld)(uint64_t seq);

    /* Hot. Reports which blocks a request holds, in order, and how many tokens it would have to compute again. A report
     * replaces the previous one for the same request. The agent takes the blocks that cost least. The agent
     * learns of the first 131,072 blocks of a request only. */
    int (*publish_request)(uint64_t request, uint32_t tokens, const uint32_t *blocks, size_t count);
    /* Hot. The request holds no blocks any more. */
    int (*forget_request)(uint64_t request);

    /* Hot within the headroom. Returns up to `want` further blocks of an elastic cache. If the headroom is used up, it
     * returns fewer and asks the agent for more; call it again later. */
    int (*reserve)(uint32_t kv, uint32_t want, uint32_t *ids, uint32_t *granted);
    /* Hot. Gives blocks back. Nothing on the GPU may use them any more, not even to write what nobody reads: blocks
     * that are not reserved lose and get memory while the engine runs. */
    int (*release)(uint32_t kv, const uint32_t *ids, size_t count);
    /* Hot. Reports how many of the reserved blocks hold content. */
    int (*usage)(uint32_t kv, uint32_t used_blocks);

    /* Hot. Online: reports how many requests are in flight. The first request stops offline before the engine's first
     * kernel. When the last one has ended, offline continues without a cooldown. If no work of the requests reaches the
     * GPU for gate.frozen_after (5 s), they do not count until this process works again. While the agent gives leases
     * beside this process, each further request withdraws the current lease. */
    int (*requests_in_flight)(uint32_t count);

    /* Version 2. Returns the role of this process, by the agent's rules or by TIDEGATE_ROLE. It waits up to `wait_ms`
     * for an agent. Call it only in a process that has a CUDA context, or that will never make one: the process
     * attaches if it has not attached yet. */
    int (*role)(uint32_t wait_ms);

    /* Version 2. Opens a trainer's arena over a registered cache. The cache must be a whole allocation, with
     * consecutive blocks of 2 MiB each. The arena gives tensors of any size at consecutive addresses. A tensor of
     * several blocks uses any free blocks, which are mapped a second time, side by side; `second_blocks` is the largest
     * number of blocks that can be mapped so at a time. A block that is lost is lost at all of its addresses. After
     * tg_poll has returned lost blocks, the arena gives them to no tensor until they are back. -EINVAL: the cache is
     * not of this kind; -EALREADY: it has an arena. */
    int (*arena_open)(uint32_t kv, uint32_t second_blocks, uint32_t *arena);
    /* Hot for at most one block. Allocates a tensor of `bytes` at `*at`, with any content. -ENOMEM: too few blocks are
     * free. */
    int (*arena_take)(uint32_t arena, uint64_t bytes, uint64_t *at);
    /* Hot for at most one block; otherwise it waits for the context's work. Frees a tensor. Its lost blocks go to no
     * other tensor until they are back. */
    int (*arena_give)(uint32_t arena, uint64_t at);
    /* Hot. Returns the blocks of a tensor, in its order. `*count` is as in tg_poll. -EINVAL: no tensor begins there. */
    int (*arena_blocks)(uint32_t arena, uint64_t at, uint32_t *ids, size_t *count);

    /* Version 2. Hot. Reports that the job did this many more useful units of work, of a kind that it chooses: tokens,
     * requests, samples. Status and placement then judge the job by these instead of by its launches. */
    int (*progress)(uint64_t units);
    /* Version 2. Reports the progress of a training; replaces the previous report. `size` is the size of the struct. If
     * the report names an adapter or a server, the call waits until the agent has received it, at most half a second,
     * so that the process may end afterwards. */
    int (*trainer)(const struct tg_training *now, size_t size);

    /* Version 2, from any thread. Reports that requests have arrived which will need this many blocks more than are
     * reserved now. The library asks the agent for what is not mapped of them, as tg_reserve would later. Nothing is
     * reserved. The agent also learns that nothing waits yet: [slo] counts a wait for memory only from tg_reserve on.
     */
    int (*expect)(uint32_t kv, uint32_t blocks);

    /* Version 3. Gives memory to everything that elastic scopes allocated and no registered cache claims. An engine
     * that registers no cache after such a scope calls it before it uses the memory. -ENOMEM: there is too little
     * memory, and the allocation must not be used. */
    int (*kv_whole)(void);

    /* Version 4. A trainer beside a busy online engine. A *unit* is work that runs as a whole, such as one layer of a
     * window of tokens. A *lease* lets units run between two steps of the engine. `device` is the CUDA ordinal.
     *
     *   tg_unit(device, ...)       before each unit: describes it
     *   tg_lease(device, ...)      waits until the unit may begin
     *   ... launch the unit, and wait until the GPU has run it
     *   tg_unit_done(device)
     *
     * -EINVAL: there is no such device. */

    /* Version 4. Hot. Announces the unit that could run next: whether it is a backward unit, the tokens of its window,
     * how many such units could follow one another without a pause, and how long one takes alone in ns (0: unknown).
     * With `most` 0 the trainer has no unit, and gives its lease back. */
    int (*unit)(uint32_t device, uint32_t backward, uint64_t tokens, uint32_t most, uint64_t unit_ns);
    /* Version 4. Waits until a unit may begin: within a lease, or while the gate is open. It waits at most `wait_ms`
     * (UINT32_MAX: without limit), and without an agent no longer than a launch would. It returns at once in a process
     * that is not offline. -EAGAIN: no unit may begin. -EINTR: a signal handler ran that interrupts system calls.
     * `size` is the size of the struct. */
    int (*lease)(uint32_t device, uint32_t wait_ms, struct tg_leased *lease, size_t size);
    /* Version 4. Hot. Reports that the GPU has run the unit. The lease ends with it if its units or its time are used
     * up, if the agent has withdrawn it, or if tg_unit announced that no unit follows. */
    int (*unit_done)(uint32_t device);

    /* Version 5. Online: reports that an iteration has ended on a device (or TG_EVERY_DEVICE), and that its outputs are
     * on the host. The agent then knows how long a trainer may run before the next iteration. `size` is the size of the
     * struct. With `done` NULL the call only asks whether the agent wants iterations; this is hot, and an engine does
     * it before it gathers the figures. The first report after the agent asked opens a memory file, which stays open.
     * Each later one reads and writes memory and wakes the agent. -ENOTCONN: the agent does not want iterations,
     * because leases are off or no trainer uses the device. -EINVAL: there is no such device, or the iteration ended
     * before it began. */
    int (*beat)(uint32_t device, const struct tg_iteration *done, size_t size);
};

static inline uint32_t tg_no_version(void) { return 0; }
static inline int tg_no_attach(const char *job, uint32_t rank, uint32_t world)
{
    (void)job, (void)rank, (void)world;
    return -ENOSYS;
}
static inline int tg_no_scope_begin(uint64_t handle_bytes, uint32_t flags)
{
    (void)handle_bytes, (void)flags;
    return -ENOSYS;
}
static inline int tg_no_scope_end(void) { return -ENOSYS; }
static inline int tg_no_register(const struct tg_kv_region *regions, size_t count, uint32_t protected_blocks,
                                 uint32_t flags, uint32_t *kv)
{
    (void)regions, (void)count, (void)protected_blocks, (void)flags, (void)kv;
    return -ENOSYS;
}
static inline int tg_no_poll(uint64_t step, uint32_t *lost, size_t *lost_count, uint32_t *back, size_t *back_count,
                             uint64_t *seq)
{
    (void)step, (void)lost, (void)lost_count, (void)back, (void)back_count, (void)seq;
    return -ENOSYS;
}
static inline int tg_no_number(uint64_t number)
{
    (void)number;
    return -ENOSYS;
}
static inline int tg_no_word(uint32_t word)
{
    (void)word;
    return -ENOSYS;
}
static inline int tg_no_arena_open(uint32_t kv, uint32_t second_blocks, uint32_t *arena)
{
    (void)kv, (void)second_blocks, (void)arena;
    return -ENOSYS;
}
static inline int tg_no_arena_take(uint32_t arena, uint64_t bytes, uint64_t *at)
{
    (void)arena, (void)bytes, (void)at;
    return -ENOSYS;
}
static inline int tg_no_arena_give(uint32_t arena, uint64_t at)
{
    (void)arena, (void)at;
    return -ENOSYS;
}
static inline int tg_no_arena_blocks(uint32_t arena, uint64_t at, uint32_t *ids, size_t *count)
{
    (void)arena, (void)at, (void)ids, (void)count;
    return -ENOSYS;
}
static inline int tg_no_trainer(const struct tg_training *now, size_t size)
{
    (void)now, (void)size;
    return -ENOSYS;
}
static inline int tg_no_unit(uint32_t device, uint32_t backward, uint64_t tokens, uint32_t most, uint64_t unit_ns)
{
    (void)device, (void)backward, (void)tokens, (void)most, (void)unit_ns;
    return -ENOSYS;
}
static inline int tg_no_lease(uint32_t device, uint32_t wait_ms, struct tg_leased *lease, size_t size)
{
    (void)device, (void)wait_ms, (void)lease, (void)size;
    return -ENOSYS;
}
static inline int tg_no_beat(uint32_t device, const struct tg_iteration *done, size_t size)
{
    (void)device, (void)done, (void)size;
    return -ENOSYS;
}
static inline int tg_no_publish(uint64_t request, uint32_t tokens, const uint32_t *blocks, size_t count)
{
    (void)request, (void)tokens, (void)blocks, (void)count;
    return -ENOSYS;
}
static inline int tg_no_reserve(uint32_t kv, uint32_t want, uint32_t *ids, uint32_t *granted)
{
    (void)kv, (void)want, (void)ids, (void)granted;
    return -ENOSYS;
}
static inline int tg_no_release(uint32_t kv, const uint32_t *ids, size_t count)
{
    (void)kv, (void)ids, (void)count;
    return -ENOSYS;
}
static inline int tg_no_usage(uint32_t kv, uint32_t used_blocks)
{
    (void)kv, (void)used_blocks;
    return -ENOSYS;
}

/* Finds the library's functions; its TG_ABI_VERSION, 0 if it is not preloaded. */
static inline uint32_t tg_open(struct tg_api *tg)
{
    void *found;
#define TG_FIND(field, name, otherwise)                                                                                \
    found = dlsym(RTLD_DEFAULT, name);                                                                                 \
    *(void **)&tg->field = found;                                                                                      \
    if (!found) tg->field = otherwise
    TG_FIND(abi_version, "tg_abi_version", tg_no_version);
    TG_FIND(attach, "tg_attach", tg_no_attach);
    TG_FIND(kv_scope_begin, "tg_kv_scope_begin", tg_no_scope_begin);
    TG_FIND(kv_scope_end, "tg_kv_scope_end", tg_no_scope_end);
    TG_FIND(kv_register, "tg_kv_register", tg_no_register);
    TG_FIND(kv_unregister, "tg_kv_unregister", tg_no_word);
    TG_FIND(poll, "tg_poll", tg_no_poll);
    TG_FIND(ack_withheld, "tg_ack_withheld", tg_no_number);
    TG_FIND(publish_request, "tg_publish_request", tg_no_publish);
    TG_FIND(forget_request, "tg_forget_request", tg_no_number);
    TG_FIND(reserve, "tg_reserve", tg_no_reserve);
    TG_FIND(release, "tg_release", tg_no_release);
    TG_FIND(usage, "tg_usage", tg_no_usage);
    TG_FIND(requests_in_flight, "tg_requests_in_flight", tg_no_word);
    TG_FIND(role, "tg_role", tg_no_word);
    TG_FIND(arena_open, "tg_arena_open", tg_no_arena_open);
    TG_FIND(arena_take, "tg_arena_take", tg_no_arena_take);
    TG_FIND(arena_give, "tg_arena_give", tg_no_arena_give);
    TG_FIND(arena_blocks, "tg_arena_blocks", tg_no_arena_blocks);
    TG_FIND(progress, "tg_progress", tg_no_number);
    TG_FIND(trainer, "tg_trainer", tg_no_trainer);
    TG_FIND(expect, "tg_expect", tg_no_usage);
    TG_FIND(kv_whole, "tg_kv_whole", tg_no_scope_end);
    TG_FIND(unit, "tg_unit", tg_no_unit);
    TG_FIND(lease, "tg_lease", tg_no_lease);
    TG_FIND(unit_done, "tg_unit_done", tg_no_word);
    TG_FIND(beat, "tg_beat", tg_no_beat);
#undef TG_FIND
    return tg->abi_version();
}

#ifdef __cplusplus
}
#endif
#endif
