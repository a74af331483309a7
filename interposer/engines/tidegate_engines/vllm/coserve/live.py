"""Has vLLM's engine core train (``TIDEGATE_TUNE``).

Nothing of this is loaded without the variable. In an engine in which nothing can be trained one line of vLLM's log says
why, and it serves as without.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from ... import around, coserve_abi
from .. import background, shape
from . import promised, riding, room, seam, served
from .engine import Engine
from .promised import Tune
from .service import Service, answered, place
from .texts import Texts
from .trainer import Trainer
from .why_not import why_not

log = logging.getLogger("vllm.tidegate")

#: The attribute of an engine core that holds its trainer.
STATE = "_tidegate_trainer"
#: Set in processes whose parent has said why nothing is trained.
SAID = "TIDEGATE_TUNE_REFUSED"
#: The attribute of a worker that says why it has no room for training.
REFUSED = "_tidegate_refused"

#: What this stands around, calls or relies upon, beside what background requests do; as in ``shape.TOUCHED``.
TOUCHED: dict[str, tuple[str, ...]] = {
    "vllm.v1.engine.core": (
        "EngineCore.post_step",
        "EngineCore.step",
        "EngineCore.step_with_batch_queue",
        "EngineCore.add_request",
        "EngineCore.preprocess_add_request",
        "EngineCoreProc.has_work",
        "EngineCoreProc.is_running",
        "EngineCoreProc._process_input_queue",
        "EngineCoreProc._process_engine_step",
        "EngineCoreProc._handle_client_request",
        "EngineCoreProc:input_queue",
    ),
    "vllm.v1.engine": ("EngineCoreRequest", "EngineCoreRequestType"),
    "vllm.v1.core.block_pool": ("BlockPool.touch", "BlockPool.free_blocks"),
    "vllm.lora.model_manager": ("LoRAModelManager", "LRUCacheLoRAModelManager"),
    "vllm.lora.worker_manager": ("WorkerLoRAManager", "LRUCacheWorkerLoRAManager"),
    "vllm.lora.request": ("LoRARequest",),
}
RECORDED = Path(__file__).with_name("shapes.json")


def record(version: str) -> None:
    """Writes down the shape of the vLLM that is installed as that of a tested version."""
    shape.write(version, shape.here(TOUCHED), TOUCHED, RECORDED)


def register() -> None:
    """Has each engine core that this process makes from now on train. It never fails: it would take vLLM along."""
    text = os.environ[promised.VARIABLE]
    if SAID in os.environ:
        return
    try:
        tune = promised.parse(text)
    except ValueError as error:
        _never(f"{promised.VARIABLE}: {error}")
        return
    try:
        import vllm

        version = getattr(vllm, "__version__", "of an unknown version")
        for touched, recorded in ((background.TOUCHED, background.RECORDED), (TOUCHED, RECORDED)):
            known, differs = shape.like(shape.here(touched), recorded)
            if known is None:
                _never(f"vLLM {version} was not tested ({', '.join(shape.tested(recorded))} were): {differs}")
                return
        if served.VARIABLE not in os.environ:
            # The first process of an engine names it: all others are its children.
            os.environ[served.VARIABLE] = str(place(tune.socket, os.getpid()))
            atexit.register(_tidy, Path(os.environ[served.VARIABLE]), os.getpid())
        socket = Path(os.environ[served.VARIABLE])
        library = coserve_abi.load()
        _install(tune, text, socket, library)
        if not multiprocessing.current_process().name.startswith(("EngineCore", "VllmWorker")):
            served.register(socket)
    except Exception as error:  # noqa: BLE001
        _never(f"{type(error).__name__}: {error}")


def _install(tune: Tune, text: str, socket: Path, library: Any) -> None:
    from vllm.v1.engine.core import EngineCore, EngineCoreProc
    from vllm.v1.worker.gpu_worker import Worker

    seam.at_load(Worker, lambda worker: _loaded(worker, tune))

    def begin(core: Any) -> None:
        if hasattr(core, STATE):
            return
        setattr(core, STATE, None)
        try:
            if (why := attach(core, tune, text, socket, library)) is not None:
                _refuse(why)
        except Exception as error:  # noqa: BLE001 # it would take vLLM along
            _refuse(f"{type(error).__name__}: {error}")

    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # One with a loop is not whole yet.
        if not hasattr(self, "run_busy_loop"):
            begin(self)

    def loop(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        begin(self)
        return original(self, *args, **kwargs)

    # A core's own process loads this while it makes the core.
    around.of_class(EngineCore, "__init__", made)
    around.of_class(EngineCoreProc, "run_busy_loop", loop)


def _loaded(worker: Any, tune: Tune) -> None:
    """Has a worker leave room for training when it counts what its cache may have."""

    def count(original: Any) -> int:
        available = original()
        try:
            lora = worker.vllm_config.lora_config
            rank = lora.max_lora_rank if lora is not None else 0
            return room.left(available, worker.model_runner.model, tune.rules.activations, rank, tune.rules.chunk)
        except Exception as error:  # noqa: BLE001 # said when the core is whole; the cache is as without
            setattr(worker, REFUSED, str(error))
            return available

    around.of_instance(worker, "determine_available_memory", count)


def attach(core: Any, tune: Tune, text: str, socket: Path, library: Any) -> str | None:
    """Has an engine core train; why it does not, if so."""
    scheduler, config = core.scheduler, core.vllm_config
    driver = getattr(core.model_executor, "driver_worker", None)
    runner = getattr(getattr(driver, "worker", driver), "model_runner", None)
    if runner is None:
        return "its worker has a process of its own"
    refused = getattr(getattr(driver, "worker", driver), REFUSED, None)
    if (why := why_not(config, runner.model) or refused or background.why_not(scheduler)) is not None:
        return why
    if not getattr(runner, "use_aux_hidden_state_outputs", False):
        return "its model does not return the inputs of its layers"
    if tune.rules.chunk > scheduler.max_num_scheduled_tokens:
        return f"chunk={tune.rules.chunk} is more than --max-num-batched-tokens {scheduler.max_num_scheduled_tokens}"
    coserve = coserve_abi.Coserve(tune.config, library)
    coserve.trains(tune.rules)
    background.watch(scheduler, coserve)
    state = getattr(scheduler, background.STATE)
    state.chunk = tune.rules.chunk
    folder = served.folder(socket)
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    trainer = Trainer(
        Engine(core, folder, tune.rules.activations),
        coserve,
        state,
        text,
        lambda names: served.write(served.beside(socket), names),
    )
    service = Service(socket, {"encode": Texts(config.model_config)}, trainer.take)
    setattr(core, STATE, trainer)
    stand_around(core, trainer)
    # A core's own process ends without what was registered at its exit.
    atexit.register(_leave, service, folder)
    around.of_instance(core, "shutdown", lambda original: (_leave(service, folder), original())[1])
    log.info("Tidegate trains in this engine (%s); its socket is %s", text, socket)
    return None


def stand_around(core: Any, trainer: Trainer) -> None:
    """Has a core train between its steps, and go on turning while there is something to train."""

    def post_step(original: Any, *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        trainer.turn()

    around.of_instance(core, "post_step", post_step)
    if hasattr(core, "has_work"):
        around.of_instance(core, "has_work", lambda original: original() or trainer.wants())

    def update(original: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(*args, **kwargs)
        for client in outputs.values():
            # Nobody asked for these.
            if any(one.request_id.startswith(riding.PREFIX) for one in client.outputs):
                client.outputs = [one for one in client.outputs if not one.request_id.startswith(riding.PREFIX)]
        return outputs

    around.of_instance(core.scheduler, "update_from_output", update)


def _leave(service: Service, folder: Path) -> None:
    service.close()
    shutil.rmtree(folder, ignore_errors=True)


def _tidy(socket: Path, number: int) -> None:
    """At the end of an engine's first process: vLLM may have killed the core before it could do this itself."""
    if os.getpid() == number and socket.is_socket() and not answered(socket):
        socket.unlink(missing_ok=True)
        shutil.rmtree(served.folder(socket), ignore_errors=True)


def _never(why: str) -> None:
    """One line for all of an engine's processes: this one is the first, or their parent has not met it."""
    os.environ[SAID] = "1"
    _refuse(why)


@cache
def _refuse(why: str) -> None:
    """One line, once."""
    log.warning("Tidegate trains nothing in this engine: %s", why)
