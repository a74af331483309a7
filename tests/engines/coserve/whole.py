"""A whole engine with ``TIDEGATE_BACKGROUND``: vLLM loads the plugin, and answers as transformers do.

Called by ``scripts/coserve schedule --background`` after the random runs. vLLM's own front end, engine core, scheduler and
model runner, on the device of ``tests/engines/cpu``; some requests have a ``priority``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import torch

import rig

#: Two answers are told apart where the first two tokens differ by more than noise.
NEAR = 1e-4
#: What this takes at most: who is not answered by then is missing.
LONGEST_S = 300


def right(model: object, prompt: list[int], answer: list[int]) -> bool:
    """Whether each token of an answer is transformers' most likely one."""
    with torch.no_grad():
        rows = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    given = rows.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return bool((rows.max(1).values - given <= NEAR).all())


def main() -> int:
    from vllm import SamplingParams
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from tidegate_engines.vllm import background
    from transformers import AutoModelForCausalLM

    rng = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        path = rig.Model("llama", 3).save(Path(folder))
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        engine = rig.engine(path, blocks=40, enable_lora=False, max_num_batched_tokens=64, max_num_seqs=8)
        scheduler = rig.core(engine).scheduler
        state = getattr(scheduler, background.STATE, None)
        if state is None:
            print("coserve: schedule: vLLM's own start did not load the plugin", file=sys.stderr)
            return 1
        prompts = {f"{'background' if n % 2 else 'user'}-{n}": rig.tokens(rng, rng.randint(5, 90)) for n in range(30)}
        answers: dict[str, list[int]] = {}
        waiting, rode, until = list(prompts), 0, time.monotonic() + LONGEST_S
        while waiting or scheduler.has_requests():
            if waiting and rng.random() < 0.3:
                name = waiting.pop(0)
                words = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, detokenize=False)
                given = {"prompt_token_ids": prompts[name]}
                engine.add_request(name, given, words, priority=int(name.startswith("background")))
            for output in engine.step():
                if output.finished:
                    answers[output.request_id] = list(output.outputs[0].token_ids)
            rode = max(rode, len(state.admitted))
            if time.monotonic() > until:
                break
        whole = [name for name, prompt in prompts.items() if len(answers.get(name, ())) == 20]
        wrong = [name for name in whole if not right(model, prompts[name], answers[name])]
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        rig.end(engine)
    line = {"what": "schedule, whole", "version": os.environ["COSERVE_VERSION"], "runner": os.environ["COSERVE_RUNNER"]}
    line |= {"answers": len(whole), "missing": len(prompts) - len(whole), "wrong_answers": len(wrong), "admitted": rode}
    line |= {"leaked_blocks": 39 - free, "gave_up": int(not state.on)}
    print(json.dumps(line), flush=True)
    return int(bool(line["missing"] or wrong or line["leaked_blocks"] or line["gave_up"] or not rode))


if __name__ == "__main__":
    sys.exit(main())
