//! Harness: a virtual GPU, an agent and unmodified programs, all as real processes.
//!
//! [`Node`] starts a device process and, if asked, an agent in a directory of its own. [`Online`] and [`Offline`]
//! run the programs of `apps/` with the library preloaded, as a user
//! would. Everything a value started ends with it, also when a test fails.
//!
//! Nothing here knows time or luck: [`wait_for`] asks until something is so and fails with what it
//! waited for.

pub mod attacks;
pub mod cgroup;
pub mod clock;
pub mod elastic;
pub mod engine;
pub mod explain;
pub mod exposition;
pub mod figures;
pub mod judge;
pub mod kubernetes;
pub mod limits;
pub mod manager;
pub mod memory;
pub mod online;
pub mod operators;
pub mod pair;
pub mod peer;
pub mod personality;
pub mod placements;
pub mod plan;
pub mod real_leases;
pub mod real_reclaims;
pub mod reclaims;
pub mod restarts;
pub mod schedules;
pub mod shares;
pub mod slurm;
pub mod stand_in;
pub mod strangers;
pub mod sweep;
pub mod tensors;
pub mod turns;
pub mod view;
pub mod watch;

pub use clock::{DEADLINE, monotonic_ns, wait_for, wait_until};
pub use online::{HalfOfTheTime, Offline, Online, Request};

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Whether agents that start from now on record their decisions ([`Node::recording`]).
pub static RECORDS: AtomicBool = AtomicBool::new(false);

/// The directory with the built binaries and preload libraries.
///
/// Cargo does not build a cdylib or another package's binary for a test, so the harness asks for
/// it; the build is a no-op when `cargo build --workspace` has just made it.
pub static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let exe = std::env::current_exe().expect("a test runs from a file");
    if let Some(dir) = exe.parent().filter(|dir| is_installed(dir)) {
        return dir.to_path_buf();
    }
    let dir = exe
        .ancestors()
        .find(|dir| dir.join("deps").is_dir() || dir.file_name() == Some(OsStr::new("debug")))
        .expect("target/<profile>/...")
        .to_path_buf();
    if std::env::var_os("TIDEGATE_TESTS_BUILT").is_none() {
        let status = Command::new(CARGO)
            .args(["build", "-q", "--locked", "--workspace", "--lib", "--bins"])
            .args((dir.file_name() == Some(OsStr::new("release"))).then_some("--release"))
            .env("CARGO_TARGET_DIR", dir.parent().expect("target/<profile>"))
            .current_dir(SOURCES)
            .status()
            .expect("cargo is on the machine that runs the tests");
        assert!(status.success(), "the workspace does not build");
    }
    let soname = dir.join("libcuda.so.1");
    // Another test process may make the link at the same moment; either one serves.
    let _ = std::os::unix::fs::symlink("libcuda.so", &soname);
    assert!(soname.exists(), "{} is missing", soname.display());
    dir
});

/// Where the sources are. A released demo has its programs beside it, and names no directory of the machine that built it.
const SOURCES: &str = match option_env!("TIDEGATE_RELEASE") {
    None => env!("CARGO_MANIFEST_DIR"),
    Some(_) => "",
};
/// What builds them.
const CARGO: &str = match (option_env!("TIDEGATE_RELEASE"), option_env!("CARGO")) {
    (None, Some(cargo)) => cargo,
    _ => "cargo",
};

/// A file of the build, e.g. `libtidegate.so`: that one may be another, as it is shipped, which
/// `TIDEGATE_TESTS_LIBRARY` names.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    let path = match std::env::var_os("TIDEGATE_TESTS_LIBRARY") {
        Some(shipped) if name == "libtidegate.so" => shipped.into(),
        _ => BUILT.join(name),
    };
    assert!(path.exists(), "{} is not built", path.display());
    path
}

/// Whether this is the demo as the package installs it: with its programs compiled, and nothing to build.
fn is_installed(dir: &Path) -> bool {
    dir.join("apps/installed").exists()
}

/// Compiles `apps/<name>.c` with `flags` appended, once a process; returns the program.
///
/// # Panics
/// When it does not compile.
#[must_use]
pub fn compile(name: &str, flags: &[&str]) -> PathBuf {
    static ONCE: AtomicU32 = AtomicU32::new(0);
    static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let source = Path::new(SOURCES).join(format!("apps/{name}.c"));
    let apps = BUILT.join("apps");
    let label: String = flags
        .concat()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    let program = apps.join(format!("{name}{label}"));
    if is_installed(&BUILT) {
        assert!(program.exists(), "{} is not installed", program.display());
        return program;
    }
    std::fs::create_dir_all(&apps).expect("the target directory is writable");
    let made = || MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if made().contains(&program) {
        return program;
    }
    let unique = format!(
        "{}.{}",
        std::process::id(),
        ONCE.fetch_add(1, Ordering::Relaxed)
    );
    let fresh = apps.join(format!("{name}{label}.{unique}"));
    let output = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&fresh)
        .arg(&source)
        .arg("-L")
        .arg(&*BUILT)
        .args(flags)
        .args(if flags.contains(&"-static") {
            &[][..]
        } else {
            &["-ldl", "-lm"][..]
        })
        .output()
        .expect("cc is installed");
    assert!(
        output.status.success(),
        "{name}.c: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&fresh, &program).expect("the target directory is writable");
    made().insert(program.clone());
    program
}

/// Compiles `apps/<driver>.c` as `libcuda.so.1` in `dir`, and `apps/<program>.c` against it; the
/// program.
///
/// # Panics
/// When either does not compile.
#[must_use]
pub fn compile_driver(dir: &Path, driver: &str, program: &str) -> PathBuf {
    std::fs::create_dir_all(dir).expect("the temporary directory is writable");
    let cc = |source: &str, output: &str, flags: &[&str]| {
        let output = dir.join(output);
        let status = Command::new("cc")
            .args(["-O2", "-Wall", "-Wextra", "-pthread", "-o"])
            .arg(&output)
            .arg(Path::new(SOURCES).join(format!("apps/{source}.c")))
            .arg(format!("-L{}", dir.display()))
            .args(flags)
            .status()
            .expect("cc is installed");
        assert!(status.success(), "{source} does not compile");
        output
    };
    let soname = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    cc(driver, "libcuda.so.1", &soname);
    cc(program, program, &["-l:libcuda.so.1", "-ldl"])
}

/// A process that ends with this value.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub child: Child,
    name: String,
}

impl Running {
    /// Starts `command`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start(name: &str, command: &mut Command) -> Self {
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        Self::of(name, child)
    }

    /// A process that was started already.
    #[must_use]
    pub fn of(name: &str, child: Child) -> Self {
        Self {
            child,
            name: name.to_owned(),
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal`.
    pub fn signal(&self, signal: i32) {
        // SAFETY: plain system call; the child is ours and not yet waited for, so the id is its own.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    /// Stops it, and waits until all its threads have: they go on for a while after the signal was sent.
    ///
    /// # Panics
    /// When it has ended.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        let pid = self.pid().cast_signed();
        // SAFETY: `status` is valid to write to; a child of ours, not waited for by anyone else now.
        let stopped = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert_eq!(stopped, pid, "a child can be waited for");
        assert!(libc::WIFSTOPPED(status), "it stopped");
    }

    /// Waits for its end and returns what it wrote to the pipes it was given.
    ///
    /// # Panics
    /// When it does not end before the deadline.
    #[track_caller]
    pub fn finish(mut self) -> Output {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let drain = |pipe: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                if let Some(mut pipe) = pipe {
                    let _ = pipe.read_to_end(&mut bytes);
                }
                bytes
            })
        };
        let out = drain(stdout.map(|pipe| Box::new(pipe) as _));
        let err = drain(stderr.map(|pipe| Box::new(pipe) as _));
        let limit = clock::DEADLINE * 2;
        let status = wait_until(limit, || {
            self.child.try_wait().expect("a child can be waited for")
        });
        let Some(status) = status else {
            let _ = self.child.kill();
            let (out, err) = (
                out.join().unwrap_or_default(),
                err.join().unwrap_or_default(),
            );
            panic!(
                "{} did not end in {limit:?}; it wrote\n{}\n{}",
                self.name,
                String::from_utf8_lossy(&out),
                String::from_utf8_lossy(&err)
            );
        };
        Output {
            status,
            stdout: out.join().unwrap_or_default(),
            stderr: err.join().unwrap_or_default(),
        }
    }

    /// As [`Self::finish`], and the process must have succeeded; returns its standard output.
    ///
    /// # Panics
    /// When it failed.
    #[track_caller]
    pub fn succeed(self) -> String {
        let name = self.name.clone();
        let output = self.finish();
        assert!(
            output.status.success(),
            "{name}: {:?} signal {:?}\n{}\n{}",
            output.status.code(),
            output.status.signal(),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that is gone with this value, unless `TIDEGATE_TESTS_KEEP` is set.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// A fresh directory under the system's temporary directory.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // Short: a Unix socket's path has 107 bytes.
        let path = std::env::temp_dir().join(format!("tg-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for TempDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if std::env::var_os("TIDEGATE_TESTS_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Puts a device process ahead of all ordinary ones, as a GPU and a kernel are: programs that use the processor then do
/// not keep it from working. Whether that is allowed here.
#[must_use]
pub fn ahead_of_programs(device: &Running) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", device.pid()));
    let named = tasks.into_iter().flatten().flatten();
    let threads: Vec<i32> = named
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect();
    let lowest = libc::sched_param { sched_priority: 1 };
    let ahead = |thread: &i32| {
        // SAFETY: a plain system call; the parameters live.
        unsafe { libc::sched_setscheduler(*thread, libc::SCHED_FIFO, &raw const lowest) == 0 }
    };
    !threads.is_empty() && threads.iter().all(ahead)
}

/// A device process in this directory that listens.
#[track_caller]
fn start_device(vgpu: &Path, args: &[&str]) -> Running {
    let mut command = Command::new(built("vgpud"));
    command.arg("--dir").arg(vgpu).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut device = Running::start("vgpud", &mut command);
    let mut line = String::new();
    let pipe = device.child.stdout.as_mut().expect("stdout is piped");
    BufReader::new(pipe)
        .read_line(&mut line)
        .expect("a pipe can be read");
    assert_eq!(line.trim(), "ready", "vgpud says it listens");
    device
}

/// A virtual GPU and, once started, an agent.
#[derive(Debug)]
pub struct Node {
    /// The agent, while there is one.
    pub agent: Option<Running>,
    /// The device process.
    pub device: Running,
    /// How its agents try the channel levels: "calls" is quick, and only they use the device.
    pub self_test: &'static str,
    /// The library of the programs to come, where it is not the one that was built.
    pub library: Option<PathBuf>,
    config: PathBuf,
    dir: TempDir,
}

/// Configuration most tests run with: whoever runs the tests may name its own role.
pub const TRUSTING: &str = "[identity]\ntrust_env_uids = [\"self\"]\n";

impl Node {
    /// Starts a device process with `args` (as of `vgpud --help`), without an agent. It plays the driver that
    /// `TIDEGATE_TESTS_DRIVER` names, where they name none; of one that is not known the agents try the levels on work.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    #[must_use]
    pub fn device_only(args: &[&str]) -> Self {
        let dir = TempDir::new();
        let vgpu = dir.path().join("gpu");
        std::fs::create_dir_all(&vgpu).expect("the temporary directory is writable");
        std::fs::create_dir_all(dir.path().join("run"))
            .expect("the temporary directory is writable");
        let named = std::env::var("TIDEGATE_TESTS_DRIVER").ok();
        let named = named.filter(|_| !args.contains(&"--driver"));
        let mut all = args.to_vec();
        if let Some(driver) = &named {
            all.extend(["--driver", driver]);
        }
        let device = start_device(&vgpu, &all);
        let config = dir.path().join("agent.toml");
        Self {
            agent: None,
            device,
            self_test: if named.is_some() { "full" } else { "calls" },
            library: None,
            config,
            dir,
        }
    }

    /// The driver is unloaded: its process is gone, and what it left.
    ///
    /// # Panics
    /// When it cannot be.
    pub fn unload_driver(&mut self) {
        let _ = self.device.child.kill();
        let _ = self.device.child.wait();
        let vgpu = self.vgpu_dir();
        std::fs::remove_dir_all(&vgpu).expect("it is a test's own");
        std::fs::create_dir(&vgpu).expect("the temporary directory is writable");
    }

    /// A driver is loaded after [`Self::unload_driver`].
    #[track_caller]
    pub fn load_driver(&mut self, args: &[&str]) {
        self.device = start_device(&self.vgpu_dir(), args);
    }

    /// A device process and an agent with `config` as its agent.toml.
    #[track_caller]
    #[must_use]
    pub fn new(device: &[&str], config: &str) -> Self {
        let mut node = Self::device_only(device);
        node.start_agent(config);
        node
    }

    /// Starts the agent (again) and waits until it serves.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn start_agent(&mut self, config: &str) {
        self.start_agent_by(config, |command| command);
    }

    /// As [`Self::start_agent`], by another command that runs the one it is given.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn start_agent_by(&mut self, config: &str, by: impl FnOnce(Command) -> Command) {
        let mut command = by(self.agent_command_with(config));
        let mut agent = Running::start("tidegate-agent", &mut command);
        let served = self.until_served(&mut agent);
        assert!(
            matches!(served, Some(Ok(()))),
            "the agent does not serve ({served:?}); its log:\n{}",
            std::fs::read_to_string(self.agent_log()).unwrap_or_default()
        );
        self.agent = Some(agent);
    }

    /// Starts a second agent that asks the first to hand over, and waits until it serves; the first.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn replace_agent(&mut self, config: &str) -> Running {
        let mut command = self.agent_command_with(config);
        command.arg("--replace");
        let mut first = self.agent.take().expect("there is an agent to replace");
        let mut agent = Running::start("tidegate-agent", &mut command);
        let ended = wait_until(clock::DEADLINE, || first.child.try_wait().ok().flatten());
        assert!(ended.is_some(), "the first agent does not step aside");
        let served = self.until_served(&mut agent);
        assert!(
            matches!(served, Some(Ok(()))),
            "the successor does not serve ({served:?}); its log:\n{}",
            std::fs::read_to_string(self.agent_log()).unwrap_or_default()
        );
        self.agent = Some(agent);
        first
    }

    fn until_served(&self, agent: &mut Running) -> Option<Result<(), std::process::ExitStatus>> {
        wait_until(clock::DEADLINE, || {
            if let Ok(Some(status)) = agent.child.try_wait() {
                return Some(Err(status));
            }
            self.tidegate(&["status", "--output", "json"])
                .status
                .success()
                .then_some(Ok(()))
        })
    }

    fn agent_command_with(&self, config: &str) -> Command {
        std::fs::write(&self.config, config).expect("the temporary directory is writable");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.agent_log())
            .expect("the temporary directory is writable");
        let mut command = self.agent_command();
        command.arg("--config").arg(&self.config).stderr(log);
        if RECORDS.load(Ordering::Relaxed) {
            command
                .arg("--record")
                .arg(self.recording(self.recordings()));
        }
        command
    }

    /// An agent of this node that is not started yet, without a configuration file.
    #[must_use]
    pub fn agent_command(&self) -> Command {
        let mut command = Command::new(built("tidegate-agent"));
        command
            .arg("--device")
            .arg(format!("virtual={}", self.vgpu_dir().display()))
            .env("TIDEGATE_RUN_DIR", self.run_dir())
            .env("TIDEGATE_CHANNEL__SELF_TEST", self.self_test)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if is_installed(&BUILT) {
            // The agent itself lies elsewhere.
            command.arg("--vgpu-shim").arg(built("libvgpu_rm.so"));
        }
        command
    }

    /// The decisions of this node's agent number `agent`, from 0, where they are recorded.
    #[must_use]
    pub fn recording(&self, agent: usize) -> PathBuf {
        self.dir.path().join(format!("decisions-{agent}"))
    }

    /// How many agents' decisions are recorded.
    #[must_use]
    pub fn recordings(&self) -> usize {
        let has = |agent: &usize| self.recording(*agent).exists();
        (0..).take_while(has).count()
    }

    /// Where the agent's log goes.
    #[must_use]
    pub fn agent_log(&self) -> PathBuf {
        self.dir.path().join("agent.log")
    }

    /// The device process' directory (`TIDEGATE_VGPU_DIR`).
    #[must_use]
    pub fn vgpu_dir(&self) -> PathBuf {
        self.dir.path().join("gpu")
    }

    /// The agent's sockets (`TIDEGATE_RUN_DIR`).
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// A directory for files of the test.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs the command line tool.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn tidegate(&self, args: &[&str]) -> Output {
        let mut command = self.tidegate_command(args);
        command.output().expect("tidegate starts")
    }

    /// The command line tool, to be started.
    #[must_use]
    pub fn tidegate_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(built("tidegate"));
        command
            .args(args)
            .env("TIDEGATE_RUN_DIR", self.run_dir())
            .env("TIDEGATE_VGPU_DIR", self.vgpu_dir())
            .stdin(Stdio::null());
        command
    }

    /// `command` as it runs on this node: the virtual driver, its shim, and no library of ours.
    #[must_use]
    pub fn plain(&self, command: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(command);
        command
            .env("TIDEGATE_VGPU_DIR", self.vgpu_dir())
            .env("TIDEGATE_RUN_DIR", self.run_dir())
            .env("LD_LIBRARY_PATH", &*BUILT)
            .env("LD_PRELOAD", built("libvgpu_rm.so"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `command` as [`Self::plain`], with the library preloaded and `role` wished for.
    #[must_use]
    pub fn preloaded(&self, command: impl AsRef<OsStr>, role: &str) -> Command {
        let mut command = self.plain(command);
        let library = self.library.clone();
        let mut preload = library
            .unwrap_or_else(|| built("libtidegate.so"))
            .into_os_string();
        preload.push(":");
        preload.push(built("libvgpu_rm.so"));
        command.env("LD_PRELOAD", preload);
        if !role.is_empty() {
            command.env("TIDEGATE_ROLE", role);
        }
        command
    }

    /// `program`, a source of the tests, as [`Self::preloaded`], in a sandbox that lets no descriptor pass.
    #[must_use]
    pub fn sandboxed(&self, program: &str, role: &str) -> Command {
        let mut command = self.preloaded(compile(program, &["-lcuda"]), role);
        let libraries = [
            compile("sandbox", &["-shared", "-fPIC"]),
            built("libtidegate.so"),
            built("libvgpu_rm.so"),
        ];
        let preload = libraries.map(PathBuf::into_os_string).join(OsStr::new(":"));
        command.env("LD_PRELOAD", preload);
        command
    }
}
