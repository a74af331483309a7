/* What the two LLM-shaped programs share: what an iteration costs, and how it reaches the GPU.
 *
 * An engine's iteration is many kernels; here it is a few that spin. A prefill is a handful of plain launches, because
 * its shape differs each time; a decode is one graph launch, because engines capture a graph per batch size. A spin
 * kernel's duration is baked into its graph, as a batch size is, so there is one graph per DECODE_STEP of duration.
 *
 * Every kernel carries the tokens it is worth as its tag: who reads the device's history can count finished tokens
 * without asking the program. */
#ifndef TG_LLM_H
#define TG_LLM_H
#include "tg.h"
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>

enum { PREFILL_KERNELS = 8, DECODE_KERNELS = 4, DECODE_GRAPHS = 512 };
static const uint64_t DECODE_STEP = 250000;

/* Milliseconds, with T new and C cached tokens, b requests and K cached tokens of them all:
 * prefill = p[0] + p[1] T + p[2] ((T+C)^2 - C^2), decode = d[0] + d[1] b + d[2] K. */
struct llm_cost { double p[3], d[3]; };

struct llm_gpu {
    CUstream stream;
    CUfunction spin;
    CUgraphExec decode[DECODE_GRAPHS];
    uint64_t decode_tag; /* of each kernel of a decode */
};

static volatile sig_atomic_t llm_stop;
static void llm_on_term(int signal) { (void)signal; llm_stop = 1; }

static inline void llm_usage(const char *usage)
{
    fprintf(stderr, "usage: %s\n", usage);
    exit(2);
}

/* Numbers with commas between them; exactly `count`. */
static inline void llm_numbers(const char *text, double *into, int count, const char *usage)
{
    for (int i = 0; i < count; i++) {
        char *end;
        into[i] = strtod(text, &end);
        if (end == text || *end != (i + 1 < count ? ',' : 0)) llm_usage(usage);
        text = end + 1;
    }
}

static inline void llm_cost_of(const char *text, struct llm_cost *cost, const char *usage)
{
    double all[6];
    llm_numbers(text, all, 6, usage);
    memcpy(cost->p, all, sizeof cost->p);
    memcpy(cost->d, all + 3, sizeof cost->d);
}

static inline uint64_t llm_prefill_ns(const struct llm_cost *cost, double fresh, double cached)
{
    return (uint64_t)(1e6 * (cost->p[1] * fresh + cost->p[2] * fresh * (fresh + 2 * cached)));
}

static inline uint64_t llm_decode_ns(const struct llm_cost *cost, double batch, double context)
{
    return (uint64_t)(1e6 * (cost->d[0] + cost->d[1] * batch + cost->d[2] * context));
}

/* Starts the driver and the signal handling; `decode_tokens` are what a whole decode is worth. */
static inline void llm_open(struct llm_gpu *gpu, int ordinal, uint64_t decode_tokens)
{
    struct sigaction action = {.sa_handler = llm_on_term};
    sigaction(SIGTERM, &action, 0);
    sigaction(SIGINT, &action, 0);
    prctl(PR_SET_TIMERSLACK, 1000); /* decode gaps are a fraction of a millisecond */
    memset(gpu, 0, sizeof *gpu);
    tg_context(ordinal);
    gpu->spin = tg_kernel("tg_spin_ns");
    gpu->decode_tag = decode_tokens / DECODE_KERNELS;
    MUST(cuStreamCreate(&gpu->stream, 1));
}

/* The graph of a decode that takes about `ns`. */
static inline CUgraphExec llm_decode_graph(struct llm_gpu *gpu, uint64_t ns)
{
    uint64_t steps = (ns + DECODE_STEP / 2) / DECODE_STEP;
    if (steps < 1) steps = 1;
    if (steps >= DECODE_GRAPHS) steps = DECODE_GRAPHS - 1;
    if (!gpu->decode[steps]) {
        CUgraph graph;
        MUST(cuStreamBeginCapture_v2(gpu->stream, 1));
        for (int i = 0; i < DECODE_KERNELS; i++)
            tg_spin(gpu->spin, gpu->stream, steps * DECODE_STEP / DECODE_KERNELS, gpu->decode_tag);
        MUST(cuStreamEndCapture(gpu->stream, &graph));
        MUST(cuGraphInstantiateWithFlags(&gpu->decode[steps], graph, 0));
        MUST(cuGraphDestroy(graph));
    }
    return gpu->decode[steps];
}

static inline void llm_decode(struct llm_gpu *gpu, uint64_t ns)
{
    MUST(cuGraphLaunch(llm_decode_graph(gpu, ns), gpu->stream));
}

static inline void llm_prefill(struct llm_gpu *gpu, uint64_t ns, uint64_t tokens)
{
    for (uint64_t i = 0; i < PREFILL_KERNELS; i++) {
        uint64_t share = tokens / PREFILL_KERNELS + (i < tokens % PREFILL_KERNELS);
        tg_spin(gpu->spin, gpu->stream, ns / PREFILL_KERNELS, share);
    }
}

/* Sleeps until CLOCK_MONOTONIC is `at`, or a signal says stop. */
static inline void llm_sleep_until(uint64_t at)
{
    struct timespec until = {(time_t)(at / 1000000000), (long)(at % 1000000000)};
    while (!llm_stop && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0)) {}
}
#endif
