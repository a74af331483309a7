"""A training script as people write it with transformers' Trainer. hf_trainer.py MODEL DATA OUT [STEPS]"""

import json
import sys

from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)

model_dir, data, out = sys.argv[1:4]
set_seed(7)
tokenizer = AutoTokenizer.from_pretrained(model_dir)
model = AutoModelForCausalLM.from_pretrained(model_dir)
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
rows = [tokenizer(json.loads(line)["text"], truncation=True, max_length=64) for line in open(data)]
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=out + "-work",
        max_steps=int(sys.argv[4]) if len(sys.argv) > 4 else 20,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        learning_rate=1e-3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
model.save_pretrained(out)
