"""A training loop of one's own with accelerate. accelerate_loop.py MODEL DATA OUT [STEPS]"""

import json
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

model_dir, data, out = sys.argv[1:4]
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 20
set_seed(7)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
tokenizer = AutoTokenizer.from_pretrained(model_dir)
model = AutoModelForCausalLM.from_pretrained(model_dir)
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["k_proj", "o_proj", "up_proj"]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
texts = [json.loads(line)["text"] for line in open(data)]
batches = torch.utils.data.DataLoader(
    texts * 40,
    batch_size=2,
    collate_fn=lambda rows: tokenizer(rows, return_tensors="pt", padding=True, truncation=True, max_length=64),
)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
model.train()
for batch in batches:
    with accelerator.accumulate(model):
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(**batch, labels=labels).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    steps -= accelerator.sync_gradients
    if steps == 0:
        break
accelerator.unwrap_model(model).save_pretrained(out)
