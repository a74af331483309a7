"""A small model with a tokenizer and a chat template, as a directory that ``vllm serve`` takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import rig

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</{{ m['role'] }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save(folder: Path, family: str = "llama", seed: int = 0) -> Path:
    """Makes it: tokens are bytes, and a few that are special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    rig.Model(family, seed).save(folder)
    special = ["<s>", "</s>", *(f"<{end}{role}>" for role in ("system", "user", "assistant") for end in ("", "/"))]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={word: at for at, word in enumerate([*special, *letters])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "bos_token_id": 0}))
    return folder


if __name__ == "__main__":
    print(save(Path(sys.argv[1])))
