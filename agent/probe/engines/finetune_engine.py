"""One process of P22 and P23: `offline` trains a LoRA, `taker` takes memory and gives it back as an online engine does.

Both speak as serve.py does. The trained model has Llama-3-8B's shape and random weights, or on the virtual GPU some
thousand weights, whose arithmetic is the host's. `--steps N --save FILE` trains so many steps, whatever is asked of it
meanwhile, and leaves what they made.
"""

import argparse
import ctypes
import json
import logging
import os
import select
import sys
import time

import vllm_engine

BLOCK = 2 << 20
# The shapes that are trained: Llama-3-8B's, and one for the virtual GPU.
SMALL = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 16,
         "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 1024}
RANK, ALPHA = 16, 32
# MiB that can be taken: a layer's weights are 416 MiB or 3, and the rest is for what is made of a sample.
MEMORY = {"cuda": 32 * 416 + 1200, "virtual": 40}

# Also where no run has the plugin: the training is the same.
sys.path.insert(0, os.environ.get("TIDEGATE_PLUGIN", ""))


def made(virtual):
    """The model, with an adapter on all of its layers' matrices, in training."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(**(SMALL if virtual else vllm_engine.CONFIG))
    config.use_cache = False
    torch.manual_seed(0)
    with torch.device("cpu" if virtual else "cuda"):
        base = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if virtual else torch.bfloat16,
                                                attn_implementation="sdpa")
    return get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")).train()


class Training:
    """Steps of a model, from a seed."""

    def __init__(self, options):
        import torch

        from tidegate_engines.finetune import trainer

        logging.basicConfig(level=logging.INFO)
        self.torch, self.options = torch, options
        virtual = options.backend == "virtual"
        if virtual:
            torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        os.environ["TIDEGATE_FINETUNE_DEVICE"] = options.backend
        os.environ["TIDEGATE_FINETUNE_MEMORY"] = str(options.memory or MEMORY[options.backend])
        self.model = made(virtual)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-4, weight_decay=0.0)
        self.machine = trainer.take(self.model)
        self.step = 0
        self.losses = []

    def train(self):
        torch = self.torch
        draw = torch.Generator().manual_seed(1000 + self.step)
        vocabulary = self.model.config.vocab_size
        ids = torch.randint(vocabulary, (1, self.options.length), generator=draw).to(self.trained[0].device)
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.losses.append(loss.item())

    def figures(self):
        counts = self.machine.counts if self.machine else None
        memory = self.machine.memory if self.machine else None
        return {
            "in_units": self.machine is not None, "steps": self.step, "loss": self.losses[-1] if self.losses else 0.0,
            "units": counts.units if counts else 0, "units_redone": counts.units_redone if counts else 0,
            "reclaims": counts.reclaims if counts else 0, "blocks_lost": memory.blocks_lost if memory else 0,
        }

    def save(self, path):
        named = [(n, p.detach().float().cpu()) for n, p in self.model.named_parameters() if p.requires_grad]
        self.torch.save({"adapter": dict(named), "losses": self.losses}, path)


def offline(options, results):
    training = Training(options)
    # What is done once: kernels are chosen, memory is found.
    if not options.steps:
        training.train()
    start = vllm_engine.wait_for_start(results)
    first = training.step
    while training.step < options.steps if options.steps else not select.select([sys.stdin], [], [], 0)[0]:
        training.train()
    seconds = time.monotonic() - start
    if options.save:
        training.save(options.save)
    if options.adapter:
        training.model.save_pretrained(options.adapter)
    tokens = (training.step - first) * options.length
    print(json.dumps({"tokens": tokens, "seconds": seconds, **training.figures()}), file=results, flush=True)


def taker(options, results):
    """Wants so many blocks for a moment, again and again; between two times it has no request."""
    from tidegate_engines import abi
    from tidegate_engines.job import Region

    library, cuda = abi.library(), ctypes.CDLL("libcuda.so.1")

    def ok(name, *arguments):
        if code := getattr(cuda, name)(*arguments):
            raise RuntimeError(f"{name}: CUDA error {code}")

    device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    ok("cuInit", 0)
    ok("cuDeviceGet", ctypes.byref(device), 0)
    ok("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    ok("cuCtxSetCurrent", context)
    library.attach(0, 1)
    blocks = options.blocks
    library.begin_scope(0, abi.ELASTIC)
    ok("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(blocks * BLOCK))
    library.end_scope()
    kv = library.register([Region(at.value, BLOCK, BLOCK, 0, blocks)], 0, abi.ELASTIC)
    online = abi.Online(library, kv)
    vllm_engine.wait_for_start(results)
    filled, waited = 0, []
    while not select.select([sys.stdin], [], [], 0)[0]:
        begin, held = time.monotonic(), []
        online.in_flight(1)
        while len(held) < blocks and not select.select([sys.stdin], [], [], 0)[0]:
            held += online.reserve(blocks - len(held))
            online.usage(len(held), len(held))
            time.sleep(0.002)
        waited.append(time.monotonic() - begin)
        filled += len(held) == blocks
        time.sleep(options.hold)
        online.usage(0, len(held))
        online.in_flight(0)
        online.release(held)
        time.sleep(options.rest)
    print(json.dumps({"filled": filled, "waited_s": waited}), file=results, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["offline", "taker"])
    parser.add_argument("--backend", choices=["cuda", "virtual"], required=True)
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sample")
    parser.add_argument("--shape", choices=list(vllm_engine.SMALLER), default="8b")
    parser.add_argument("--memory", type=int, help="MiB that can be taken")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--save", help="a file for what the steps made")
    parser.add_argument("--adapter", help="a folder for the adapter")
    parser.add_argument("--blocks", type=int, default=0, help="of 2 MiB that the taker wants")
    parser.add_argument("--hold", type=float, default=0.1, help="seconds for which it has them")
    parser.add_argument("--rest", type=float, default=0.5, help="seconds until it wants them again")
    options = parser.parse_args()
    vllm_engine.CONFIG.update(vllm_engine.SMALLER[options.shape])
    # Standard output is for results alone.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    {"offline": offline, "taker": taker}[options.role](options, results)


if __name__ == "__main__":
    main()
