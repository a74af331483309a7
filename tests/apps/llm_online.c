/* An online LLM server in the shape of vLLM: continuous batching, prefill first, then one decode of all running requests
 * after the other, with a decode gap on the CPU between any two iterations.
 *
 * Reads its schedule from standard input once it is warm (the log then says "ready"):
 *   start NS                     CLOCK_MONOTONIC of the beginning
 *   ARRIVAL_NS INPUT OUTPUT      one request, relative to the start, in order of arrival
 * and ends when all are served, or at SIGTERM. The log it writes, times in CLOCK_MONOTONIC:
 *   ready NS
 *   request ARRIVAL FIRST_TOKEN LAST_TOKEN INPUT OUTPUT
 *   end NS served N iterations N longest_gap_ns N
 *
 * The gap that follows an iteration depends on the seed, the oldest request in it and that request's token, and on
 * nothing else: two runs of one schedule meet the same gaps however their iterations fall. */
#include "llm.h"

static const char *usage =
    "llm_online --log FILE --cost P0,P1,P2,D0,D1,D2 --gap MEDIAN_MS,SIGMA,TAIL_SHARE,TAIL_FROM_MS,TAIL_TO_MS\n"
    "       [--seed N] [--warm-up DECODES] [--repeat-ns N] [--device ORDINAL] < SCHEDULE";

enum { RUNNING = 256, PREFILL_TOKENS = 8192 };

struct request { uint64_t arrival, first, last, id; uint32_t input, output, read, made; };

static struct request *requests;
static size_t request_count;
static uint64_t start_ns, seed, longest_gap, served_count;
static double gap_model[5];

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double uniform(uint64_t key) { return ((double)(mix(key) >> 12) + 0.5) / 4503599627370496.0; }

/* A gap of the tail, or of the log-normal body. */
static uint64_t gap_of(int tail, uint64_t key)
{
    double normal = sqrt(-2 * log(uniform(key + 1))) * cos(6.283185307179586 * uniform(key + 2));
    if (tail) return (uint64_t)(1e6 * (gap_model[3] + (gap_model[4] - gap_model[3]) * uniform(key + 1)));
    return (uint64_t)(1e6 * gap_model[0] * exp(gap_model[1] * normal));
}

static uint64_t gap_after(const struct request *oldest)
{
    uint64_t key = mix(seed ^ mix(oldest->id ^ mix(oldest->read + (uint64_t)oldest->made)));
    return gap_of(uniform(key) < gap_model[2], key);
}

/* Decodes of no request, as short as they come, with the gaps of the model and their exact share of its tail. Whoever
 * learns gaps has then seen what this engine's first minute of service would have shown it. */
static void warm_up(struct llm_gpu *gpu, uint64_t decodes)
{
    uint64_t tails = (uint64_t)ceil(gap_model[2] * (double)decodes);
    for (uint64_t i = 0; i < decodes && !llm_stop; i++) {
        llm_decode(gpu, DECODE_STEP);
        MUST(cuStreamSynchronize(gpu->stream));
        uint64_t gap = gap_of(tails && (i + 1) % (decodes / tails) == 0, mix(~seed ^ mix(i)));
        llm_sleep_until(tg_now() + gap);
    }
}

static void read_schedule(void)
{
    char line[128];
    size_t room = 0;
    unsigned long long at, input, output;
    if (!fgets(line, sizeof line, stdin) || sscanf(line, "start %llu", &at) != 1) {
        if (llm_stop) return;
        fprintf(stderr, "llm_online: the schedule begins with 'start NS'\n");
        exit(2);
    }
    start_ns = at;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%llu %llu %llu", &at, &input, &output) != 3 || !input || !output || input > 1u << 24 ||
            output > 1u << 24) {
            fprintf(stderr, "llm_online: not 'ARRIVAL_NS INPUT OUTPUT': %s", line);
            exit(2);
        }
        if (request_count == room) {
            room = room ? 2 * room : 1024;
            requests = realloc(requests, room * sizeof *requests);
            if (!requests) {
                perror("llm_online");
                exit(1);
            }
        }
        requests[request_count] = (struct request){
            .arrival = at, .id = request_count, .input = (uint32_t)input, .output = (uint32_t)output};
        request_count++;
    }
}

static void served(FILE *log, struct request *r)
{
    fprintf(log, "request %llu %llu %llu %u %u\n", (unsigned long long)(start_ns + r->arrival),
            (unsigned long long)r->first, (unsigned long long)r->last, r->input, r->output);
    fflush(log);
    served_count++;
}

/* Serves the schedule once, from `start_ns`; returns the iterations it took. */
static uint64_t serve(struct llm_gpu *gpu, const struct llm_cost *cost, FILE *log)
{
    struct request *running[RUNNING];
    size_t arrived = 0, next = 0, run = 0, iterations = 0;
    while (!llm_stop && (next < request_count || run)) {
        uint64_t now = tg_now();
        while (arrived < request_count && start_ns + requests[arrived].arrival <= now) arrived++;
        size_t oldest = next;
        uint64_t ns = 0, budget = PREFILL_TOKENS;
        size_t last = next;
        for (; last < arrived && run + (last - next) < RUNNING && budget; last++) {
            struct request *r = &requests[last];
            uint32_t fresh = r->input - r->read < budget ? r->input - r->read : (uint32_t)budget;
            ns += llm_prefill_ns(cost, fresh, r->read);
            r->read += fresh;
            budget -= fresh;
        }
        if (last > next) {
            llm_prefill(gpu, ns + (uint64_t)(1e6 * cost->p[0]), PREFILL_TOKENS - budget);
            MUST(cuStreamSynchronize(gpu->stream));
            now = tg_now();
            for (; next < last && requests[next].read == requests[next].input; next++) {
                struct request *r = &requests[next];
                r->first = r->last = now;
                r->made = 1;
                if (r->made < r->output) running[run++] = r;
                else served(log, r);
            }
        } else if (run) {
            double context = 0;
            for (size_t i = 0; i < run; i++) context += (double)(running[i]->read + running[i]->made);
            oldest = (size_t)running[0]->id;
            llm_decode(gpu, llm_decode_ns(cost, (double)run, context));
            MUST(cuStreamSynchronize(gpu->stream));
            now = tg_now();
            for (size_t i = 0; i < run; i++) {
                running[i]->last = now;
                running[i]->made++;
            }
        } else {
            llm_sleep_until(start_ns + requests[next].arrival);
            continue;
        }
        iterations++;
        uint64_t gap = gap_after(&requests[oldest]);
        size_t kept = 0;
        for (size_t i = 0; i < run; i++) {
            if (running[i]->made < running[i]->output) running[kept++] = running[i];
            else served(log, running[i]);
        }
        run = kept;
        /* After the last token of the last request there is no next iteration for a gap to precede. */
        if (!run && next == arrived) continue;
        if (gap > longest_gap) longest_gap = gap;
        llm_sleep_until(now + gap);
    }
    for (size_t i = 0; i < request_count; i++) requests[i].read = requests[i].made = 0;
    return iterations;
}

int main(int argc, char **argv)
{
    const char *log_path = 0;
    struct llm_cost cost = {{0}, {0}};
    struct llm_gpu gpu;
    uint64_t warm = 1024, repeat = 0, iterations = 0;
    int ordinal = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--log")) log_path = value;
        else if (!strcmp(argv[i], "--cost")) llm_cost_of(value, &cost, usage);
        else if (!strcmp(argv[i], "--gap")) llm_numbers(value, gap_model, 5, usage);
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(value, 0, 10);
        else if (!strcmp(argv[i], "--warm-up")) warm = strtoull(value, 0, 10);
        else if (!strcmp(argv[i], "--repeat-ns")) repeat = strtoull(value, 0, 10);
        else if (!strcmp(argv[i], "--device")) ordinal = atoi(value);
        else llm_usage(usage);
    }
    if (argc % 2 == 0 || !log_path || cost.d[0] <= 0 || gap_model[0] <= 0) llm_usage(usage);
    FILE *log = fopen(log_path, "w");
    if (!log) {
        perror(log_path);
        return 1;
    }
    llm_open(&gpu, ordinal, 0);
    for (int batch = 1; batch <= RUNNING; batch *= 2)
        llm_decode(&gpu, llm_decode_ns(&cost, batch, 1024.0 * batch));
    MUST(cuStreamSynchronize(gpu.stream));
    warm_up(&gpu, warm);
    fprintf(log, "ready %llu\n", (unsigned long long)tg_now());
    fflush(log);
    read_schedule();
    do {
        iterations += serve(&gpu, &cost, log);
        start_ns += repeat;
    } while (repeat && !llm_stop);
    fprintf(log, "end %llu served %llu iterations %llu longest_gap_ns %llu\n", (unsigned long long)tg_now(),
            (unsigned long long)served_count, (unsigned long long)iterations, (unsigned long long)longest_gap);
    return fclose(log) ? 1 : 0;
}
