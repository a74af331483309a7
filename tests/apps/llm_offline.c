/* An offline LLM batch job: reads prompts in large prefills, then decodes the batch, and over again until SIGTERM, with
 * work always queued ahead. What it achieved is counted by others, from finished kernels and their tags; its own log
 * is for where nobody else can:
 *   ready NS
 *   tokens NS N              tokens of the iterations it has seen finish, every SAY_NS
 *   end NS tokens N */
#include "llm.h"

static const char *usage = "llm_offline --log FILE --cost P0,P1,P2,D0,D1,D2 [--prompt TOKENS] [--batch N] [--steps N]\n"
                           "       [--device ORDINAL]";

enum { AHEAD = 4, SAY_NS = 100000000 };

int main(int argc, char **argv)
{
    const char *log_path = 0;
    struct llm_cost cost = {{0}, {0}};
    struct llm_gpu gpu;
    CUevent done[AHEAD];
    uint64_t worth[AHEAD] = {0}, tokens = 0, units = 0, said = 0, prompt = 2048, batch = 8, steps = 16;
    int ordinal = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (!strcmp(argv[i], "--log")) log_path = value;
        else if (!strcmp(argv[i], "--cost")) llm_cost_of(value, &cost, usage);
        else if (!strcmp(argv[i], "--prompt")) prompt = strtoull(value, 0, 10);
        else if (!strcmp(argv[i], "--batch")) batch = strtoull(value, 0, 10);
        else if (!strcmp(argv[i], "--steps")) steps = strtoull(value, 0, 10);
        else if (!strcmp(argv[i], "--device")) ordinal = atoi(value);
        else llm_usage(usage);
    }
    if (argc % 2 == 0 || !log_path || cost.d[0] <= 0 || !prompt || !batch) llm_usage(usage);
    if (batch % DECODE_KERNELS) {
        fprintf(stderr, "llm_offline: --batch is a multiple of %d, so that each kernel is worth whole tokens\n",
                DECODE_KERNELS);
        return 2;
    }
    FILE *log = fopen(log_path, "w");
    if (!log) {
        perror(log_path);
        return 1;
    }
    llm_open(&gpu, ordinal, batch);
    for (int i = 0; i < AHEAD; i++) MUST(cuEventCreate(&done[i], 2));
    llm_decode_graph(&gpu, llm_decode_ns(&cost, (double)batch, (double)(batch * prompt)));
    fprintf(log, "ready %llu\n", (unsigned long long)tg_now());
    fflush(log);
    while (!llm_stop) {
        for (uint64_t i = 0; i < batch + steps && !llm_stop; i++, units++) {
            uint64_t slot = units % AHEAD;
            if (units >= AHEAD) {
                MUST(cuEventSynchronize(done[slot]));
                tokens += worth[slot];
                uint64_t now = tg_now();
                if (now - said >= SAY_NS) {
                    fprintf(log, "tokens %llu %llu\n", (unsigned long long)now, (unsigned long long)tokens);
                    fflush(log);
                    said = now;
                }
            }
            if (i < batch) {
                uint64_t ns = (uint64_t)(1e6 * cost.p[0]) + llm_prefill_ns(&cost, (double)prompt, 0);
                llm_prefill(&gpu, ns, prompt);
                worth[slot] = prompt;
            } else {
                llm_decode(&gpu, llm_decode_ns(&cost, (double)batch, (double)(batch * (prompt + i - batch))));
                worth[slot] = batch;
            }
            MUST(cuEventRecord(done[slot], gpu.stream));
        }
    }
    MUST(cuStreamSynchronize(gpu.stream));
    for (uint64_t i = 0; i < AHEAD && i < units; i++) tokens += worth[i];
    fprintf(log, "end %llu tokens %llu\n", (unsigned long long)tg_now(), (unsigned long long)tokens);
    return fclose(log) ? 1 : 0;
}
