"""Whether the vLLM that is installed has the shape of one that tests/engines ran against.

A version's name says little: a local build has another one and may be the same code, a patch release may differ in
the one method that matters. What the plugin stands around, calls or relies upon is listed here. Of each method and
class its arguments and a digest of its source are compared with what was recorded of the versions that were tested
(``shapes.json``, written by ``scripts/engines --record``); an engine all of whose parts are as in one of those
versions is taken for it.

The digest is of the syntax tree: comments, annotations, docstrings and layout do not count, nor does the Python that
reads it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

#: By module: classes (whole, or ``Class.method``), functions, and ``Class:attribute`` for what ``__init__`` sets.
TOUCHED: dict[str, tuple[str, ...]] = {
    "vllm.v1.core.sched.scheduler": (
        "Scheduler.schedule",
        "Scheduler.update_from_output",
        "Scheduler.add_request",
        "Scheduler.finish_requests",
        "Scheduler.reset_prefix_cache",
        "Scheduler._preempt_request",
        "Scheduler._update_after_schedule",
        "Scheduler._update_request_as_session",
        "Scheduler._update_request_with_output",
        "Scheduler._make_cached_request_data",
        "Scheduler._handle_stopped_request",
        "Scheduler._free_request",
        "Scheduler._free_blocks",
        "Scheduler._free_request_blocks",
        "Scheduler:requests",
        "Scheduler:running",
        "Scheduler:waiting",
        "Scheduler:kv_cache_manager",
        "Scheduler:prev_step_scheduled_req_ids",
        "Scheduler:vllm_config",
        "Scheduler:kv_cache_config",
        "Scheduler:parallel_config",
        "Scheduler:block_size",
        "Scheduler:max_num_running_reqs",
        "Scheduler:max_num_scheduled_tokens",
        "Scheduler:num_lookahead_tokens",
        "Scheduler:use_v2_model_runner",
    ),
    "vllm.v1.core.sched.async_scheduler": ("AsyncScheduler",),
    "vllm.v1.core.sched.output": ("SchedulerOutput", "CachedRequestData", "NewRequestData"),
    "vllm.v1.core.kv_cache_manager": (
        "KVCacheManager.allocate_slots",
        "KVCacheManager.free",
        "KVCacheManager.pop_blocks_for_free",
        "KVCacheManager.get_block_ids",
        "KVCacheManager.get_computed_blocks",
        "KVCacheManager.cache_blocks",
        "KVCacheManager.reset_prefix_cache",
        "KVCacheManager:block_pool",
        "KVCacheManager:coordinator",
    ),
    "vllm.v1.core.block_pool": (
        "BlockPool.touch",
        "BlockPool.free_blocks",
        "BlockPool.evict_blocks",
        "BlockPool.get_new_blocks",
        "BlockPool.get_num_free_blocks",
        "BlockPool.get_usage",
        "BlockPool.reset_prefix_cache",
        "BlockPool.cache_full_blocks",
        "BlockPool._maybe_evict_cached_block",
        "BlockPool:blocks",
        "BlockPool:free_block_queue",
        "BlockPool:num_gpu_blocks",
    ),
    "vllm.v1.core.kv_cache_utils": ("FreeKVCacheBlockQueue", "KVCacheBlock"),
    "vllm.v1.core.single_type_kv_cache_manager": ("SingleTypeKVCacheManager", "FullAttentionManager", "SlidingWindowManager"),
    "vllm.v1.core.kv_cache_coordinator": ("HybridKVCacheCoordinator",),
    "vllm.v1.request": ("Request",),
    "vllm.v1.worker.gpu_worker": ("Worker.initialize_from_config",),
    "vllm.v1.worker.gpu_model_runner": (
        "GPUModelRunner._update_states",
        "GPUModelRunner._update_streaming_request",
        "GPUModelRunner._get_prompt_logprobs_dict",
        "GPUModelRunner._allocate_kv_cache_tensors",
    ),
    "vllm.v1.worker.gpu_input_batch": ("CachedRequestState",),
    "vllm.v1.worker.gpu.attn_utils": ("_allocate_kv_cache",),
    "vllm.v1.worker.utils": ("allocate_kv_cache",),
    "vllm.v1.pool.metadata": ("PoolingStates",),
}

#: What a part is recorded as that is not there.
MISSING = "missing"

#: What says nothing about what code does, or not in every Python.
_SKIPPED = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx"}


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if said and isinstance(first.value.value, str) else body


def _words(node: Any) -> Iterator[str]:
    """A syntax tree as words that are the same in every Python from 3.10."""
    if isinstance(node, ast.AST):
        yield type(node).__name__
        for name, value in ast.iter_fields(node):
            if name in _SKIPPED or value is None or value == []:
                continue
            if name == "body" and isinstance(value, list):
                value = _without_docstring(value)
            yield name
            yield from _words(value)
    elif isinstance(node, list):
        yield "["
        for item in node:
            yield from _words(item)
        yield "]"
    else:
        yield repr(node)


def _sets(node: ast.ClassDef, name: str) -> bool:
    """Whether a method of a class assigns ``self.name``, or the class gives it a value."""
    for part in ast.walk(node):
        if (
            isinstance(part, ast.Attribute)
            and isinstance(part.ctx, ast.Store)
            and part.attr == name
            and isinstance(part.value, ast.Name)
            and part.value.id == "self"
        ):
            return True
    return False


def _seek(body: list[ast.stmt], name: str) -> ast.AST | None:
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
    return None


def _part(tree: ast.Module, name: str) -> str:
    """A part of a module's source, as it is recorded."""
    owner, _, attribute = name.partition(":")
    if attribute:
        found = _seek(tree.body, owner)
        return "set" if isinstance(found, ast.ClassDef) and _sets(found, attribute) else MISSING
    node: Any = tree
    for step in name.split("."):
        node = _seek(node.body, step)
        if node is None:
            return MISSING
    digest = hashlib.sha256(" ".join(_words(node)).encode()).hexdigest()[:12]
    if isinstance(node, ast.FunctionDef):
        arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        return f"({', '.join(argument.arg for argument in arguments)}) {digest}"
    return digest


def _there(module: str, name: str) -> bool:
    """Whether a part that the source has is there in the module, if that is loaded."""
    owner: Any = sys.modules.get(module)
    if owner is None or ":" in name:
        return True
    for step in name.split("."):
        if step not in vars(owner):  # what is inherited is something else
            return False
        owner = vars(owner)[step]
    return True


def here(touched: dict[str, tuple[str, ...]] = TOUCHED) -> dict[str, str]:
    """The shape of the vLLM that is installed, as far as it is touched. Loads none of its modules."""
    shape = {}
    for module, names in touched.items():
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):  # a module that was put together by hand has no place
            spec = None
        origin = spec.origin if spec is not None else None
        tree = ast.parse(Path(origin).read_bytes()) if origin else ast.Module(body=[], type_ignores=[])
        for name in names:
            part = _part(tree, name)
            shape[f"{module}.{name}"] = part if _there(module, name) else MISSING
    return shape


#: What is recorded of the parts in ``TOUCHED``.
RECORDED = Path(__file__).with_name("shapes.json")


@cache
def recorded(file: Path = RECORDED) -> dict[str, dict[str, list[str]]]:
    """By part and shape of it: the tested versions that have it so."""
    return json.loads(file.read_text())


def tested(file: Path = RECORDED) -> list[str]:
    """The versions that tests/engines ran against, in their order."""
    versions = {v for shapes in recorded(file).values() for same in shapes.values() for v in same}
    return sorted(versions, key=lambda version: [int(part) for part in version.split(".")])


def like(shape: dict[str, str], file: Path = RECORDED) -> tuple[str | None, str]:
    """The tested version that has this shape, the newest of several; else what differs from the nearest one."""
    counts = dict.fromkeys(tested(file), 0)
    for part, seen in shape.items():
        for version in recorded(file).get(part, {}).get(seen, ()):
            counts[version] += 1
    nearest = max(reversed(counts), key=counts.__getitem__, default="none")
    if counts.get(nearest) == len(recorded(file)) == len(shape):
        return nearest, ""
    return None, _differences(shape, nearest, recorded(file))


def _differences(shape: dict[str, str], nearest: str, known: dict[str, dict[str, list[str]]]) -> str:
    said = []
    for part, seen in shape.items():
        wanted = next((w for w, same in known.get(part, {}).items() if nearest in same), MISSING)
        if seen == wanted:
            continue
        name = ".".join(part.replace(":", ".").rsplit(".", 2)[-2:])
        if seen == MISSING:
            said.append(f"{name} is missing")
        elif wanted == MISSING:
            said.append(f"{name} is new")
        elif seen.split(") ")[0] != wanted.split(") ")[0]:
            said.append(f"{name} takes other arguments")
        else:
            said.append(f"{name} has another source")
    more = f" and {len(said) - 3} more" if len(said) > 3 else ""
    return f"unlike in {nearest}, {', '.join(said[:3])}{more}"


@cache
def found() -> tuple[str | None, str]:
    """What ``like`` says of the vLLM that is installed."""
    return like(here())


def why_not(version: str) -> str | None:
    """Why this vLLM is not one that was tested, in words for its log."""
    known, differs = found()
    if known is None:
        return f"vLLM {version} was not tested ({', '.join(tested())} were): {differs}"
    return None


def known() -> str | None:
    """The tested version whose shape this vLLM has."""
    return found()[0]


def record(version: str) -> None:
    """Writes down the shape of the vLLM that is installed as that of a tested version."""
    write(version, here(), TOUCHED, RECORDED)


def forget(version: str) -> None:
    """Takes a version's shape back."""
    write(version, {}, TOUCHED, RECORDED)


def write(version: str, found: dict[str, str], touched: dict[str, tuple[str, ...]], path: Path) -> None:
    """Has the recorded shape of a version be this one, and parts that are no longer listed go."""
    shapes: dict[str, dict[str, list[str]]] = json.loads(path.read_text()) if path.exists() else {}
    listed = {f"{module}.{name}" for module, names in touched.items() for name in names}
    for part in shapes.keys() - listed:
        del shapes[part]
    for part in listed:
        known = shapes.get(part, {})
        for seen, same in known.items():
            known[seen] = [other for other in same if other != version]
        if part in found:
            known[found[part]] = sorted({*known.get(found[part], ()), version})
        shapes[part] = {shape: same for shape, same in known.items() if same}
    lines = [f"  {json.dumps(part)}: {json.dumps(shapes[part])}" for part in sorted(shapes)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
