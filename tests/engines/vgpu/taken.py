"""An offline SGLang engine loses memory in mid-step: `scripts/engines --sglang-served`.

    taken.py ONLINE LOG_DIR RECLAIMS [CLAUSE]

`ONLINE` is apps/kv_online.c, compiled: it asks for memory at random until the agent has taken some from the engine so
often. The engine's program compares every answer with the truth, which it computes from tokens alone. With a clause of
the plugin left out (`losses`, or one of `sglang_ablations.py`) an answer has to be wrong or missing, or else the run shows
nothing.
"""

import json
import os
import random
import sys
from pathlib import Path

sys.path[:0] = [os.environ["TIDEGATE_ENGINES"]]
import node  # noqa: E402
import runs  # noqa: E402
import two  # noqa: E402

HERE = Path(__file__).parent
#: MiB that both share: of the engine's cache of 192, and its tables, more than a third has to go for all that online asks.
POOL = 240
#: Seconds for an engine to get ready: three processes import SGLang, for half a minute of processor time together.
READY = 900


def main():
    program, folder, count, *clause = sys.argv[1:]
    clause = "".join(clause)
    name = f"without {clause}" if clause else "whole"
    draw, engine, online = random.Random(1), None, None
    log = open(Path(folder) / f"{name.replace(' ', '-')}.log", "w+", encoding="utf-8")
    settings = 'headroom_min = "4MiB"\nheadroom_max = "16MiB"\nrestore_interval = "100ms"\n'
    with node.Node(runs.HOME, "best", f"{POOL}MiB", True, settings) as here:
        try:
            more = {"TIDEGATE_VGPU_WORKER": "paged", "TIDEGATE_VGPU_WITHOUT": clause}
            engine = runs.Program(here, lambda role: [str(HERE / "sglang_engine.py"), role], "offline", True, log, **more)
            engine.name = "engine"
            engine.hear("being ready", READY)
            engine.say("0")  # begins at once
            online = two.Online(here, program)
            try:
                waited, made = two.strike(here, online, [engine], draw, int(count))
                engine.say("stop")
                said = json.loads(engine.hear("figures", two.FINISH))
            except (RuntimeError, AssertionError, BrokenPipeError) as error:
                if isinstance(error, AssertionError) and engine.process.poll() is None:
                    raise  # it is online that does not read what it wrote
                lines = str(error).splitlines()
                why = ([line for line in lines if "Error" in line] or lines or ["?"])[-1]
                two.say(f"{name}: {'red ' if clause else 'FAIL'} the engine ended: {why}")
                return 0 if clause else 1
        finally:
            for each in filter(None, (engine, online)):
                node.stop(each.process)
    right = not said["wrong"] and said["requests"] == said["asked"] > 0
    words = f"{len(made)} reclaims, {sum(tokens for _, tokens in made)} tokens to compute again, online waited in vain " \
        f"{waited} times; {said['requests']} answers of {said['asked']} requests, {said['wrong']} wrong, " \
        f"{said['cached']} tokens of prompts from the prefix cache"
    verdict = ("red " if not right else "FAIL") if clause else ("ok  " if right else "FAIL")
    two.say(f"{name}: {verdict} {words}")
    return verdict == "FAIL"


if __name__ == "__main__":
    sys.exit(main())
