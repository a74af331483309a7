"""One process of P40: an unmodified SGLang engine that works through requests, offline. It speaks as serve.py does.

The model has Llama-3-8B's shape, or 1B's, and random weights from the config.json of vllm_engine.py. Attention is Triton's: the
kernels of FlashAttention that SGLang brings are nine tenths of what it has to carry. Nothing here knows Tidegate.
"""

import argparse
import json
import os
import random
import select
import sys
import tempfile
import time

import serve
import vllm_engine

#: Prompts at once, their tokens, those of an answer.
BATCH, PROMPT, ANSWER = 8, 1024, 64


def engine_of(folder, options):
    import sglang

    return sglang.Engine(
        model_path=folder, load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, attention_backend="triton",
        sampling_backend="pytorch", mem_fraction_static=options.share, cuda_graph_max_bs=2 * BATCH, disable_radix_cache=True,
        random_seed=1, log_level="info")


def work(engine, options):
    """Batch after batch until standard input says stop; what is not finished then does not count."""
    draw = random.Random(options.seed + 1)
    how = {"temperature": 0.0, "max_new_tokens": ANSWER, "ignore_eos": True}
    tokens, begun = 0, time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        prompts = [[draw.randrange(1000, 120000) for _ in range(PROMPT)] for _ in range(BATCH)]
        for out in engine.generate(input_ids=prompts, sampling_params=how):
            tokens += PROMPT + len(out["output_ids"])
    return {"tokens": tokens, "seconds": time.monotonic() - begun}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["offline"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shape", choices=list(vllm_engine.SMALLER), default="1b")
    parser.add_argument("--share", type=float, default=0.3, help="of the GPU's memory")
    options = parser.parse_args()
    vllm_engine.CONFIG.update(vllm_engine.SMALLER[options.shape])
    # What SGLang and its processes write to standard output goes to the log.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="tidegate-model-") as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as config:
            json.dump(vllm_engine.CONFIG, config)
        engine = engine_of(folder, options)
        engine.generate(input_ids=[[1000] * 256] * 4, sampling_params={"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True})
        print("ready", file=results, flush=True)
        serve.begin(sys.stdin.readline())
        print(json.dumps(work(engine, options)), file=results, flush=True)
        engine.shutdown()


# SGLang starts its processes anew, and each of them imports this file.
if __name__ == "__main__":
    main()
