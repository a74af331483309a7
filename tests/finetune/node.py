"""A node as a user has it: virtual GPU, agent, and an online program whose KV cache grows and shrinks."""

from __future__ import annotations

import os
import queue
import random
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"

#: A trainer of 24 MiB loses blocks whenever online has more than 18 of 2 MiB, and gets them back when it has fewer.
CONFIG = """[identity]
trust_env_uids = ["self"]
[gate]
cooldown = "5ms"
[memory]
pool = "64MiB"
headroom_min = "4MiB"
headroom_max = "4MiB"
restore_interval = "50ms"
"""
#: Seconds within which a process of the node comes up, and online gets what it asks for.
DEADLINE_S = 60.0


class Node:
    """All of it, in a folder of its own; ends with the block."""

    def __init__(self, config: str = CONFIG) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-finetune-")
        self.folder = Path(self._folder.name)
        for name in ("gpu", "run", "driver"):
            (self.folder / name).mkdir()
        (self.folder / "driver/libcuda.so.1").symlink_to(BUILT / "libcuda.so")
        (self.folder / "agent.toml").write_text(config)
        self._processes: list[subprocess.Popen] = []

    def __enter__(self) -> Node:
        # What the device does with memory that is given back: other bytes, so that a lost page shows.
        command = [BUILT / "vgpud", "--dir", self.folder / "gpu", "--set", "poison=0xa5"]
        device = self._start(command, stdout=subprocess.PIPE)
        if device.stdout is None or device.stdout.readline().strip() != "ready":
            raise RuntimeError("the virtual GPU does not come up")
        self.start_agent()
        return self

    def start_agent(self) -> None:
        """An agent, the first or another after one that is gone."""
        command = [BUILT / "tidegate-agent", "--device", f"virtual={self.folder / 'gpu'}"]
        extra = {"TIDEGATE_RUN_DIR": str(self.folder / "run"), "TIDEGATE_CHANNEL__SELF_TEST": "calls"}
        with (self.folder / "agent.log").open("a") as log:
            config = ["--config", self.folder / "agent.toml"]
            self.agent = self._start([*command, *config], stderr=log, env={**os.environ, **extra})
        self._until(lambda: self.tidegate("status").returncode == 0, "the agent")

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._folder.cleanup()

    def _start(self, command: list, **words: object) -> subprocess.Popen:
        words = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "text": True, **words}
        process = subprocess.Popen([str(part) for part in command], **words)
        self._processes.append(process)
        return process

    def _until(self, holds: object, what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not holds():
            if time.monotonic() > end:
                raise RuntimeError(f"{what} does not come up: {(self.folder / 'agent.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def tidegate(self, *arguments: str) -> subprocess.CompletedProcess:
        """The command line."""
        environment = {**os.environ, "TIDEGATE_RUN_DIR": str(self.folder / "run")}
        return subprocess.run([str(BUILT / "tidegate"), *arguments], capture_output=True, text=True, env=environment)

    def environment(self, role: str, job: str) -> dict[str, str]:
        """What a preloaded program of this node has."""
        return {
            **os.environ,
            "TIDEGATE_VGPU_DIR": str(self.folder / "gpu"),
            "TIDEGATE_RUN_DIR": str(self.folder / "run"),
            "LD_LIBRARY_PATH": str(self.folder / "driver"),
            "LD_PRELOAD": f"{BUILT / 'libtidegate.so'}:{BUILT / 'libvgpu_rm.so'}",
            **({"TIDEGATE_ROLE": role} if role else {}),
            "TIDEGATE_JOB": job,
        }

    def online(self, seed: int) -> Online:
        """An online program, and what it is asked for, drawn from ``seed``."""
        program = self.folder / "kv_online"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": self.environment("online", "served")}
        if program.exists():
            return Online(self._start([program], **pipes), random.Random(seed))
        source = ROOT / "tests/apps/kv_online.c"
        flags = ["-O1", "-pthread", "-L", self.folder / "driver", "-l:libcuda.so.1", "-ldl", "-lm"]
        command = [str(part) for part in ("cc", "-o", program, source, *flags)]
        subprocess.run(command, check=True, env={**os.environ, "LD_LIBRARY_PATH": str(self.folder / "driver")})
        return Online(self._start([program], **pipes), random.Random(seed))


class Online(threading.Thread):
    """Takes memory and gives it back, again and again, until it is told to stop."""

    def __init__(self, process: subprocess.Popen, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._rng = rng
        self._over = threading.Event()
        self._killed = False
        self.error: BaseException | None = None
        #: Times that it had all of what it asked for.
        self.filled = 0
        #: Bursts that somebody asks for: blocks and seconds.
        self._wants: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        if not self._line().startswith("ready"):
            raise RuntimeError("the online program does not come up")

    def _line(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the online program is gone")
        return line

    def ask(self, what: str) -> str:
        """A line to it, and its answer."""
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._line().strip()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._burst(self._rng.randint(12, 24), self._rng.uniform(0.02, 0.1))
                while (asked := self._pause(self._rng.uniform(0.1, 0.4))) is not None:
                    self._burst(*asked)
        except BaseException as error:
            if not self._killed:
                self.error = error

    def _pause(self, seconds: float) -> tuple[int, float] | None:
        """Waits, but not if a burst is asked for."""
        try:
            return self._wants.get(timeout=seconds)
        except queue.Empty:
            return None

    def want(self, blocks: int, seconds: float) -> None:
        """Has it want so many blocks, as soon as it has given back those it has, and keep them for so long."""
        self._wants.put((blocks, seconds))

    def signal(self, number: int) -> None:
        """A signal to the program."""
        self._process.send_signal(number)

    def _burst(self, wanted: int, seconds: float) -> None:
        end = time.monotonic() + DEADLINE_S
        held = 0
        self.ask("flight 1")
        while held < wanted:
            held += int(self.ask(f"reserve {wanted - held}").split()[0])
            if time.monotonic() > end:
                raise RuntimeError(f"online has {held} of {wanted} blocks after {DEADLINE_S} s")
            time.sleep(0.005)
        if (said := self.ask("check")) != "ok":
            raise RuntimeError(f"online's memory: {said}")
        self.filled += 1
        self.ask(f"use {held}")
        self.ask("flight 0")
        self._over.wait(seconds)
        self.ask("use 0")
        self.ask(f"release {held}")

    def stop(self) -> None:
        """Ends it between two bursts."""
        self._over.set()
        self._wants.put(None)
        self.join(2 * DEADLINE_S)
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """Ends it wherever it is."""
        self._killed = True
        self._over.set()
        self._wants.put(None)
        self._process.kill()
        self.join(2 * DEADLINE_S)
