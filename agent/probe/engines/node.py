"""An agent and programs with or without the library, for a comparison of runs."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time


class Node:
    """Where the built files are, and a directory for one run. With `plugin` vLLM finds the plugin in the folder that
    TIDEGATE_PLUGIN names; with `pool`, a size in words of the configuration, it shares so much of the GPU's memory.
    `settings` are lines of the agent's configuration that follow those."""

    def __init__(self, home, level=None, pool=None, plugin=False, settings=""):
        self.home = home
        self.dir = tempfile.TemporaryDirectory(prefix="tidegate-run-")
        self.level, self.pool, self.plugin = level, pool, plugin or pool is not None
        self.settings = settings
        self.agent = None

    def environment(self, role=None, **more):
        """Of a program: the library preloaded if it has a role; `more` are variables of its own, None where one is not set.
        Its job is called as its role is, unless they say otherwise."""
        env = dict(os.environ)
        env["TIDEGATE_RUN_DIR"] = self.dir.name
        env.update({name: value for name, value in more.items() if value is not None})
        for name in (name for name, value in more.items() if value is None):
            env.pop(name, None)
        if role:
            library = os.path.join(self.home, "libtidegate.so")
            env["LD_PRELOAD"] = ":".join(filter(None, [library, env.get("LD_PRELOAD")]))
            env["TIDEGATE_ROLE"] = more.get("TIDEGATE_ROLE", role)
            env["TIDEGATE_JOB"] = more.get("TIDEGATE_JOB", role)
            if self.plugin:
                env["PYTHONPATH"] = ":".join(filter(None, [os.environ["TIDEGATE_PLUGIN"], env.get("PYTHONPATH")]))
        return env

    def __enter__(self):
        if self.level is None:
            return self
        self.configure()
        self.start()
        return self

    def configure(self):
        """Writes the agent's configuration."""
        config = os.path.join(self.dir.name, "agent.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write('[identity]\ntrust_env_uids = ["self"]\n')
            if self.level != "best":
                file.write(f'[channel]\nlevel = "{self.level}"\n')
            if self.pool:
                file.write(f'[memory]\npool = "{self.pool}"\n')
            file.write(self.settings)

    def start(self):
        """Starts the agent by its configuration and waits until it serves; seconds that took."""
        begun = time.monotonic()
        vgpu = os.environ.get("TIDEGATE_VGPU_DIR")
        device = f"virtual={vgpu}" if vgpu else "real"
        with open(os.path.join(self.dir.name, "agent.log"), "a", encoding="utf-8") as log:
            self.agent = subprocess.Popen(
                [os.path.join(self.home, "tidegate-agent"), "--config", os.path.join(self.dir.name, "agent.toml"), "--device",
                 device],
                env=self.environment(), stdin=subprocess.DEVNULL, stderr=log)
        # Its self-test, which makes a context on every GPU, may take half a minute.
        end = time.monotonic() + 45
        while self.status() is None:
            if self.agent.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the agent does not serve: {self.log()}")
            time.sleep(0.1)
        return time.monotonic() - begun

    def log(self):
        with open(os.path.join(self.dir.name, "agent.log"), encoding="utf-8") as log:
            return log.read()[-2000:]

    def keep_log(self, path):
        """What the agent said, in a file of its own, if there is one."""
        with contextlib.suppress(OSError):
            shutil.copyfile(os.path.join(self.dir.name, "agent.log"), path)

    def ask(self, what):
        """Lines of JSON that `tidegate` answers; None while nobody serves."""
        asked = subprocess.run([os.path.join(self.home, "tidegate"), what, "--output", "json"],
                               env=self.environment(), capture_output=True, text=True, check=False)
        return asked.stdout if asked.returncode == 0 else None

    def pause(self):
        """Stops every offline job until `resume`."""
        self.order("pause")

    def resume(self):
        self.order("resume")

    def set(self, setting):
        """A setting of the running agent, as `gate.cooldown=20ms`."""
        self.order("set", setting)

    def order(self, *what):
        subprocess.run([os.path.join(self.home, "tidegate"), *what], env=self.environment(), check=True, capture_output=True)

    def status(self):
        """What `tidegate status` says; None while nobody serves."""
        said = self.ask("status")
        return json.loads(said) if said else None

    def hooks(self):
        """Processes with what each hook of theirs counted."""
        said = self.ask("hooks")
        return json.loads(said) if said else []

    def events(self):
        """What happened on the node so far."""
        return [json.loads(line) for line in (self.ask("events") or "").splitlines()]

    def __exit__(self, *_):
        if self.agent:
            # A clean stop enables everything.
            self.agent.send_signal(signal.SIGTERM)
            try:
                self.agent.wait(10)
            except subprocess.TimeoutExpired:
                self.agent.kill()
                self.agent.wait()
        self.dir.cleanup()


def stop(process):
    """Ends a program, politely first, and what it started if it leads a session."""
    if not process:
        return
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # An engine's core may outlive its front end, and hold the GPU and its job's memory.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def report_gate(lines, probe, run, status):
    """Level, preemptions and latencies, as the agent counts them."""
    if not status:
        return
    text = f"{run}: level {status['level']}"
    if status["level_note"]:
        text += f" ({status['level_note']})"
    lines.note(probe, text)
    for gpu in status["gpus"]:
        memory = gpu.get("memory")
        if memory and int(memory.get("pool_bytes") or 0):
            lines.note(probe, f"{run}: memory {json.dumps(memory)}")
        lines.figure(probe, f"{run}: preemptions", gpu["preemptions"])
        lines.figure(probe, f"{run}: cooldown", gpu["cooldown_ns"] / 1e6, "ms")
        latency = gpu["preempt_latency"]
        if latency and latency["count"]:
            lines.figure(probe, f"{run}: preemption latency p50", latency["p50_ns"] / 1e3, "us")
            lines.figure(probe, f"{run}: preemption latency p99", latency["p99_ns"] / 1e3, "us")


def report_reclaims(lines, probe, run, events):
    """How often memory was taken, and what that made the offline engine compute again."""
    reclaims = [event["text"] for event in events if event["kind"] == "reclaimed"]
    if reclaims:
        again = sum(int(found) for text in reclaims for found in re.findall(r"(\d+) tokens? to compute again", text))
        lines.figure(probe, f"{run}: reclaims", len(reclaims))
        lines.figure(probe, f"{run}: tokens to compute again", again)
