"""``python -m tidegate_engines.finetune.cli``, which ``tidegate finetune`` starts: a LoRA of a local model.

The adapter depends on the arguments, the files and the seed alone: not on what was taken meanwhile, nor on how often
the process was killed and started again. What it needs to go on is saved every so many steps beside ``--out``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import adapter, trainer
from .asked import Asked, Row, Wrong, asked

#: Steps between two lines of progress.
TELL_EVERY = 10


def tokens(rows: list[Row], tokenizer: Any, data: Path, length: int, truncate: bool) -> list[list[int]]:
    """Each sample as token ids."""
    found = []
    for row in rows:
        where = f"{data}:{row.line}"
        if row.messages is None:
            ids = tokenizer(row.text)["input_ids"]
            ids += [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        elif tokenizer.chat_template is None:
            raise Wrong(f"{where}: has 'messages', and the model's tokenizer has no chat template; use 'text'")
        else:
            ids = tokenizer.apply_chat_template(row.messages, tokenize=True, return_dict=True)["input_ids"]
        if len(ids) > length and not truncate:
            raise Wrong(f"{where}: has {len(ids)} tokens, and --length is {length}; --truncate cuts it")
        if len(ids[:length]) < 2:
            raise Wrong(f"{where}: has {len(ids)} token; there is nothing to predict")
        found.append(ids[:length])
    return found


def order(samples: int, batch: int, seed: int, step: int) -> list[int]:
    """The samples of a step: all of them in an order of their own in each epoch, whoever asks and when."""
    chosen = []
    for at in range(step * batch, (step + 1) * batch):
        epoch = list(range(samples))
        random.Random(f"{seed} {at // samples}").shuffle(epoch)
        chosen.append(epoch[at % samples])
    return chosen


class Run:
    """One training, from its files or from where it was."""

    def __init__(self, what: Asked) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        words = self.words = what.words
        tokenizer = AutoTokenizer.from_pretrained(words.model)
        self.samples = tokens(what.rows, tokenizer, words.data, words.length, words.truncate)
        self.padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        if words.device == "cuda" and not torch.cuda.is_available():
            raise Wrong("--device: torch finds no GPU; on the virtual one --device virtual trains")
        if words.device == "virtual":
            # One thread adds in one order: the same bytes every time.
            torch.set_num_threads(1)
            # Its driver has what a driver has, and not what PyTorch's CUDA wants besides.
            warnings.filterwarnings("ignore", message="CUDA initialization")
        self.device = torch.device("cuda" if words.device == "cuda" else "cpu")
        dtype = torch.bfloat16 if words.device == "cuda" else torch.float32
        torch.manual_seed(words.seed)
        base = AutoModelForCausalLM.from_pretrained(words.model, dtype=dtype, attn_implementation="sdpa")
        base.config.use_cache = False
        chosen = what.lora
        self.model = get_peft_model(
            base.to(self.device),
            LoraConfig(
                r=chosen.r,
                lora_alpha=chosen.alpha,
                lora_dropout=chosen.dropout,
                target_modules=list(chosen.modules),
                task_type="CAUSAL_LM",
            ),
        ).train()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=words.rate, weight_decay=0.0)
        self.machine = trainer.take(self.model)
        self.step = 0
        self.checkpoint = words.out.with_name(f".{words.out.name}.checkpoint")
        self.fingerprint = self._fingerprint(what)
        self._resume()
        self.teller = trainer.teller(self.model)
        if self.teller is not None:
            self.teller.goes_on(self.step, words.steps)

    def _fingerprint(self, what: Asked) -> str:
        """Of all that the adapter depends on but the number of steps."""
        words = what.words
        kept = {k: str(getattr(words, k)) for k in ("model", "length", "truncate", "batch", "rate", "seed", "window")}
        text = json.dumps([kept, str(what.lora), what.config, self.samples], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    # What a killed process leaves.

    def _resume(self) -> None:
        import torch

        if not self.checkpoint.exists():
            return
        found = torch.load(self.checkpoint, weights_only=True)
        if found["fingerprint"] != self.fingerprint:
            raise Wrong(
                f"{self.checkpoint} is of another training to the same --out; "
                "remove it, or ask for what it was asked for"
            )
        if found["step"] > self.words.steps:
            raise Wrong(f"{self.checkpoint} is at step {found['step']}, beyond --steps {self.words.steps}; remove it")
        with torch.no_grad():
            for parameter, saved in zip(self.trained, found["trained"], strict=True):
                parameter.copy_(saved)
        self.optimizer.load_state_dict(found["optimizer"])
        torch.set_rng_state(found["random"])
        self.step = found["step"]
        print(f"goes on from step {self.step} of {self.checkpoint}", flush=True)

    def save(self) -> None:
        """Leaves what a later process goes on from, whole or as it was."""
        import torch

        part = self.checkpoint.with_name(f"{self.checkpoint.name}.{os.getpid()}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "fingerprint": self.fingerprint,
            "step": self.step,
            "trained": [p.detach().cpu() for p in self.trained],
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        with part.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.checkpoint)

    # The training.

    def batch(self) -> dict[str, Any]:
        """What the step's forward takes."""
        import torch

        rows = [self.samples[at] for at in order(len(self.samples), self.words.batch, self.words.seed, self.step)]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self.padding)
        mask = torch.zeros_like(ids)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = torch.tensor(row)
            mask[at, : len(row)] = 1
        labels = ids.masked_fill(mask == 0, -100)
        found = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        return {name: tensor.to(self.device) for name, tensor in found.items()}

    def train(self) -> None:
        """All steps that are left."""
        import torch

        begun, seen = time.monotonic(), 0
        while self.step < self.words.steps:
            batch = self.batch()
            loss = trainer.step(self.model, lambda batch=batch: self._micro_batch(batch))
            torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            seen += int(batch["attention_mask"].sum())
            if self.step % TELL_EVERY == 0 or self.step == self.words.steps:
                self._tell(loss.item(), seen / (time.monotonic() - begun))
            if self.step % self.words.save_every == 0 and self.step < self.words.steps:
                self.save()

    def _micro_batch(self, batch: dict[str, Any]) -> Any:
        loss = self.model(**batch).loss
        loss.backward()
        return loss.detach()

    def finished(self, served: str = "") -> None:
        """Has the agent told that the adapter is there."""
        if self.teller is not None:
            self.teller.finished(str(self.words.out), served)

    def _tell(self, loss: float, rate: float) -> None:
        line = f"step {self.step}/{self.words.steps}  loss {loss:.4f}  {rate:,.0f} tokens/s"
        if (machine := self.machine or trainer.whole_of(self.model)) is not None:
            counts = machine.counts
            line += f"  {counts.units_redone} of {counts.units} units again in {counts.reclaims} reclaims"
        print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    try:
        what = asked(sys.argv[1:] if arguments is None else arguments)
        words = what.words
        for name in ("memory", "window"):
            if (value := getattr(words, name)) is not None:
                os.environ[f"TIDEGATE_FINETUNE_{name.upper()}"] = str(value)
        if words.device == "virtual" or os.environ.get("TIDEGATE_FINETUNE_DEVICE") == "virtual":
            os.environ["TIDEGATE_FINETUNE_DEVICE"] = "virtual" if words.device == "virtual" else ""
        run = Run(what)
        if words.device == "virtual" and run.machine is None and not trainer.is_whole(run.model):
            raise Wrong("--device virtual: see the line above; it is started with the library and an agent")
        run.train()
        adapter.save(run.model, words.out)
    except Wrong as wrong:
        print(f"finetune: {wrong}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"finetune: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"finetune: {words.out}: {error}; what was trained is in {run.checkpoint}", file=sys.stderr)
        run.save()
        return 1
    run.checkpoint.unlink(missing_ok=True)
    print(f"the adapter is at {words.out}", flush=True)
    run.finished()
    if words.serve:
        said = adapter.hand_over(words.serve, words.name, words.out)
        print(said.line, flush=True)
        if said.served:
            run.finished(said.line)
        return 0 if said.served else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
