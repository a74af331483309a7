"""Small models and engines of vLLM's around them, in this process."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
VOCABULARY = 300


@dataclass(frozen=True)
class Model:
    """What a directory's weights are made from."""

    family: str
    seed: int = 0
    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    inner: int = 96
    tied: bool = False

    def save(self, folder: Path) -> Path:
        """Makes a directory of it."""
        self.make().save_pretrained(folder)
        return folder

    def make(self) -> Any:
        """Makes it as transformers does, with biases and norms that are not trivial."""
        torch.manual_seed(self.seed)
        config = AutoConfig.for_model(
            self.family,
            vocab_size=VOCABULARY,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=1024,
            tie_word_embeddings=self.tied,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
            initializer_range=0.08,
        )
        if self.family == "mistral":
            config.sliding_window = None
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
                elif name.endswith("bias"):
                    parameter.normal_(0, 0.2)
        return model


def engine(folder: Path, blocks: int = 512, **words: Any) -> Any:
    """vLLM's engine over a directory, whole, in this process."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    given: dict[str, Any] = dict(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=512,
        block_size=16,
        num_gpu_blocks_override=blocks,
        max_num_batched_tokens=512,
        max_num_seqs=16,
        enforce_eager=True,
        enable_prefix_caching=True,
        disable_log_stats=True,
        enable_lora=True,
        max_loras=3,
        max_cpu_loras=3,
        max_lora_rank=16,
        seed=0,
    )
    return LLMEngine.from_engine_args(EngineArgs(**{**given, **words}))


def core(engine: Any) -> Any:
    """The engine core of it."""
    return engine.engine_core.engine_core


def worker(engine: Any) -> Any:
    """Its worker, vLLM's wrapper taken off."""
    driver = core(engine).model_executor.driver_worker
    return getattr(driver, "worker", driver)


def tokens(rng: random.Random, length: int) -> list[int]:
    """A prompt without the token that ends an answer."""
    return [rng.randrange(2, VOCABULARY) for _ in range(length)]


def poison(runner: Any) -> None:
    """From now on the tensors that a pass returned hold no numbers when the next one begins."""
    returned: list[torch.Tensor] = []
    sample, execute = runner.sample_tokens, runner.execute_model

    def sample_tokens(*args: Any, **kwargs: Any) -> Any:
        state = runner.execute_model_state
        returned.extend((state.aux_hidden_states or []) if state is not None else [])
        return sample(*args, **kwargs)

    def execute_model(*args: Any, **kwargs: Any) -> Any:
        for tensor in returned:
            tensor.fill_(float("nan"))
        returned.clear()
        return execute(*args, **kwargs)

    runner.sample_tokens, runner.execute_model = sample_tokens, execute_model


def end(engine: Any) -> None:
    """Ends an engine's parts, so that the process may have another."""
    engine.engine_core.shutdown()
    gc.collect()
