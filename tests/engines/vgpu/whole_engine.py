"""An engine of a case of `scripts/engines --whole`, as vllm_engine.py's, whose every answer is compared with the truth.

    whole_engine.py EXECUTOR RANKS

It says `ready`. It reads lines: a kind of requests, it answers them and says how many answers there were, and how many of
them were wrong; `again`, it ends its engine, makes another one in the same process and says `ready`; `stop`, it ends.
"""

import gc
import json
import os
import random
import sys
import tempfile

sys.path[:0] = [os.environ["TIDEGATE_ENGINES"]]
import vllm_engine  # noqa: E402

#: A block of 16 tokens is 64 KiB of the one layer, so that 64 of them, 1,024 tokens, share handles of 2 MiB.
LAYERS = 1
SHARED = 32000
#: By kind: how many requests, the tokens that they have in common, those that each has of its own, and those of an answer.
KINDS = {"short": (24, 0, (100, 200), 16), "long": (8, 0, (1200, 1500), 16), "prefix": (4, SHARED, (100, 200), 8)}
#: As vLLM knows them: the last one is a class, which may be named.
EXECUTORS = {"uni": "uni", "mp": "mp", "ray": "tidegate_vgpu.apart.Apart"}


def make(folder, executor, ranks):
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    arguments = vllm_engine.arguments(EngineArgs, folder, 0.4, False)
    return LLM(**arguments | {
        "max_model_len": SHARED + 1000, "enable_prefix_caching": True, "tensor_parallel_size": ranks,
        "distributed_executor_backend": EXECUTORS[executor]})


def answer(engine, kind, draw):
    """How many answers there were, and how many are not what they should be."""
    from tidegate_vgpu import paged

    count, shared, own, tokens = KINDS[kind]
    common = vllm_engine.prompt(shared, draw)["prompt_token_ids"]
    prompts = [common + vllm_engine.prompt(draw.randrange(*own), draw)["prompt_token_ids"] for _ in range(count)]
    outs = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], vllm_engine.sampling(tokens, True),
                           use_tqdm=False)
    said = [list(out.outputs[0].token_ids) for out in outs]
    wrong = sum(one != paged.truth(prompt, tokens, LAYERS) for one, prompt in zip(said, prompts, strict=True))
    return {"answers": len(said), "wrong": wrong}


def main():
    executor, ranks = sys.argv[1], int(sys.argv[2])
    vllm_engine.CONFIG.update(num_hidden_layers=LAYERS, max_position_embeddings=2 * SHARED)
    # As vLLM does where nobody has said how: no process imports all of it again. To see whether there is a GPU, torch asks
    # NVML, or else initialises CUDA, which a process does not survive that is forked.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    import torch

    torch.cuda.is_available = lambda: False
    for name, value in vllm_engine.PATIENCE.items():
        os.environ.setdefault(name, value)
    # Standard output is for results alone: what vLLM, its logger and its children write there goes to the log.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    draw = random.Random(os.environ["TIDEGATE_JOB"])
    with tempfile.TemporaryDirectory(prefix="tidegate-model-") as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as config:
            json.dump(vllm_engine.CONFIG, config)
        engine = make(folder, executor, ranks)
        print("ready", file=results, flush=True)
        for line in map(str.strip, sys.stdin):
            if line == "stop":
                break
            if line == "again":
                engine.llm_engine.engine_core.shutdown()
                engine = None
                gc.collect()
                engine = make(folder, executor, ranks)
                print("ready", file=results, flush=True)
                continue
            print(json.dumps(answer(engine, line, draw)), file=results, flush=True)


if __name__ == "__main__":
    main()
