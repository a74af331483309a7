"""Makes a model directory from which an engine's own server starts: a configuration and a tokenizer, and no weights.

    directory.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

sys.path[:0] = [os.environ["TIDEGATE_ENGINES"]]

import vllm_engine


def tokenizer(folder):
    """Of bytes: each is a token."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([], trainers.BpeTrainer(special_tokens=["<s>", "</s>"], initial_alphabet=alphabet))
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.save_pretrained(folder)


def main():
    folder = Path(sys.argv[1])
    tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(vllm_engine.CONFIG))


if __name__ == "__main__":
    main()
