"""What serve.py runs on the GPU, by one of two backends.

`torch`: a decoder of Llama's shape with random weights in bf16, decode iterations captured as CUDA graphs,
one for each batch size. `spin`: kernels that spin for as long as published measurements say such an
iteration takes, by the driver API alone; it runs on the virtual GPU too and needs no PyTorch.
"""

import ctypes

BATCHES = (1, 2, 4, 8, 16, 32)

# layers, hidden, heads, key-value heads, feed-forward, vocabulary
SHAPES = {"1b": (16, 2048, 32, 8, 8192, 128256), "8b": (32, 4096, 32, 8, 14336, 128256)}


def padded(batch):
    return next(size for size in BATCHES if size >= batch)


class Spin:
    """Milliseconds of Llama-3.1-8B on an H200 (vLLM 0.24.0): prefill 1.30 + 0.0199 a token, decode 5.02 +
    0.0116 a request."""

    PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry tg_spin_ns(.param .u64 ns, .param .u64 tag)
{
.reg .u64 %a, %b, %c, %d;
.reg .pred %p;
ld.param.u64 %a, [ns];
mov.u64 %b, %globaltimer;
L1:
mov.u64 %c, %globaltimer;
sub.u64 %d, %c, %b;
setp.lt.u64 %p, %d, %a;
@%p bra L1;
ret;
}
"""

    def __init__(self, shape, device=0):
        self.scale = 1.0 if shape == "8b" else 0.2
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.kernel, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), self.PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"tg_spin_ns")
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def spin(self, ms):
        ns, tag = ctypes.c_uint64(int(ms * 1e6 * self.scale)), ctypes.c_uint64(1)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(ns), ctypes.addressof(tag))
        self.call("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, arguments, None)

    def prefill(self, tokens):
        # As an engine does: kernels, not one indivisible piece.
        for _ in range(8):
            self.spin((1.30 + 0.0199 * tokens) / 8)

    def decode(self, batch):
        self.spin(5.02 + 0.0116 * padded(batch))

    def wait(self):
        self.call("cuStreamSynchronize", self.stream)


class Torch:
    """A decoder with random weights. Attention reads a context of fixed length; what it says makes no sense,
    which does not matter to the GPU."""

    def __init__(self, shape, context=1024):
        import torch

        self.torch = torch
        # cuDNN's attention plans each new length on the host for some 50 ms, which no engine's kernels do.
        torch.backends.cuda.enable_cudnn_sdp(False)
        layers, hidden, heads, kv_heads, forward, vocabulary = SHAPES[shape]
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        width = (heads + 2 * kv_heads) * self.size

        def weight(rows, columns):
            return torch.randn(rows, columns, **kind) * columns**-0.5

        self.layers = [(weight(width, hidden), weight(hidden, hidden), weight(2 * forward, hidden),
                        weight(hidden, forward)) for _ in range(layers)]
        self.embedding = weight(vocabulary, hidden)
        most = BATCHES[-1]
        self.keys = torch.randn(most, kv_heads, context, self.size, **kind)
        self.values = torch.randn(most, kv_heads, context, self.size, **kind)
        self.tokens = torch.zeros(most, dtype=torch.long, device="cuda")
        self.stream = torch.cuda.Stream()
        self.graphs = {}

    def layer(self, x, weights, attend):
        torch, functional = self.torch, self.torch.nn.functional
        qkv, out, up, down = weights
        normal = functional.rms_norm(x, (x.shape[-1],))
        q, k, v = functional.linear(normal, qkv).split(
            [self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size], dim=-1)
        x = x + functional.linear(attend(q, k, v), out)
        gate, value = functional.linear(functional.rms_norm(x, (x.shape[-1],)), up).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * value, down)

    def attention(self, q, k, v, **how):
        return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **how)

    def one_iteration(self, batch):
        def attend(q, _k, _v):
            q = q.view(batch, self.heads, 1, self.size)
            return self.attention(q, self.keys[:batch], self.values[:batch]).reshape(batch, -1)

        x = self.embedding[self.tokens[:batch]]
        for weights in self.layers:
            x = self.layer(x, weights, attend)
        self.tokens[:batch] = (x @ self.embedding.T).argmax(-1)

    def capture(self):
        torch = self.torch
        with torch.no_grad(), torch.cuda.stream(self.stream):
            for batch in BATCHES:
                for _ in range(2):
                    self.one_iteration(batch)
                self.stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=self.stream):
                    self.one_iteration(batch)
                self.graphs[batch] = graph
        torch.cuda.synchronize()

    def prefill(self, tokens):
        torch = self.torch

        def attend(q, k, v):
            q = q.view(1, tokens, self.heads, self.size).transpose(1, 2)
            k = k.view(1, tokens, self.kv_heads, self.size).transpose(1, 2)
            v = v.view(1, tokens, self.kv_heads, self.size).transpose(1, 2)
            return self.attention(q, k, v, is_causal=True).transpose(1, 2).reshape(tokens, -1)

        with torch.no_grad(), torch.cuda.stream(self.stream):
            x = self.embedding[:tokens]
            for weights in self.layers:
                x = self.layer(x, weights, attend)
            (x[-1:] @ self.embedding.T).argmax(-1)

    def decode(self, batch):
        if not self.graphs:
            self.capture()
        with self.torch.cuda.stream(self.stream):
            self.graphs[padded(batch)].replay()

    def wait(self):
        self.stream.synchronize()


def block():
    """From now on the host sleeps where it waits for the first GPU, and does not poll: CU_CTX_SCHED_BLOCKING_SYNC of
    the primary context, which nobody has made yet."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    for name, *arguments in (("cuInit", 0), ("cuDeviceGet", ctypes.byref(device), 0),
                             ("cuDevicePrimaryCtxSetFlags_v2", device, 4)):
        code = getattr(cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")


def make(backend, shape, device=0):
    return Torch(shape) if backend == "torch" else Spin(shape, device)
