/* What an LLM engine tells Tidegate, and learns from it: the C functions of libtidegate.so.
 *
 * The library is preloaded, never linked. tg_open() finds its functions in the running process. A function that is
 * missing, because there is no library or an older one, does nothing and answers -ENOSYS. So an engine calls tg_open()
 * once, and runs the same with and without Tidegate.
 *
 * Functions answer 0 or a negative errno and are safe from any thread. Those marked "hot" only read and write memory;
 * the others may call the driver or wait.
 *
 * Words: a *block* is the engine's KV block, with a part in every layer. A *rank* is one process of a job that holds
 * blocks. Block ids are the same in every rank. *Lost*: a block's content is gone. *Withheld*: the engine gives it to no
 * request. *Back*: memory stands behind it again, and it may be used; its old content stays gone.
 *
 * What an engine does at each step, after the step's outputs are on the host and before it accepts them:
 *
 *   tg_poll(step, ...)         every rank that schedules gets the same answer at the same step
 *   for each lost block:       requests that hold it go back to waiting, with their prompt and the output accepted so
 *                              far; their output in flight is dropped; the block and their later blocks leave the
 *                              prefix cache; the allocator does not hand the block out. The block may be withheld
 *                              already, if it came back and was lost again
 *   for each block back:       the allocator may hand it out again
 *   tg_ack_withheld(seq)       only after this does Tidegate put memory behind the lost blocks again
 *
 * Versions: functions and flags are only added; TG_ABI_VERSION grows with each. A library of version N has everything
 * that is marked with a version up to N. */
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

/* What tg_role answers. */
#define TG_ROLE_UNKNOWN 0 /* no agent has said it */
#define TG_ROLE_ONLINE 1
#define TG_ROLE_OFFLINE 2
#define TG_ROLE_IGNORE 3 /* neither seen nor gated */

/* One layer's part (or one of K and V) of the blocks [first_block, first_block + blocks): block b has `block_bytes`
 * bytes at base + (b - first_block) * block_stride. All regions of a cache have the same blocks. Where all layers of a
 * block lie together the regions interleave: base differs by the offset in the block, block_stride is the whole. */
struct tg_kv_region {
    uint64_t base;
    uint64_t block_stride;
    uint64_t block_bytes;
    uint32_t first_block;
    uint32_t blocks;
};

/* What a training has done so far, for status, metrics and events: tg_trainer. */
struct tg_training {
    uint64_t step;            /* optimizer steps done */
    uint64_t steps;           /* of so many; 0: not known */
    uint64_t begun;           /* of those, done before this process began */
    uint64_t tokens;          /* trained on by this process */
    uint64_t units;           /* it ran so many layers of token windows, forward or backward */
    uint64_t units_redone;    /* and so many of them again, because memory was taken */
    uint64_t reclaims;        /* times that it found some taken */
    uint32_t layers;          /* 0: it runs no units */
    uint32_t resident_layers; /* whose frozen weights are on the device */
    double loss;              /* NaN: not known */
    const char *adapter;      /* where the finished adapter is; NULL: it is not finished */
    const char *served;       /* who answers with it; NULL: nobody */
};

/* What a trainer may run now: tg_lease. */
struct tg_leased {
    uint64_t until_ns;        /* CLOCK_MONOTONIC by which the units have to be over; 0: the gate is open, no lease is needed */
    uint64_t tokens;          /* of the window that fits the lease; 0: as the trainer likes */
    uint32_t units;           /* that may still begin under the lease; UINT32_MAX: any number */
    uint32_t resident_layers; /* frozen layers that may stay in memory; UINT32_MAX: the agent says nothing about them */
};

/* An iteration of an online engine that has ended, and what comes next: tg_beat. Times are of CLOCK_MONOTONIC. */
struct tg_iteration {
    uint64_t begin_ns;       /* before its first launch, also where the iteration before it still ran */
    uint64_t end_ns;         /* when its outputs were there; 0: now */
    uint64_t fingerprint;    /* a name of its shape, such as that of its graph; 0: the library names it by batch and prompt */
    uint64_t cached;         /* tokens of the requests that decoded in it, in the KV cache */
    uint64_t prompt;         /* prompt tokens that it read */
    uint64_t waiting_tokens; /* prompt tokens that wait to be read; 0: the next iteration reads none */
    uint64_t free_blocks;    /* of the KV cache, that hold nothing */
    uint64_t blocks;         /* of the KV cache in all; 0: not known */
    uint32_t batch;          /* requests that decoded in it; UINT32_MAX: not known */
    uint32_t waiting;        /* requests that wait for room or for their turn */
};

struct tg_api {
    /* The library's TG_ABI_VERSION; 0 without the library. */
    uint32_t (*abi_version)(void);

    /* Joins a job as rank `rank` of `world`; a name of NULL is TIDEGATE_JOB. Once per process, also in one that only
     * schedules. Waits for the job's shared memory. */
    int (*attach)(const char *job, uint32_t rank, uint32_t world);

    /* Memory that the calling thread allocates with cuMemAlloc between these is backed by handles of `handle_bytes` each
     * (a multiple of 2 MiB; 0: 2 MiB), so that it can be taken and given back. Allocations smaller than a handle are
     * not. Empty the framework's own cache of memory first. Scopes do not nest. */
    int (*kv_scope_begin)(uint64_t handle_bytes, uint32_t flags);
    int (*kv_scope_end)(void);

    /* Registers a KV cache that lies in memory of a KV scope; `*kv` is its number. Nothing that is not registered is
     * ever taken. Blocks below `protected_blocks` never are (block 0, where padding reads). -EINVAL: the regions make
     * no sense (standard error says how). Where an elastic cache is not registered, all that elastic scopes allocated and
     * no cache claims is backed before this returns; -ENOMEM: there is too little memory for that, and the memory must not
     * be used. */
    int (*kv_register)(const struct tg_kv_region *regions, size_t count, uint32_t protected_blocks, uint32_t flags,
                       uint32_t *kv);
    /* Nothing more is taken of the cache, and all of it is backed before this returns. -ENOMEM: there is too little memory
     * for that. Blocks that are lost then come back by tg_poll as before; an elastic cache must not be used any more. */
    int (*kv_unregister)(uint32_t kv);

    /* Hot. What was lost and what is back since the last step, lost first. The counts say how much room there is, then
     * how much was written. -ENOSPC: the counts say how much room it takes, and nothing is consumed. `*seq` is for
     * tg_ack_withheld. A scheduler counts its steps from 0 or 1 up; a step that is lower than the last one, or 0, begins the
     * next scheduler of the process, which is told of every block that is lost. -ENOTCONN before tg_attach. -EBUSY: another process of the job reads for this rank, which is an
     * engine more in the job; nothing of this one may be taken, for it would not hear of it. */
    int (*poll)(uint64_t step, uint32_t *lost, size_t *lost_count, uint32_t *back, size_t *back_count, uint64_t *seq);
    /* Hot. Every block that polls up to the one with this `seq` named as lost is withheld. */
    int (*ack_withheld)(uint64_t seq);

    /* Hot. Which blocks a request holds, in order, and how many tokens it would have to compute again; replaces what was
     * said of it before. Decides which blocks are taken: those that cost least. Of more than 131,072 the agent hears of the
     * first ones. */
    int (*publish_request)(uint64_t request, uint32_t tokens, const uint32_t *blocks, size_t count);
    int (*forget_request)(uint64_t request);

    /* Hot, inside what is mapped ahead. Up to `want` further blocks of an elastic cache; fewer when that runs out, and
     * then more is asked for. Ask again later. */
    int (*reserve)(uint32_t kv, uint32_t want, uint32_t *ids, uint32_t *granted);
    /* Hot. Gives blocks back; nothing on the GPU may use them any more, not even to write what nobody reads: memory
     * behind blocks that are not reserved comes and goes while the engine runs. */
    int (*release)(uint32_t kv, const uint32_t *ids, size_t count);
    /* Hot. How many of the reserved blocks hold content. */
    int (*usage)(uint32_t kv, uint32_t used_blocks);

    /* Hot. Online: how many requests are in flight. The first one stops offline work before its first kernel; when the
     * last one has ended offline goes on without a cooldown. Requests of which no work reaches the GPU for
     * gate.frozen_after (5 s) no longer count until this process works again. While the agent gives leases beside this
     * process, each further request withdraws the lease that stands. */
    int (*requests_in_flight)(uint32_t count);

    /* Version 2. What the agent takes this process for, by its rules or by TIDEGATE_ROLE; waits up to `wait_ms` for one.
     * For a process that has a context, or will never make one: it attaches where it has not yet. */
    int (*role)(uint32_t wait_ms);

    /* Version 2. A trainer's arena over a registered cache whose blocks are 2 MiB each, one behind the other in one
     * allocation, and all of it: tensors of any size at addresses in a row. One of several blocks lies over any free
     * ones, which are mapped a second time, side by side; `second_blocks` is how many such there can be at a time. A
     * block that is lost is lost at all its addresses. From tg_poll on the arena gives lost blocks to nobody until
     * they are back. -EINVAL: the cache is of another kind; -EALREADY: it has an arena. */
    int (*arena_open)(uint32_t kv, uint32_t second_blocks, uint32_t *arena);
    /* Hot for one block and less. `*at`: a tensor of `bytes`, with any content. -ENOMEM: too few blocks are free. */
    int (*arena_take)(uint32_t arena, uint64_t bytes, uint64_t *at);
    /* Hot for one block and less; else it waits for the context's work. What was lost of it is given to nobody yet. */
    int (*arena_give)(uint32_t arena, uint64_t at);
    /* Hot. The blocks that a tensor lies over, in its order. The count as in poll. -EINVAL: no tensor begins there. */
    int (*arena_blocks)(uint32_t arena, uint64_t at, uint32_t *ids, size_t *count);

    /* Version 2. Hot. So many more useful units of work were done, whatever the job counts: tokens, requests, samples.
     * Status and placement then judge it by these and not by its launches. */
    int (*progress)(uint64_t units);
    /* Version 2. What a training has done; replaces what was said before. `size` is that of the struct. With an adapter
     * or a server it waits until the agent is told, half a second at most: a process may end after that. */
    int (*trainer)(const struct tg_training *now, size_t size);

    /* Version 2. Requests have come that will need so many blocks more than are reserved now. What is not mapped of
     * them is asked for, as tg_reserve would ask when the engine comes to them; nothing is reserved. That nobody waits
     * yet is said, too: [slo] counts a wait for memory from tg_reserve on. Any thread may. */
    int (*expect)(uint32_t kv, uint32_t blocks);

    /* Version 3. Backs all that elastic scopes allocated and no registered cache claims. An engine that registers no cache
     * after such a scope calls it before it uses the memory. -ENOMEM: there is too little, and the memory must not be
     * used. */
    int (*kv_whole)(void);

    /* Version 4. A trainer beside a busy online engine. A *unit* is work that is run or not run, such as one layer of a
     * window of tokens. A *lease* lets units run between two steps of the engine. `device` is the CUDA ordinal.
     *
     *   tg_unit(device, ...)       before each unit: what it is
     *   tg_lease(device, ...)      waits until it may begin
     *   ... launches the unit, and waits until the GPU has run it
     *   tg_unit_done(device)
     *
     * -EINVAL: there is no such device. */

    /* Version 4. Hot. The unit that could run next: whether it is a backward unit, the tokens of its window, how many such
     * units follow one another without a pause, and what one takes alone in ns (0: not known). `most` 0: the trainer has no
     * unit, and gives back the lease that it has. */
    int (*unit)(uint32_t device, uint32_t backward, uint64_t tokens, uint32_t most, uint64_t unit_ns);
    /* Version 4. Waits until a unit may begin: within a lease, or while the gate is open. Answers at once in a process that
     * is not offline; without an agent it waits as long as a launch would. Waits `wait_ms` at most
     * (UINT32_MAX: without limit). -EAGAIN: no unit may begin. -EINTR: a signal handler ran that interrupts what waits.
     * `size` is that of the struct. */
    int (*lease)(uint32_t device, uint32_t wait_ms, struct tg_leased *lease, size_t size);
    /* Version 4. Hot. The unit is over: the GPU has run it. The lease ends with it if its units or its time are used up, if
     * the agent has withdrawn it, or if tg_unit said that no unit follows. */
    int (*unit_done)(uint32_t device);

    /* Version 5. Online: an iteration has ended on a device (or TG_EVERY_DEVICE), and its outputs are there. The agent then
     * knows how long a trainer may run before the next one. `size` is that of the struct. `done` NULL only asks whether
     * iterations are asked for, which an engine does before it gathers the figures: hot. The first one after the agent
     * asked opens a memory file, which stays open; each later one reads and writes memory and wakes the agent.
     * -ENOTCONN: nobody asks for iterations, because leases are off or no trainer uses the device. -EINVAL: no device, or
     * an iteration that ended before it began. */
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
