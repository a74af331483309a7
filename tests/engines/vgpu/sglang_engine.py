"""One process of `scripts/engines --sglang-served`: SGLang answering requests (`online`) or working (`offline`).

    sglang_engine.py online|offline [as vllm_engine.py]

An unmodified engine, as `sglang.Engine` starts it: the tokenizer manager here, scheduler and detokenizer in processes
of their own. It speaks as vllm_engine.py does. Online's prompts are text. Where steps keep words in the pages of the KV
cache (`tidegate_vgpu/sglang_steps.py`), every offline answer is compared with the truth. TIDEGATE_VGPU_SGLANG has further
arguments of the engine's, as JSON.
"""

import asyncio
import json
import os
import random
import sys
import time

sys.path[:0] = [os.environ["TIDEGATE_ENGINES"]]
import vllm_engine  # noqa: E402

import directory  # noqa: E402

#: Whether steps keep words in the KV pool. Then a slot has 32 KiB of K in a layer: 64 slots are a handle of 2 MiB, and a
#: stripe has one for K and V of each layer. Else nothing uses the slots, and there are as many as anybody asks for.
PAGED = os.environ.get("TIDEGATE_VGPU_WORKER") == "paged"
LAYERS, HEADS, SLOTS = (2, 128, 1536) if PAGED else (2, 2, 65536)
vllm_engine.CONFIG.update(
    num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=128,
    # What is left of the model is loaded and never run.
    hidden_size=128, intermediate_size=128)
#: Offline requests: tokens of a prompt and of its answer, and of the beginnings that prompts have in common.
PROMPT, ANSWER, COMMON = ((60, 200), (16, 80), (16, 48)) if PAGED else ((1024, 1024), (64, 64), (16, 48))
#: Offline requests at once. Those that keep words ask for all slots and some more, so that the scheduler has a queue.
AT_ONCE = 10 if PAGED else 8


def engine_of(folder):
    import sglang

    directory.tokenizer(folder)
    return sglang.Engine(
        model_path=folder, load_format="dummy", dtype="bfloat16", device="cpu", attention_backend="torch_native",
        sampling_backend="pytorch", disable_cuda_graph=True, max_total_tokens=SLOTS, chunked_prefill_size=2048,
        random_seed=1, log_level="info", **json.loads(os.environ.get("TIDEGATE_VGPU_SGLANG", "{}")))


def sampling(tokens):
    return {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}


class Asked:
    """What an offline engine was asked for, and what it answered."""

    def __init__(self, engine, draw):
        self.engine, self.draw = engine, draw
        self.said = {"asked": 0, "requests": 0, "wrong": 0, "tokens": 0, "cached": 0}
        self.common = [self.tokens(COMMON[1]) for _ in range(3)]

    def tokens(self, count):
        return [self.draw.randrange(1000, 101000) for _ in range(count)]

    async def one(self):
        from tidegate_vgpu import sglang_steps

        prompt = self.draw.choice(self.common)[: self.draw.randint(*COMMON)]
        prompt += self.tokens(self.draw.randint(*PROMPT) - len(prompt))
        count = self.draw.randint(*ANSWER)
        self.said["asked"] += 1
        out = await self.engine.async_generate(input_ids=prompt, sampling_params=sampling(count))
        answer = out["output_ids"]
        if PAGED:
            self.said["wrong"] += answer != sglang_steps.truth(prompt, count)
        self.said["requests"] += 1
        self.said["tokens"] += len(prompt) + len(answer)
        self.said["cached"] += out["meta_info"]["cached_tokens"]

    async def until(self, stop):
        """So many at once, until it is to stop; then those that are under way."""
        under_way = set()
        while not stop.done():
            while len(under_way) < AT_ONCE:
                under_way.add(asyncio.ensure_future(self.one()))
            done, under_way = await asyncio.wait({*under_way, stop}, return_when=asyncio.FIRST_COMPLETED)
            under_way.discard(stop)
            for each in done - {stop}:
                each.result()  # with what went wrong in it
        await asyncio.gather(*under_way)


async def ask(engine, length, tokens, draw):
    """Times of a request's tokens. Of the tokenizer each byte is one."""
    text = "".join(chr(draw.randrange(97, 123)) for _ in range(length))
    times = []
    async for out in await engine.async_generate(text, sampling(tokens), stream=True):
        times += [time.monotonic()] * (out["meta_info"]["completion_tokens"] - len(times))
    return times


async def serve(engine, options, results):
    draw = random.Random(options.seed)
    await asyncio.gather(*(ask(engine, 256, 16, draw) for _ in range(8)))
    start = await asyncio.to_thread(vllm_engine.wait_for_start, results)

    async def one(at, length, tokens):
        await asyncio.sleep(max(0.0, start + at - time.monotonic()))
        return at, await ask(engine, length, tokens, draw)

    served = await asyncio.gather(*(one(*request) for request in vllm_engine.trace(options)))
    return {
        "requests": len(served),
        "ttft_s": [times[0] - (start + at) for at, times in served],
        "tpot_s": [(times[-1] - times[0]) / (len(times) - 1) for _, times in served if len(times) > 1],
        "spans": [[start + at, times[0], times[-1]] for at, times in served],
    }


async def online(folder, options, tell, results):
    engine = engine_of(folder)
    tell(await serve(engine, options, results))
    # The agent is asked what it saw while the engine is still there.
    await asyncio.to_thread(sys.stdin.readline)
    engine.shutdown()


def offline(folder, options, tell, results):
    engine = engine_of(folder)
    engine.generate(input_ids=[1000] * 64, sampling_params=sampling(4))
    start = vllm_engine.wait_for_start(results)
    asked = Asked(engine, random.Random(options.seed + 1))

    async def work():
        stop = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
        await asked.until(stop)

    engine.loop.run_until_complete(work())
    said = {**asked.said, "seconds": time.monotonic() - start}
    tell(said if PAGED else {name: said[name] for name in ("tokens", "seconds")})
    engine.shutdown()


vllm_engine.online, vllm_engine.offline = online, offline
if __name__ == "__main__":
    vllm_engine.main()
