"""Ways a Python process lives and ends with a CUDA context in it: `life.py WAY ROUNDS`.

Prints "ok" and the kinds of descriptors it ended with, which must be those of a run without the library.
"""
import ctypes
import multiprocessing
import os
import re
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
        self.context, module, self.spin = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.must("cuInit", 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.must("cuCtxSetCurrent", self.context)
        self.must("cuModuleLoadData", ctypes.byref(module), PTX)
        self.must("cuModuleGetFunction", ctypes.byref(self.spin), module, b"tg_spin_ns")

    def must(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result:
            sys.exit(f"{name}: {result}")

    def try_launch(self):
        ns, tag = ctypes.c_uint64(1000), ctypes.c_uint64(1)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(ns), ctypes.addressof(tag))
        return self.cuda.cuLaunchKernel(self.spin, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)

    def launch(self, count=5):
        for _ in range(count):
            result = self.try_launch()
            if result:
                sys.exit(f"cuLaunchKernel: {result}")
        self.must("cuCtxSynchronize")


def in_child(_=None):
    Gpu().launch()
    return os.getpid()


def descriptors():
    """What each open descriptor is, without the numbers that differ from run to run."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(re.sub(r"[0-9]+", "", os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:
            pass  # The listing's own, or one a thread of the driver had for the length of a call.
    return sorted(links)


def settled():
    """The fewest descriptors seen in a while: those that nobody had for the length of a call."""
    return min((descriptors() for _ in range(20)), key=len)


def library_threads():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum(name.startswith("tidegate") for name in names)


def forked(child):
    """Runs `child` in a fork, which ends with what it returns; the pid."""
    pid = os.fork()
    if pid == 0:
        try:
            code = child() or 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
            code = 99
        os._exit(code)
    return pid


def ended(*children):
    for child in children:
        status = os.waitpid(child, 0)[1]
        assert status == 0, f"a child ended with {status:#x}"


def fork(rounds):
    gpu = Gpu()
    for _ in range(rounds):
        gpu.launch()
        before = len(settled())
        ended(forked(lambda: library_threads() or len(settled()) > before))


def fork_first(rounds):
    children = [forked(lambda: in_child() and 0) for _ in range(rounds)]
    Gpu().launch()
    ended(*children)


def fork_under_threads(rounds):
    gpu, stop = Gpu(), threading.Event()

    def work():
        gpu.must("cuCtxSetCurrent", gpu.context)
        while not stop.is_set():
            gpu.launch(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(rounds):
        ended(forked(lambda: 0))
    stop.set()
    for thread in threads:
        thread.join()


def pool(method, function, rounds):
    Gpu().launch()
    with multiprocessing.get_context(method).Pool(2, maxtasksperchild=1) as workers:
        assert len(workers.map(function, [0] * rounds, chunksize=1)) == rounds


def spawned(rounds):
    pool("spawn", in_child, rounds)


def forkserver(rounds):
    pool("forkserver", in_child, rounds)


def forked_pool(rounds):
    pool("fork", os.getpgid, rounds)


def run_program(rounds):
    # Whatever is open over exec, ls sees.
    def inherited():
        seen = subprocess.run(["/bin/ls", "/proc/self/fd"], capture_output=True, close_fds=False)
        return seen.stdout, seen.stderr

    before, gpu = inherited(), Gpu()
    for _ in range(rounds):
        gpu.launch(1)
        assert inherited() == before
        os.posix_spawn("/bin/true", ["true"], {})
        assert os.wait()[1] == 0


def replace(rounds):
    before = os.environ.setdefault("LIFE_BEFORE", repr(descriptors()))
    assert repr(descriptors()) == before, "a descriptor came over exec"
    Gpu().launch()
    if rounds > 1:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], str(rounds - 1)])


def leave(rounds):
    for _ in range(rounds):
        ended(forked(lambda: Gpu().launch()))


def signalled(rounds):
    gpu, seen = Gpu(), []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread()))
    signal.signal(signal.SIGALRM, lambda *_: seen.append(threading.current_thread()))
    for number in signal.SIGUSR1, signal.SIGALRM:
        signal.siginterrupt(number, False)  # Else they end a launch that waits, and it says so.
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    for _ in range(rounds):
        os.kill(os.getpid(), signal.SIGUSR1)
        gpu.launch(3)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(seen) >= rounds and all(thread is threading.main_thread() for thread in seen)


def interrupted(_):
    gpu = Gpu()
    print("launches", flush=True)
    try:
        gpu.try_launch()
        print("the launch returned", flush=True)
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)


def terminated(_):
    gpu = Gpu()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    print("launches", flush=True)
    gpu.try_launch()
    print("the launch returned", flush=True)


def restarted(_):
    gpu, seen = Gpu(), []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    signal.siginterrupt(signal.SIGUSR1, False)
    # The C handler of a Python writes the signal's number here: 10, a line's end.
    os.set_blocking(1, False)
    signal.set_wakeup_fd(1)
    print("launches", flush=True)
    print(gpu.try_launch(), len(seen), flush=True)


def close_everything():
    Gpu().launch()
    time.sleep(0.05)  # The library attaches meanwhile, or has not begun to: both must do.
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


def closes_everything(rounds):
    for _ in range(0, rounds, 10):
        ended(*[forked(close_everything) for _ in range(10)])


def serves(_):
    gpu = Gpu()
    gpu.launch()
    print("serves", flush=True)
    while sys.stdin.readline():
        gpu.launch()
        print("served", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](int(sys.argv[2]))
    print("ok", *settled(), flush=True)
