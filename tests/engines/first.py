"""vLLM's own first model runner, as far as it keeps something of a request between steps.

``_update_states``, ``_get_prompt_logprobs_dict``, the input batch and the token-wise pooler are the engine's code. What
a token's hidden state is and how a token is drawn is played here: a hidden state is computed from all slots of the
request, and a drawn token also from the request's own generator.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import vllm.v1.worker.gpu_model_runner as module
from fake import GARBAGE, VOCABULARY, Gpu, Worker, next_token, slot_value, slots_of
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.pooler.tokwise.methods import AllPool
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import InputBatch

# What vLLM compiles for ranks is a sum.
torch._dynamo.config.disable = True


# Numbers that tell one sequence's hidden state from another's in every column.
_SPREAD = torch.randint(1 << 20, 1 << 31, (VOCABULARY,), generator=torch.Generator().manual_seed(1))


def hidden(slots: Sequence[int]) -> torch.Tensor:
    """The hidden state of a sequence's last token, which is also its logits."""
    return (_SPREAD * (hash(tuple(slots)) & 0x7FFFFFFF) % 104_729) / 104_729


def drawn(slots: Sequence[int], generator: torch.Generator | None) -> int:
    """The next token: of the slots, and of the request's own random numbers."""
    if generator is None:
        return next_token(slots)
    return (next_token(slots) + int(torch.randint(VOCABULARY, (1,), generator=generator))) % VOCABULARY


def drawn_truth(prompt: Sequence[int], tokens: int, seed: int) -> list[int]:
    """The output of an undisturbed run with a seed."""
    generator = torch.Generator().manual_seed(seed)
    slots = slots_of(prompt)
    out: list[int] = []
    while True:
        out.append(drawn(slots, generator))
        if len(out) == tokens:
            return out
        slots.append(slot_value(out[-1], slots))


def rows_truth(prompt: Sequence[int]) -> torch.Tensor:
    """The hidden states of a prompt."""
    slots = slots_of(prompt)
    return torch.stack([hidden(slots[: i + 1]) for i in range(len(prompt))])


class FirstRunner(Worker):
    """The first model runner's bookkeeping, on a GPU that is played."""

    def __init__(
        self,
        gpu: Gpu,
        asynchronous: bool,
        moment: Callable[[], None],
        config: VllmConfig,
        pooling: bool,
    ) -> None:
        super().__init__(gpu, asynchronous, moment)
        slots, longest = config.scheduler_config.max_num_seqs, config.model_config.max_model_len
        device = torch.device("cpu")
        several = {} if "max_num_blocks_per_req" not in _parameters() else {
            "max_num_blocks_per_req": [-(-longest // gpu.size)]
        }
        # There is no GPU to pin memory for; each module has its own name for that.
        for name, other in list(sys.modules.items()):
            if name.startswith("vllm.") and getattr(other, "PIN_MEMORY", False):
                other.PIN_MEMORY = False
        batch = InputBatch(
            max_num_reqs=slots,
            max_model_len=longest,
            max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
            device=device,
            vocab_size=VOCABULARY,
            block_sizes=[gpu.size],
            is_pooling_model=pooling,
            **{name: value for name, value in _needed(gpu.size).items() if name in _parameters()},
            **several,
        )
        runner: Any = module.GPUModelRunner.__new__(module.GPUModelRunner)
        nothing = SimpleNamespace(
            on_requests_finished=lambda names: None, register_request=lambda name, params: None
        )
        updates = SimpleNamespace(apply=lambda params: None)
        model = SimpleNamespace(
            compute_logits=lambda rows: rows,
            pooler=SimpleNamespace(get_pooling_updates=lambda task: updates),
        )
        runner.__dict__.update(
            requests={},
            num_prompt_logprobs={},
            input_batch=batch,
            encoder_cache={},
            device=device,
            late_interaction_runner=nothing,
            speculative_config=None,
            use_async_spec_decode=False,
            use_async_scheduling=asynchronous,
            is_pooling_model=pooling,
            uses_mrope=False,
            uses_xdrope_dim=0,
            model=model,
            get_model=lambda: model,
            sampler=Sampler(),
            model_config=SimpleNamespace(logprobs_mode="raw_logprobs"),
            query_start_loc=SimpleNamespace(np=np.zeros(slots + 1, dtype=np.int64)),
            _may_reorder_batch=lambda output: None,
            _sync_device=lambda: None,
        )
        self.runner = runner
        with set_current_vllm_config(config):
            self.pool = AllPool() if pooling else None

    def begin(self, output) -> None:
        last = SimpleNamespace(is_last_rank=True)
        with mock.patch.object(module, "get_pp_group", lambda: last):
            self.runner._update_states(output)

    def run(self, output) -> ModelRunnerOutput:
        if not output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        runner, batch = self.runner, self.runner.input_batch
        names = list(batch.req_ids)
        assert set(names) == output.num_scheduled_tokens.keys()
        runner.query_start_loc.np[: len(names) + 1] = np.cumsum(
            [0] + [output.num_scheduled_tokens[name] for name in names]
        )
        asked = runner.num_prompt_logprobs.keys() | (names if self.pool else ())
        rows: dict[str, list[torch.Tensor]] = {}
        end_of: dict[str, int] = {}
        sampled: dict[str, list[int]] = {}
        # As the scheduler has it, wherever they are in the batch: on a GPU a layer's slots are all written before any
        # is read, so that a request may hit what another computes in the same step.
        for name in output.num_scheduled_tokens:
            index = batch.req_id_to_index[name]
            state = runner.requests[name]
            tokens = list(state.prompt_token_ids) + list(state.output_token_ids)
            begin, count = state.num_computed_tokens, output.num_scheduled_tokens[name]
            rows[name], end_of[name], sampled[name] = [], begin + count, []
            for at in range(begin, begin + count):
                self.moment()
                slots = [self.gpu.read(state.block_ids[0], i) for i in range(at)]
                self.gpu.write(state.block_ids[0], at, slot_value(tokens[at], slots))
                slots.append(self.gpu.read(state.block_ids[0], at))
                rows[name].append(hidden(slots) if name in asked else torch.full((VOCABULARY,), float(GARBAGE)))
            if begin + count < len(tokens) or self.pool:
                continue
            self.moment()
            slots = [self.gpu.read(state.block_ids[0], i) for i in range(begin + count)]
            token = drawn(slots, batch.generators.get(index))
            place = batch.num_tokens_no_spec[index]
            batch.token_ids_cpu[index, place] = token
            batch.is_token_ids[index, place] = True
            batch.num_tokens_no_spec[index] = place + 1
            state.output_token_ids.append(token)
            sampled[name] = [token]
        computed = torch.stack([row for name in names for row in rows[name]])
        counts, ends = [len(rows[name]) for name in names], [end_of[name] for name in names]
        logprobs = runner._get_prompt_logprobs_dict(computed, output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[sampled[name] for name in names],
            logprobs=None,
            prompt_logprobs_dict=logprobs,
            pooler_output=self._pooled(computed, counts, ends) if self.pool else [],
        )

    def _pooled(self, rows, counts, ends):
        metadata = self.runner.input_batch.get_pooling_metadata()
        metadata.build_pooling_cursor(
            np.array(counts), torch.tensor(ends), device=torch.device("cpu")
        )
        return self.pool(rows, metadata)


def _parameters() -> set[str]:
    return set(inspect.signature(InputBatch.__init__).parameters)


def _needed(block_size: int) -> dict[str, Any]:
    """What some versions ask for and others do not."""
    return {"kernel_block_sizes": [block_size], "pin_memory": False}
