"""Words in the pages of a KV cache, by kernels: what both engines' played workers keep there and fold into tokens."""

import ctypes
from pathlib import Path

import torch

MASK = (1 << 64) - 1
SEED = 12345
KERNELS = (Path(__file__).parents[3] / "apps/kv.h").read_text(encoding="utf-8")
#: Most words that the steps under way may fold, and tokens that a step may sample.
WORDS, SAMPLED = 1 << 20, 1024
#: Launches between two waits. There is one a token here, where a model has hundreds a step however many tokens it
#: is of: a thread that finds the driver's queue of 1,024 full waits inside the driver, and a model's seldom does.
AHEAD = 256


def mix(a, b):
    x = (a ^ b) * 0x9E3779B97F4A7C15 & MASK
    return x ^ (x >> 29)


def value(position, token):
    return mix(mix(SEED, position), token)


def word(folded):
    return 1000 + folded % 100000


def zeros(gpu):
    """torch.zeros, of device memory: zero at birth, and not touched until a kernel does."""

    def allocate(size, dtype, device):
        shape = (size,) if isinstance(size, int) else tuple(size)
        count = dtype.itemsize
        for length in shape:
            count *= length
        at = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(count))
        return torch.frombuffer((ctypes.c_int8 * count).from_address(at.value), dtype=dtype).view(shape)

    return allocate


def pinned(gpu, words):
    """Host memory that is copied to and from without the calling thread waiting, as the engines' runners have it."""
    at = ctypes.c_void_p()
    gpu.call("cuMemAllocHost_v2", ctypes.byref(at), ctypes.c_size_t(8 * words))
    return (ctypes.c_uint64 * words).from_address(at.value)


class Words:
    """The kernels, and the tables that they read: one step's at a time."""

    def __init__(self, gpu):
        self.gpu = gpu
        text = KERNELS.split("KV_PTX[] =", 1)[1].split(";\n\nstruct", 1)[0]
        module = ctypes.c_void_p()
        gpu.call("cuModuleLoadData", ctypes.byref(module), _c_strings(text))
        self.store, self.token = ctypes.c_void_p(), ctypes.c_void_p()
        gpu.call("cuModuleGetFunction", ctypes.byref(self.store), module, b"tg_kv_store")
        gpu.call("cuModuleGetFunction", ctypes.byref(self.token), module, b"tg_kv_token")
        self.table, self.out = ctypes.c_uint64(), ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(self.table), ctypes.c_size_t(8 * WORDS))
        gpu.call("cuMemAlloc_v2", ctypes.byref(self.out), ctypes.c_size_t(8 * SAMPLED))
        self.words, self.folded = pinned(gpu, WORDS), pinned(gpu, SAMPLED)

    def at(self, index):
        """Where in the table the word of this number is."""
        return self.table.value + 8 * index

    def answer(self, index):
        """Where the answer of this number goes."""
        return self.out.value + 8 * index

    def send(self, table):
        """The table is there for what is launched from now on."""
        self.words[: len(table)] = table
        size = ctypes.c_size_t(8 * len(table))
        self.gpu.call("cuMemcpyHtoDAsync_v2", self.table, self.words, size, self.gpu.stream)

    def run(self, launches, answers):
        """Launches kernels, and has so many answers come to ``folded``."""
        for nth, (kernel, *arguments) in enumerate(launches, 1):
            values = [ctypes.c_uint64(argument) for argument in arguments]
            pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            self.gpu.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, self.gpu.stream, pointers, None)
            if nth % AHEAD == 0:
                self.gpu.wait()
        if answers:
            size = ctypes.c_size_t(8 * answers)
            self.gpu.call("cuMemcpyDtoHAsync_v2", self.folded, self.out, size, self.gpu.stream)


def _c_strings(text):
    """The bytes of adjacent string literals of C."""
    parts = text.split('"')[1::2]
    return "".join(parts).replace("\\n", "\n").encode() + b"\0"
