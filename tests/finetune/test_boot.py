"""What an installed package does to a Python that starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENGINES = Path(__file__).parents[2] / "interposer/engines"

#: Stands where the preloaded library would, as far as the start looks.
LIBRARY = r"""
#include <stdint.h>
uint32_t tg_abi_version(void) { return 1; }
int tg_attach, tg_kv_scope_begin, tg_kv_scope_end, tg_kv_register, tg_kv_unregister, tg_poll, tg_ack_withheld,
    tg_publish_request, tg_forget_request, tg_reserve, tg_release, tg_usage, tg_requests_in_flight;
"""
ASKS = """
import sys
from tidegate_engines.finetune import boot
print(any(type(finder).__name__ == "_Waits" for finder in sys.meta_path), "torch" in sys.modules)
"""
PREPARES = """
import sys
from tidegate_engines.finetune import boot
seen = []
boot.listen(seen.append)
import accelerate, torch
model, judge = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
accelerator = accelerate.Accelerator(cpu=True)
model = accelerator.prepare(model)
accelerator.prepare_model(judge, evaluation_mode=True)
print(seen == [model])
"""


def python(code: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE") and k != "LD_PRELOAD"}
    environment |= {"PYTHONPATH": str(ENGINES), **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("library")
    (folder / "lib.c").write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "lib.so", folder / "lib.c"], check=True)
    return str(folder / "lib.so")


def test_nothing_happens_without_the_library_or_the_role(library):
    assert python(ASKS) == "False False"
    assert python(ASKS, TIDEGATE_ROLE="offline") == "False False"
    assert python(ASKS, LD_PRELOAD=library, TIDEGATE_ROLE="online") == "False False"


# P-TRAINER-8: scripts run with no line changed.
def test_an_offline_process_waits_for_accelerate_and_imports_nothing(library):
    assert python(ASKS, LD_PRELOAD=library, TIDEGATE_ROLE="offline") == "True False"


# P-TRAINER-8: an agent's rule gives the role as the environment does.
def test_without_a_role_in_the_environment_it_waits_too_as_a_rule_may_give_it(library):
    assert python(ASKS, LD_PRELOAD=library) == "True False"


RULED = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
from tidegate_engines import abi
from tidegate_engines.finetune import trainer
import torch

class Says:
    def role(self, wait_s):
        asked.append(wait_s)
        return ROLE

asked = []
abi.library = lambda: Says()
trainer._virtual = lambda: asked.append("context")
model = torch.nn.Linear(2, 2)
print(trainer._whose(model), asked)
"""


@pytest.mark.parametrize(
    ("role", "device", "said"),
    [
        ("offline", "virtual", "None ['context', 5.0]"),
        ("online", "virtual", "the agent's rules make it online ['context', 5.0]"),
        ("", "virtual", "no agent's rule makes it offline; write one, or set TIDEGATE_ROLE=offline ['context', 5.0]"),
        ("offline", "", "it runs on no GPU []"),
    ],
)
def test_the_role_is_asked_of_the_agent_once_there_is_a_context(role, device, said):
    assert python(RULED.replace("ROLE", repr(role)), TIDEGATE_FINETUNE_DEVICE=device) == said


def test_a_model_that_is_prepared_for_training_is_seen_and_one_for_evaluation_is_not():
    assert python(PREPARES) == "True"


def test_a_model_that_cannot_be_run_in_units_is_trained_as_it_is_and_one_line_says_why(caplog):
    import torch
    import transformers
    from tidegate_engines.finetune import trainer

    config = transformers.AutoConfig.for_model("gpt2", n_layer=1, n_embd=16, n_head=2, vocab_size=8)
    assert trainer.take(transformers.AutoModelForCausalLM.from_config(config)) is None
    assert trainer.take(torch.nn.Linear(2, 2)) is None
    assert ["'gpt2' was not tested" in r.getMessage() for r in caplog.records] == [True, False]
    assert ["'Linear' was not tested" in r.getMessage() for r in caplog.records] == [False, True]


def test_reasons_not_to_run_a_model_in_units():
    import cases
    from tidegate_engines.finetune.why_not import why_not

    case = cases.draw("llama", 3, "float32")
    model = cases.model(case)
    assert why_not(model) is None
    model.config._attn_implementation = "flash_attention_2"
    assert "attn_implementation='sdpa'" in why_not(model)
    model.config._attn_implementation = "sdpa"
    model.requires_grad_(True)
    assert "none of its weights is frozen" in why_not(model)
    model.requires_grad_(False)
    assert "no layer has anything that is trained" in why_not(model)
