"""What a request may ask for beside tokens, while blocks are lost: each gets what an undisturbed run gives it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch
from ablations import first_broken
from fake import VOCABULARY, truth
from first import FirstRunner, drawn_truth, rows_truth
from harness import Case, Request, Rig, Thief, make_request
from tidegate_engines import around
from tidegate_engines.vllm import resumed
from test_vllm_offline import SEEDS
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

#: Chunked prefills, so that a loss falls between two chunks, and losses enough that steps end in one.
CASE = Case(0, requests=8, reclaim=0.02)


@dataclass
class Told:
    """All that came of one request."""

    tokens: list[int]
    logprobs: list
    pooled: list
    finished: bool = False


class Asked(Rig):
    """The rig, over the first model runner's own bookkeeping; a request's whole answer is kept."""

    def __init__(self, case: Case, moment, pooling: bool = False) -> None:
        super().__init__(case, moment=moment)
        self.worker = FirstRunner(
            self.gpu, case.asynchronous, moment, self.scheduler.vllm_config, pooling
        )
        self.engine.worker = self.worker
        self.told: dict[str, Told] = {}
        update = self.scheduler.update_from_output

        def told(*args, **kwargs):
            outputs = update(*args, **kwargs)
            for client in outputs.values():
                for out in client.outputs:
                    told = self.told.setdefault(out.request_id, Told([], [], []))
                    told.tokens += out.new_token_ids
                    if out.new_prompt_logprobs_tensors is not None:
                        told.logprobs.append(out.new_prompt_logprobs_tensors)
                    if out.pooling_output is not None:
                        told.pooled.append(out.pooling_output)
                    told.finished |= out.finish_reason is not None
            return outputs

        self.scheduler.update_from_output = told


def serve(case: Case, make, pooling: bool = False) -> tuple[Asked, dict[str, tuple]]:
    """Serves requests that ``make`` makes of a name, a prompt and a count of tokens."""
    rng = random.Random(case.seed)

    thief = Thief(case)
    rig = Asked(case, thief, pooling)
    thief.robs(rig, rng)
    prefix = [rng.randrange(VOCABULARY) for _ in range(20)]
    wanted, waiting = {}, []
    for i in range(case.requests):
        tail = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 40))]
        prompt, tokens = prefix[: rng.choice((0, 20))] + tail, rng.randint(1, 12)
        wanted[str(i)] = (prompt, tokens)
        waiting.append(make(str(i), prompt, tokens))
    steps = 0
    while waiting or rig.scheduler.has_requests() or rig.engine.queue:
        if waiting and rng.random() < 0.4:
            rig.scheduler.add_request(waiting.pop(0))
        rig.engine.step()
        if rig.gpu.lost and rng.random() < case.give_back:
            back = sorted(rig.gpu.lost)
            rig.agent.give(rng.sample(back, rng.randint(0, len(back))))
        steps += 1
        assert steps < 5_000, "the engine makes no progress"
    return rig, wanted


def of_logprobs(rig: Asked, wanted) -> int:
    """Requests whose prompt logprobs are not those of their prompt, once."""
    wrong = 0
    for name, (prompt, tokens) in wanted.items():
        told = rig.told[name]
        rows = rows_truth(prompt)[:-1].log_softmax(dim=-1, dtype=torch.float32)
        right = rows.gather(-1, torch.tensor(prompt[1:]).unsqueeze(-1)).flatten()
        got = [tensors.logprobs[:, 0] for tensors in told.logprobs]
        good = len(got) == 1 and torch.equal(got[0], right)
        wrong += not (good and told.tokens == truth(prompt, tokens))
    return wrong


def of_seeds(rig: Asked, wanted) -> int:
    """Requests whose tokens are not those that their seed draws."""
    return sum(
        rig.told[name].tokens != drawn_truth(prompt, tokens, seed=int(name) + 7)
        for name, (prompt, tokens) in wanted.items()
    )


def of_rows(rig: Asked, wanted) -> int:
    """Requests whose rows are not the hidden states of their prompt."""
    wrong = 0
    for name, (prompt, _) in wanted.items():
        pooled = rig.told[name].pooled
        wrong += not (len(pooled) == 1 and torch.equal(pooled[0], rows_truth(prompt)))
    return wrong


def with_logprobs(name, prompt, tokens):
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, prompt_logprobs=1)
    return make_request(CASE, name, prompt, tokens, sampling_params=sampling)


def with_seed(name, prompt, tokens):
    seed = int(name) + 7
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=seed)
    return make_request(CASE, name, prompt, tokens, sampling_params=sampling)


def with_rows(name, prompt, tokens):
    pooling = PoolingParams(task="token_embed", skip_reading_prefix_cache=True)
    return make_request(CASE, name, prompt, tokens, sampling_params=None, pooling_params=pooling)


KINDS = {
    "prompt logprobs": (with_logprobs, of_logprobs),
    "a seed": (with_seed, of_seeds),
    "token-wise pooling": (with_rows, of_rows),
}
#: vLLM schedules no step ahead of a pooling model's.
MODES = [(kind, ahead) for kind in KINDS for ahead in (False, True) if kind != "token-wise pooling" or not ahead]


def count(kind: str, asynchronous: bool, seeds: int, first: int = 0, **changes) -> tuple[int, int, int]:
    """Requests, losses and wrong answers of so many runs."""
    make, judge = KINDS[kind]
    requests = losses = wrong = 0
    for seed in range(first, first + seeds):
        case = replace(CASE, seed=seed, asynchronous=asynchronous, **changes)
        rig, wanted = serve(case, make, pooling=kind == "token-wise pooling")
        requests += len(wanted)
        losses += rig.agent.reclaims
        wrong += judge(rig, wanted)
    return requests, losses, wrong


@pytest.fixture
def mended(monkeypatch):
    monkeypatch.setattr(GPUModelRunner, "_update_states", GPUModelRunner._update_states)
    around.of_class(GPUModelRunner, "_update_states", resumed.update_states)


@pytest.mark.parametrize("kind,asynchronous", MODES)
def test_the_first_runners_own_code_answers_right_where_nothing_is_lost(kind, asynchronous):
    # Blocks enough: vLLM's own preemption leaves the same behind as a loss.
    requests, losses, wrong = count(kind, asynchronous, max(SEEDS // 10, 1), reclaim=0, blocks=96)
    assert (losses, wrong) == (0, 0) and requests


@pytest.mark.parametrize("blocks", [CASE.blocks, 34])
@pytest.mark.parametrize("kind,asynchronous", MODES)
def test_what_a_request_asks_for_comes_out_right_though_steps_are_dropped(
    kind, asynchronous, blocks, mended, record
):
    requests, losses, wrong = count(kind, asynchronous, SEEDS, blocks=blocks)
    little = "" if blocks == CASE.blocks else ", little memory"
    mode = f"{'async' if asynchronous else 'sync'}, runner 1{little}"
    record(f"{kind}, {mode}: {requests} requests, {losses} reclaims, {wrong} wrong")
    assert losses >= SEEDS, "the run is empty"
    assert wrong == 0


@pytest.mark.parametrize("kind,asynchronous", MODES)
def test_without_the_hook_in_the_runner_it_does_not(kind, asynchronous, record):
    broke, words = first_broken(lambda seed: count(kind, asynchronous, 1, first=seed)[2])
    mode = f"{'async' if asynchronous else 'sync'}, runner 1"
    record(f"without: What the runner keeps of {kind} is put back. {mode}: {words}")
    assert broke, "nothing broke: the hook, or this test, has to go"
