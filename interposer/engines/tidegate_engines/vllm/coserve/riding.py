"""A sample as vLLM's own request, and an adapter's key in the prefix cache.

A sample is a request that asks for one token: when it has it, all of its rows were in passes. Its ``cache_salt`` is
new with each ride and names the version of the weights, so that none of its rows is found in the prefix cache: a row
that is not computed leaves no input of any layer.

vLLM's prefix cache knows an adapter by its name (0.24) or its name and path (later), not by its weights. After a
publication the same name means other weights, so requests that come later carry a name with the version in it, from the
moment they reach the core. A request that was there before keeps the keys and values that it has, as after vLLM's own
``load_inplace``: its further tokens are of the new weights.

A trained adapter is pinned in its slot, and vLLM's scheduler does not count it unless one of its requests is in the
batch. With as many other adapters in a batch as there are slots the worker finds none for the last, and the engine
ends. So one slot for each is taken from what the scheduler may use.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ... import around
from .seam import Ridden, Seam

#: How the names of samples' requests begin.
PREFIX = "tidegate-sample-"

#: vLLM's own field: less is sooner, and a user's request has 0.
PRIORITY = 1


class Riding:
    """The samples of one engine core."""

    def __init__(self, core: Any, seam: Seam) -> None:
        self._core, self._seam = core, seam
        self._serial = itertools.count(1)
        #: The last publication, by the adapter's number.
        self._published: dict[int, int] = {}
        self._publications = itertools.count(1)
        #: Adapters that are pinned.
        self._pinned = 0
        around.of_instance(core, "preprocess_add_request", self._preprocess)

    def reserve(self) -> bool:
        """Has no batch have more adapters than there are slots beside a pinned one. Before it is pinned.

        False while the requests that are running have more: ask again after a step. Raises ``ValueError`` where there
        is one slot.
        """
        scheduler, config = self._core.scheduler, self._core.vllm_config.lora_config
        left = 0 if config is None else config.max_loras - self._pinned - 1
        if left < 1:
            raise ValueError("a trained adapter needs a slot of its own, and users need one: raise --max-loras")
        used = {request.lora_request.lora_int_id for request in scheduler.running if request.lora_request}
        if len(used) > left:
            return False
        self._pinned += 1
        self._limit()
        return True

    def release(self) -> None:
        """One adapter less is pinned."""
        self._pinned -= 1
        self._limit()

    def _limit(self) -> None:
        config = self._core.vllm_config.lora_config
        if self._pinned:
            # The worker has the same object, and all of its slots.
            config = copy.copy(config)
            config.max_loras -= self._pinned
        self._core.scheduler.lora_config = config

    def published(self, number: int) -> None:
        """From now on requests for this adapter find nothing in the prefix cache that older weights left."""
        # No two adapters have the same one: another may have had this name.
        self._published[number] = next(self._publications)

    def keyed(self, lora: Any) -> Any:
        """An adapter as requests name it towards the prefix cache."""
        version = self._published.get(lora.lora_int_id, 0)
        if not version:
            return lora
        return msgspec.structs.replace(lora, lora_name=f"{lora.lora_name}@{version}")

    def _preprocess(self, original: Any, request: Any) -> Any:
        if request.lora_request is not None:
            request.lora_request = self.keyed(request.lora_request)
        return original(request)

    def salt(self, serial: int, version: int) -> str:
        """Never the same twice."""
        return f"tidegate sample {serial} of version {version}"

    def begin(self, tokens: Sequence[int], lora: Any, version: int) -> tuple[str, Ridden]:
        """Sends a sample for the adapter in the state that this version names; returns the request's name."""
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        serial = next(self._serial)
        name = f"{PREFIX}{serial}"
        request = EngineCoreRequest(
            request_id=name,
            prompt_token_ids=list(tokens),
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=lora,
            cache_salt=self.salt(serial, version),
            data_parallel_rank=None,
            priority=PRIORITY,
        )
        ridden = self._seam.expect(name, len(tokens))
        ridden.version = version
        try:
            self._core.add_request(*self._core.preprocess_add_request(request))
        except BaseException:
            self._seam.forget(name)
            raise
        return name, ridden

    def end(self, name: str) -> None:
        """Its backward pass is over, or it is not wanted any more."""
        from vllm.v1.request import RequestStatus

        if name in self._core.scheduler.requests:
            self._core.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        self._seam.forget(name)
