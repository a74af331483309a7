"""What the model runners call of a GPU, on a device that has one thread and no streams."""

from __future__ import annotations

from typing import Any

import torch


class Stream:
    """Work is done when the call returns."""

    device = torch.device("cpu")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As torch's."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing was changed."""

    def query(self) -> bool:
        return True

    def nothing(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to wait for."""

    wait_stream = wait_event = record_event = synchronize = wait = record = nothing


def nothing(*args: Any, **kwargs: Any) -> None:
    """In place of what a device would do later."""


def stand_in() -> None:
    """Puts these in the places of CUDA's, for the whole process: vLLM's second runner calls them all the time."""
    torch.Event = Stream  # type: ignore[misc, assignment]
    torch.cuda.Event = torch.cuda.Stream = Stream  # type: ignore[misc, assignment]
    torch.cuda.current_stream = torch.cuda.stream = lambda *args, **kwargs: Stream()  # type: ignore[assignment]
    torch.cuda.set_stream = nothing
    torch.accelerator.synchronize = torch.accelerator.empty_cache = nothing
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self  # type: ignore[method-assign, assignment]
    torch.Tensor.record_stream = nothing  # type: ignore[method-assign]
    from vllm.v1.worker.gpu import buffer_utils

    if not hasattr(buffer_utils, "NonUvaBuffer"):
        buffer_utils.UvaBuffer = Buffer


class Buffer:
    """Host memory that the device reads in place: all of it is."""

    def __init__(self, size: Any, dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()
        self.uva = self.cpu


def slots(starts: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, size: int, into: torch.Tensor) -> None:
    """Where each row's keys and values go in the paged cache; rows that pad a pass go nowhere."""
    starts = starts.long()
    rows = int(starts[-1])
    request = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff())
    at = positions[:rows].long()
    into[:rows] = table[request, at // size].long() * size + at % size
    into[rows:] = -1


def first_kernel() -> None:
    """The one kernel of the first runner's that serving needs, in the way of the version that is installed."""
    import vllm.v1.worker.block_table as block_table

    if hasattr(block_table, "ComputeSlotMappingKernel"):
        from vllm.triton_utils.dispatcher import register_kernels

        def by_order(
            rows: int,
            most: int,
            starts: torch.Tensor,
            positions: torch.Tensor,
            table: torch.Tensor,
            stride: int,
            into: torch.Tensor,
            size: int,
            *others: Any,
            **more: Any,
        ) -> None:
            slots(starts, positions, table, size, into)

        register_kernels({"vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": by_order})
        return

    class Kernel:
        """Called as a Triton kernel is."""

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            requests = grid[0] - 1

            def launch(
                rows: int,
                most: int,
                starts: torch.Tensor,
                positions: torch.Tensor,
                table: torch.Tensor,
                stride: int,
                size: int,
                into: torch.Tensor,
                **others: Any,
            ) -> None:
                slots(starts[: requests + 1], positions, table, size, into)

            return launch

    block_table._compute_slot_mapping_kernel = Kernel()
