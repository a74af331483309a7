"""An offline engine as vllm_engine.py's whose every answer is compared with the truth, with as many requests at once as
it is told to have.

    sharing.py offline [--seed N]

Its cache is what the driver shows as free of the GPU, as vLLM takes it: `ready`, it says, and of how many blocks. It
reads lines: a number, so many requests it has at once from then on; `forgotten`, it says which tokens its scheduler
forgot so far; `stop`, it finishes what it has and says its figures.
"""

import os
import queue
import random
import sys
import threading
import time

sys.path[:0] = [os.environ["TIDEGATE_ENGINES"]]
import vllm_engine  # noqa: E402

#: A block of 16 tokens is 1 MiB of the one layer, K and V: four blocks are a stripe.
LAYERS = 1
vllm_engine.CONFIG.update(
    num_hidden_layers=LAYERS, num_attention_heads=128, num_key_value_heads=128, hidden_size=128 * 128)
#: Tokens of a prompt and of its answer.
PROMPT, ANSWER = (100, 200), 48
#: Of the memory that is shown.
SHARE = 0.98


def offline(folder, options, tell, results):
    from tidegate_vgpu import paged
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    os.environ["TIDEGATE_VGPU_CACHE"] = "shown"
    arguments = vllm_engine.arguments(EngineArgs, folder, SHARE, options.compiled)
    engine = LLM(**arguments | {"max_model_len": 512})
    print("ready", engine.llm_engine.vllm_config.cache_config.num_gpu_blocks, file=results, flush=True)
    said = queue.Queue()
    threading.Thread(target=lambda: [said.put(line.strip()) for line in sys.stdin], daemon=True).start()
    at_once, draw = 0, random.Random(options.seed)
    asked, answered, wrong, tokens = {}, 0, 0, 0
    sampling = vllm_engine.sampling(ANSWER, True)
    stopped = False
    while not stopped or asked:
        while not said.empty():
            line = said.get()
            if line == "forgotten":
                tell(engine.collective_rpc("forgotten")[0])
                continue
            stopped = line == "stop"
            at_once = 0 if stopped else int(line)
        while len(asked) < at_once:
            name = f"request-{answered + len(asked)}"
            prompt = vllm_engine.prompt(draw.randrange(*PROMPT), draw)
            asked[name] = prompt["prompt_token_ids"]
            engine.llm_engine.add_request(name, prompt, sampling)
        if not asked:
            time.sleep(0.01)
            continue
        for out in engine.llm_engine.step():
            if not out.finished:
                continue
            prompt, answer = asked.pop(out.request_id), list(out.outputs[0].token_ids)
            wrong += answer != paged.truth(prompt, ANSWER, LAYERS)
            answered += 1
            tokens += len(prompt) + len(answer)
    tell({"requests": answered, "wrong": wrong, "tokens": tokens})
    sys.stdin.close()


vllm_engine.offline = offline
if __name__ == "__main__":
    vllm_engine.main()
