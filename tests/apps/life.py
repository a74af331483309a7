"""One way a Python process lives and ends with a CUDA context in it. The first argument names the way. Prints "ok"."""
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry tg_spin_ns(.param .u64 ns, .param .u64 tag)
{
ret;
}
"""


class Gpu:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, module, self.spin = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.must("cuInit", 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.must("cuCtxSetCurrent", context)
        self.must("cuModuleLoadData", ctypes.byref(module), PTX)
        self.must("cuModuleGetFunction", ctypes.byref(self.spin), module, b"tg_spin_ns")

    def must(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result:
            sys.exit(f"{name}: {result}")

    def launch(self, count=5):
        ns, tag = ctypes.c_uint64(1000), ctypes.c_uint64(1)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(ns), ctypes.addressof(tag))
        for _ in range(count):
            self.must("cuLaunchKernel", self.spin, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        self.must("cuCtxSynchronize")


def in_child(_=None):
    Gpu().launch()
    return os.getpid()


def library_threads():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum(name.startswith("tidegate") for name in names)


def fork():
    Gpu().launch()
    child = os.fork()
    if child == 0:
        os._exit(library_threads())
    assert os.waitpid(child, 0)[1] == 0


def fork_first():
    child = os.fork()
    if child == 0:
        in_child()
        os._exit(0)
    Gpu().launch()
    assert os.waitpid(child, 0)[1] == 0


def fork_under_threads():
    gpu, stop = Gpu(), threading.Event()

    def work():
        gpu.must("cuCtxSetCurrent", context)
        while not stop.is_set():
            gpu.launch(1)

    context = ctypes.c_void_p()
    gpu.must("cuCtxGetCurrent", ctypes.byref(context))
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    for thread in threads:
        thread.join()


def pool(method):
    Gpu().launch()
    with multiprocessing.get_context(method).Pool(2) as workers:
        function = os.getpgid if method == "fork" else in_child
        assert len(workers.map(function, [0, 0, 0])) == 3


def spawned():
    pool("spawn")


def forkserver():
    pool("forkserver")


def forked_pool():
    pool("fork")


def run_program():
    Gpu().launch()
    assert subprocess.run(["/bin/echo", "a"], capture_output=True).stdout == b"a\n"
    os.posix_spawn("/bin/true", ["true"], {})
    os.wait()


def replace():
    Gpu().launch()
    os.execv(sys.executable, [sys.executable, "-c", "print('ok')"])


def leave():
    Gpu().launch()
    print("ok", flush=True)
    os._exit(0)


def signalled():
    gpu, seen = Gpu(), []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread()))
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGUSR1)
        gpu.launch(1)
    assert seen and all(thread is threading.main_thread() for thread in seen)


def closes_everything():
    Gpu().launch()
    time.sleep(0.05)
    os.closerange(3, 1024)
    with tempfile.TemporaryDirectory() as directory:
        names = [f"{directory}/{n}" for n in range(12)]
        files = [open(name, "w+") for name in names]
        for n, file in enumerate(files):
            file.write(str(n))
            file.flush()
        time.sleep(0.3)
        for n, (name, file) in enumerate(zip(names, files)):
            assert open(name).read() == str(n), "another wrote into a file of the application's"
            assert os.fstat(file.fileno()).st_ino == os.stat(name).st_ino, "a descriptor is another's"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("ok", flush=True)
