"""A training script as people write it with TRL. trl_sft.py MODEL DATA OUT [STEPS]"""

import sys

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

model_dir, data, out = sys.argv[1:4]
trainer = SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained(model_dir),
    processing_class=AutoTokenizer.from_pretrained(model_dir),
    train_dataset=load_dataset("json", data_files=data, split="train", cache_dir=out + "-cache"),
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]),
    args=SFTConfig(
        output_dir=out + "-work",
        max_steps=int(sys.argv[4]) if len(sys.argv) > 4 else 20,
        per_device_train_batch_size=2,
        max_length=64,
        learning_rate=1e-3,
        bf16=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=7,
    ),
)
trainer.train()
trainer.model.save_pretrained(out)
