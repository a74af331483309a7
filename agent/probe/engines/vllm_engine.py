"""One process of P16: an unmodified vLLM engine, answering requests (`online`) or working through batches (`offline`).

It speaks as serve.py does, and begins again at each further instant that it reads. The model has Llama-3-8B's shape and random weights (`load_format="dummy"`) from a config.json
written here; no tokenizer is loaded, prompts are token ids. Nothing of vLLM is changed, and nothing here knows Tidegate.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import select
import sys
import tempfile
import time
import zlib

import serve

# Shape of Llama-3-8B.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "bos_token_id": 128000, "eos_token_id": 128001,
}
# What of it is another in the shape of Llama-3.2-1B, which is loaded in seconds.
SMALLER = {"8b": {}, "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}}
# Tokens of a long prompt, and of its answer.
LONG, LONG_ANSWER = 6000, 16
# A gate may stay shut for longer than the engine's patience with a step.
PATIENCE = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_ATTENTION_BACKEND": "FLASH_ATTN",
            # Sampling is greedy, weights are bfloat16: neither is needed, and where they are missing vLLM does not start.
            "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_USE_DEEP_GEMM": "0",
            # For a machine without a network.
            "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
# Sequences at once: one graph for each size of a batch.
SEQUENCES = 128
SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, SEQUENCES]


def arguments(kind, folder, share, compiled, stamped=False):
    """Engine arguments, as far as this vLLM has them. `stamped`: each request's output says when the engine did what."""
    wanted = {
        "model": folder, "load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16",
        "max_model_len": 8192, "gpu_memory_utilization": share, "enable_prefix_caching": False,
        "disable_log_stats": not stamped, "seed": 0, "attention_backend": "FLASH_ATTN", "max_num_seqs": SEQUENCES,
        # Of one step: more tokens than a prompt of the offline engine's batches has.
        "max_num_batched_tokens": 8192,
    }
    if not compiled:
        # CUDA graphs of decode steps without a compiler run of minutes before them.
        wanted["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": SIZES}
    known = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in wanted.items() if name in known}


def sampling(tokens, final):
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.FINAL_ONLY if final else RequestOutputKind.DELTA
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=kind)


def prompt(length, draw):
    return {"prompt_token_ids": [draw.randrange(1000, 120000) for _ in range(length)]}


async def ask(engine, number, length, tokens, draw):
    """Times of a request's tokens, and what the engine said of it with the first."""
    times, metrics = [], None
    async for out in engine.generate(prompt(length, draw), sampling(tokens, False), f"request-{number}"):
        times += [time.monotonic()] * sum(len(one.token_ids) for one in out.outputs)
        if metrics is None and times:
            metrics = out.metrics
    return times, metrics


def stamps(at, start, times, metrics):
    """When a request came, was sent, queued, scheduled, had its first token in the engine's core and in the front end: its
    offset in seconds, then instants of the monotonic clock, which all of vLLM's processes read. An instant that this vLLM
    does not tell is none."""
    told = [getattr(metrics, name, None) for name in ("queued_ts", "scheduled_ts", "first_token_ts")]
    return [at, start + at, *(one or None for one in told), times[0]]


async def online(folder, options, tell, results):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(**arguments(AsyncEngineArgs, folder, options.share, options.compiled, True)))
    draw = random.Random(options.seed)
    await asyncio.gather(*(ask(engine, f"warm-{n}", 256, 16, draw) for n in range(8)))
    print("ready", file=results, flush=True)
    round_ = 0
    # The agent is asked what it saw while the engine is still there.
    while (start := serve.begin(await asyncio.to_thread(sys.stdin.readline))) is not None:
        tell(await block(engine, start, round_, options))
        round_ += 1
    engine.shutdown()


async def block(engine, start, number, options):
    """The same requests, with the same prompts, from that instant on."""
    draw = random.Random(options.seed + 1000)

    async def one(nth, at, length, tokens):
        await asyncio.sleep(max(0.0, start + at - time.monotonic()))
        return at, *await ask(engine, f"{number}-{nth}", length, tokens, draw)

    served = await asyncio.gather(*(one(nth, *request) for nth, request in enumerate(trace(options))))
    served = [one for one in served if one[1]]
    ttft = [times[0] - (start + at) for at, times, _ in served]
    tpot = [(times[-1] - times[0]) / (len(times) - 1) for _, times, _ in served if len(times) > 1]
    spans = [[start + at, times[0], times[-1]] for at, times, _ in served]
    told = [stamps(at, start, times, metrics) for at, times, metrics in served]
    return {"requests": len(ttft), "ttft_s": ttft, "tpot_s": tpot, "spans": spans, "stamps": told}


def offline(folder, options, tell, results):
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    engine = LLM(**arguments(EngineArgs, folder, options.share, options.compiled))
    draw = random.Random(options.seed + 1)
    engine.generate([prompt(256, draw) for _ in range(4)], sampling(8, True), use_tqdm=False)
    start = wait_for_start(results)
    read = written = 0
    answers = []
    # Small batches: what is not finished at the end does not count.
    while not select.select([sys.stdin], [], [], 0)[0]:
        batch = [prompt(1024, draw) for _ in range(options.batch)]
        for out in engine.generate(batch, sampling(64, True), use_tqdm=False):
            read += len(out.prompt_token_ids)
            written += len(out.outputs[0].token_ids)
            answers.append(zlib.crc32(repr(list(out.outputs[0].token_ids)).encode()))
    # The nth answer is to the same prompt in every run.
    tell({"tokens": read + written, "written": written, "seconds": time.monotonic() - start, "answers": answers})


def wait_for_start(results):
    print("ready", file=results, flush=True)
    return serve.begin(sys.stdin.readline())


def trace(options):
    """Requests of a CSV with the columns arrival_s,input_tokens,output_tokens, or drawn; and long ones among them."""
    if not options.trace:
        long = [((nth + 0.5) * options.seconds / options.long, LONG, LONG_ANSWER) for nth in range(options.long)]
        return sorted(serve.schedule(options.seconds, options.seed, options.rate) + long)
    with open(options.trace, encoding="utf-8") as file:
        names = file.readline().strip().split(",")
        at = [names.index(name) for name in ("arrival_s", "input_tokens", "output_tokens")]
        rows = [line.strip().split(",") for line in file if line.strip()]
    requests = [(float(row[at[0]]), min(7000, int(row[at[1]])), min(1000, int(row[at[2]]))) for row in rows]
    return [request for request in requests if request[0] < options.seconds]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["online", "offline"])
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=serve.RATE, help="requests a second in a burst")
    parser.add_argument("--shape", choices=list(SMALLER), default="8b")
    parser.add_argument("--long", type=int, default=0, help=f"requests more, of {LONG} tokens")
    parser.add_argument("--share", type=float, default=0.4, help="of the GPU's memory")
    parser.add_argument("--offline-share", type=float, help="of what the offline engine is shown of it, if not as much")
    parser.add_argument("--batch", type=int, default=8, help="requests that the offline engine is given at a time")
    parser.add_argument("--compiled", action="store_true", help="let vLLM compile the model: minutes, once")
    parser.add_argument("--trace", help="CSV with arrival_s,input_tokens,output_tokens")
    options = parser.parse_args()
    CONFIG.update(SMALLER[options.shape])
    if options.role == "offline" and options.offline_share:
        options.share = options.offline_share
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    # Standard output is for results alone: what vLLM, its logger and its children write there goes to the log.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="tidegate-model-") as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as config:
            json.dump(CONFIG, config)

        def tell(figures):
            print(json.dumps(figures), file=results, flush=True)

        if options.role == "online":
            asyncio.run(online(folder, options, tell, results))
        else:
            offline(folder, options, tell, results)


if __name__ == "__main__":
    main()
