"""A model directory and a data file as a user has them, with some thousand random weights.

`tiny.py FOLDER` makes FOLDER/model and FOLDER/data.jsonl.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

WORDS = "the tide gate opens and closes while a lamp on the quay counts boats that wait for water".split()


def texts(count: int, seed: int = 0) -> list[str]:
    """Sentences of different lengths."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 40))) for _ in range(count)]


def data(path: Path, count: int = 24) -> Path:
    """A file of lines with ``text``."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(count)))
    return path


def model(folder: Path, family: str = "llama", layers: int = 3, hidden: int = 64, inner: int = 160) -> Path:
    """A model directory: configuration, weights, tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=384, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts(50), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.save_pretrained(folder)
    torch.manual_seed(11)
    config = AutoConfig.for_model(
        family,
        vocab_size=384,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    model(Path(sys.argv[1]) / "model")
    data(Path(sys.argv[1]) / "data.jsonl")
