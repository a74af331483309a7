"""An engine as vllm_engine.py's, of four layers; of an offline one every answer is compared with the truth.

    shared.py online|offline [as vllm_engine.py]
"""

import os
import random
import sys

sys.path[:0] = [os.environ["TIDEGATE_ENGINES"]]
import vllm_engine  # noqa: E402

LAYERS = 4
vllm_engine.CONFIG["num_hidden_layers"] = LAYERS
#: Tokens of an offline prompt at most and of its answer, and prompts at once: four fifths of the cache.
PROMPT, ANSWER, BATCH = 200, 48, 48


def offline(folder, options, tell, results):
    from tidegate_vgpu import paged
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    engine = LLM(**vllm_engine.arguments(EngineArgs, folder, options.share, options.compiled))
    draw = random.Random(options.seed + 1)
    wrong = requests = tokens = 0
    start = vllm_engine.wait_for_start(results)
    while not vllm_engine.select.select([sys.stdin], [], [], 0)[0]:
        prompts = [vllm_engine.prompt(draw.randrange(PROMPT // 2, PROMPT), draw) for _ in range(BATCH)]
        for given, out in zip(prompts, engine.generate(prompts, vllm_engine.sampling(ANSWER, True), use_tqdm=False),
                              strict=True):
            said = list(out.outputs[0].token_ids)
            wrong += said != paged.truth(given["prompt_token_ids"], ANSWER, LAYERS)
            requests += 1
            tokens += len(out.prompt_token_ids) + len(said)
    tell({"tokens": tokens, "requests": requests, "wrong": wrong, "seconds": vllm_engine.time.monotonic() - start})


vllm_engine.offline = offline
if __name__ == "__main__":
    vllm_engine.main()
