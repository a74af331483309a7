"""Steps of AdamW inside an engine that serves, against PEFT's own loop over the same samples.

The engine has two slots and keeps two adapters, the trained one pinned, so that users of two others contend for the
slot that is left. The same samples and the same user's prompt come again and again: whatever the prefix cache keeps of
older weights is found at once.
"""

from __future__ import annotations

import random
from pathlib import Path

import cases
import torch
from peft import LoraConfig
from tidegate_engines.vllm.coserve import adapters, decoder, head, seam, units
from vllm import SamplingParams

import rig

#: A higher one makes noise of Adam's division by small second moments.
RATE = adapters.Rate(lr=2e-3)

#: Samples that are trained with, in turns.
SAMPLES = 5


def run(model: Path, folder: Path, steps: int, figures: cases.Figures) -> None:
    """One loop, the same each time.

    Adam's first steps are as long for a gradient that is next to nothing as for any. Now and then rounding gives such
    a gradient the other sign, and the two loops part there, though neither is wrong.
    """
    bench = cases.Bench(model, folder, max_loras=2, max_cpu_loras=2)
    rng = random.Random("loop 0")
    torch.manual_seed(0)
    # alpha is not r, so that what is multiplied twice or never shows.
    bench.peft.add_adapter("mine", LoraConfig(r=8, lora_alpha=32, target_modules=list(decoder.MATRICES)))
    bench.peft.save_pretrained(folder / "adapters", selected_adapters=["mine"])
    ours = adapters.Adapter.load(folder / "adapters" / "mine", bench.layers)
    bench.peft.add_adapter("shadow", LoraConfig(r=8, lora_alpha=32, target_modules=list(decoder.MATRICES)))
    theirs = {key: p for key, p in bench.peft.named_parameters() if ".mine." in key}
    optimizer = torch.optim.AdamW(theirs.values(), lr=RATE.lr)
    number = bench.lora("mine").lora_int_id
    bench.engine.add_lora(bench.lora("mine"))
    if not bench.riding.reserve():
        figures.wrong.append("an idle engine has no slot for the adapter")
    ours.pin(bench.manager, number)
    data = [rig.tokens(rng, rng.randint(20, 120)) for _ in range(SAMPLES)]
    prompt = rig.tokens(rng, 50)
    for step in range(steps):
        shadow(bench, ours)
        tokens = data[step % SAMPLES]
        # All tokens are learnt: where a gradient is little more than Adam's eps, its rounding would be seen in the step.
        labels = torch.tensor([*tokens[1:], head.IGNORED])
        found = ridden(bench, ours, tokens, labels, prompt, rng, figures)
        if found is None:
            figures.wrong.append(f"step {step}: the sample's rows were not computed")
            break
        real = cases.truth(bench.peft, "mine", tokens, labels, 1.0)
        for key, parameter in theirs.items():
            parameter.grad = real.gradients[key]
        optimizer.step()
        ours.step(found, RATE)
        publish(bench, ours, number, prompt if step % 2 else None, rng, figures)
        figures.count("steps")
        if step == steps // 2:
            # From here on by what a checkpoint holds.
            ours.save(folder / "checkpoint", str(bench.model), optimizer=True)
            ours = adapters.Adapter.load(folder / "checkpoint", bench.layers, optimizer=True)
    else:
        # Of the largest of the adapter: B begins at zero, and Adam makes as much of rounding as of a gradient.
        names = [name.replace(".weight", ".mine.weight") for name in ours.tensors()]
        parts = (ours.parameters(), map(theirs.get, names))
        flat = [torch.cat([each.detach().flatten() for each in part]) for part in parts]
        figures.see("adapter_worst", cases.apart(*flat))
        afterwards(bench, ours, number, prompt, figures)
    bench.end()


def publish(
    bench: cases.Bench,
    ours: adapters.Adapter,
    number: int,
    prompt: list[int] | None,
    rng: random.Random,
    figures: cases.Figures,
) -> None:
    """Has vLLM read the weights of now, with a request under way that began with those before, or without."""
    under_way = bench.ask(prompt, "mine", 5) if prompt else None
    if under_way:
        # What it writes is of both weights, and nobody may find it later.
        bench.step(64)
    ours.publish(bench.manager, number)
    bench.riding.published(number)
    bench.drain(rng)
    if under_way and len(bench.answers.pop(under_way.name)) != under_way.length:
        figures.wrong.append("a request under way at a publication was not answered whole")


def ridden(
    bench: cases.Bench,
    ours: adapters.Adapter,
    tokens: list[int],
    labels: torch.Tensor,
    prompt: list[int],
    rng: random.Random,
    figures: cases.Figures,
) -> units.Gradients | None:
    """A sample's gradients, among users who are answered with the weights of now."""
    asked = [(prompt, "mine"), (rig.tokens(rng, 30), rng.choice(["one", None])), (rig.tokens(rng, 20), "two")]
    users = [bench.ask(each, adapter, 6) for each, adapter in asked]
    name, left = ride(bench, tokens, ours.version, rng)
    if left.whole and rng.random() < 0.3:
        # Its backward pass was not wanted, and now it is: it rides again, with the same weights.
        bench.riding.end(name)
        name, left = ride(bench, tokens, ours.version, rng)
        figures.count("again")
    found = None
    if left.whole:
        found, sample = units.gradients(ours.layers), bench.seam.sample(left)
        learnt = bench.head(left.inputs[-1], labels, 1.0, 32)
        backward = units.Backward(bench.layers, ours.layers, sample, learnt.dy, found)
        while not backward.done:
            bench.step(64)
            backward.advance(rng.randint(16, 64))
    bench.riding.end(name)
    bench.drain(rng)
    for user in users:
        # What PEFT would answer with these weights: its own loop has others by now, by rounding.
        user.adapter = "shadow" if user.adapter == "mine" else user.adapter
        bench.check(user, figures)
    return found


def ride(bench: cases.Bench, tokens: list[int], version: int, rng: random.Random) -> tuple[str, seam.Ridden]:
    """A sample from its first row to its last."""
    name, left = bench.riding.begin(tokens, bench.lora("mine"), version)
    while name in bench.core.scheduler.requests:
        bench.step(rng.randint(8, 64))
    return name, left


def shadow(bench: cases.Bench, ours: adapters.Adapter) -> None:
    """Has PEFT's model hold the weights of now."""
    with torch.no_grad():
        for key, parameter in bench.peft.named_parameters():
            if ".shadow." in key:
                layer, matrix, part = cases.place(key)
                lora = ours.layers[layer][matrix]
                parameter.copy_(lora.a if part == "A" else lora.b)


def afterwards(
    bench: cases.Bench, ours: adapters.Adapter, number: int, prompt: list[int], figures: cases.Figures
) -> None:
    """The adapter is read by PEFT and by vLLM: from its slot, from the manager's copy, and from its directory."""
    saved = bench.folder / "adapters" / "saved"
    ours.save(saved, str(bench.model))
    bench.peft.load_adapter(str(saved), "saved")
    for key, parameter in bench.peft.named_parameters():
        if ".saved." in key:
            layer, matrix, part = cases.place(key)
            lora = ours.layers[layer][matrix]
            if not torch.equal(parameter, lora.a if part == "A" else lora.b):
                figures.wrong.append(f"{key} is not what was saved")
    bench.peft.set_adapter("saved")
    with torch.no_grad():
        real = bench.peft(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    figures.see("logits_worst", logprobs(bench, "mine", prompt, real))
    bench.manager.deactivate_adapter(number)
    bench.riding.published(number)
    figures.see("logits_worst", logprobs(bench, "mine", prompt, real))
    bench.manager.deactivate_adapter(number)
    figures.see("logits_worst", logprobs(bench, "saved", prompt, real))


def logprobs(bench: cases.Bench, adapter: str, prompt: list[int], real: torch.Tensor) -> float:
    """How far vLLM's are from PEFT's, of the 20 likeliest tokens that follow."""
    words = SamplingParams(temperature=0, max_tokens=1, logprobs=20, ignore_eos=True, detokenize=False)
    bench.core.scheduler.max_num_scheduled_tokens = 512
    given = {"prompt_token_ids": prompt}
    bench.engine.add_request(f"logprobs-{adapter}", given, words, lora_request=bench.lora(adapter))
    found = {}
    while bench.core.scheduler.has_requests():
        for output in bench.engine.step():
            if output.finished:
                found = output.outputs[0].logprobs[0]
    return max((abs(each.logprob - real[token].item()) for token, each in found.items()), default=float("inf"))
