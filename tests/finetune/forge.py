"""Trainers in a moment: a process that has imported all of it, and forks one for each training.

    forge.py            reads a line of JSON for each training, and answers with its process id
    forge.py --once X   is that training itself

The JSON has ``arguments``, ``clause``, ``report``, ``out`` (a FIFO for what it prints), ``log``, and ``units``, a file
that gets a line before each unit, or nothing. What it prints ends
with ``exit CODE``, or it was killed. The library is preloaded into this process as into any; none of its threads is
there before a context is made, which only the children do.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "interposer/engines")]


#: The clause that is no machine's: an adapter is written to its own name, and not renamed to it.
SAVE_IN_PLACE = "SaveInPlace"


def train(clause: str, arguments: list[str], units: str) -> int:
    """`tidegate finetune`'s training: each step is told, and a clause may be left out."""
    import torch
    from tidegate_engines.finetune import adapter, cli, trainer

    torch.set_num_threads(1)
    cli.TELL_EVERY = 1
    if clause == SAVE_IN_PLACE:
        adapter.save = lambda model, target: model.save_pretrained(str(target))
    elif clause:
        import robbed

        trainer.Machine = getattr(robbed, clause)
    if units:
        tell_units(Path(units))
    return cli.main(arguments)


def tell_units(into: Path) -> None:
    """Has a line written before each unit: when, layers whose weights are there, blocks of other held state."""
    from tidegate_engines.finetune import trainer
    from tidegate_engines.finetune.held import Kind

    lines = into.open("w", buffering=1)
    made: list = []
    machine, before = trainer.machine, trainer._before

    def remembered(*arguments: object) -> object:
        made.append(machine(*arguments))
        return made[0]

    def told(*arguments: object) -> None:
        memory = made[0].memory
        other = sum(len(p.blocks) for name, p in memory._pieces.items() if name.kind is not Kind.WEIGHTS)
        lines.write(f"{time.monotonic_ns()} {memory.resident()} {other}\n")
        before(*arguments)

    trainer.machine, trainer._before = remembered, told


def child(asked: dict) -> None:
    """A training. Does not return."""
    code = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out = os.open(asked["out"], os.O_WRONLY)
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for of, to in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (log, 2)):
            os.dup2(of, to)
            os.close(of)
        # Where it stands, for whoever finds that it does.
        faulthandler.register(signal.SIGUSR1)
        os.environ["TIDEGATE_FINETUNE_REPORT"] = asked["report"]
        code = train(asked["clause"], asked["arguments"], asked["units"])
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    print(f"exit {code}", flush=True)
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    import peft  # noqa: F401
    import robbed  # noqa: F401
    import safetensors.torch  # noqa: F401
    import tidegate_engines.finetune.cli  # noqa: F401
    import transformers

    # Found by name when a model is loaded, which takes as long as all above.
    for name in ("LlamaForCausalLM", "AutoModelForCausalLM", "AutoTokenizer", "PreTrainedTokenizerFast"):
        getattr(transformers, name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        child(json.loads(sys.argv[2]))
    main()
