//! Containers get the library and the hook socket by the Container Device Interface, and nothing else of the
//! node: the programs in them are not changed, and what they run is gated as anywhere.
//!
//! podman and crun run them, without a container engine's daemon, in a mount namespace of their own. What the
//! driver's own specification would bring into a container (`libcuda.so.1`, the device files) is mounted beside.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_tests::view::process;
use tidegate_tests::watch::{wait_all, wait_finished, wait_open};
use tidegate_tests::{Node, Offline, Online, TRUSTING, built, compile, monotonic_ns, wait_for};

/// Where the virtual driver is in the container.
const DRIVER: &str = "/usr/lib/driver";
/// What `tidegate cdi` calls the library there.
const LIBRARY: &str = "/opt/tidegate/libtidegate.so";

/// A root file system with `programs`, the libraries they are linked with and nothing else.
fn root(node: &Node, programs: &[PathBuf]) -> PathBuf {
    let root = node.dir().join("root");
    for dir in [
        "bin",
        "dev",
        "etc",
        "proc",
        "sys",
        "tmp",
        "run/tidegate",
        "opt/tidegate",
        "usr/lib/driver",
    ] {
        std::fs::create_dir_all(root.join(dir)).expect("the temporary directory is writable");
    }
    let mut needed: Vec<PathBuf> = ["libtidegate.so", "libvgpu_rm.so", "libcuda.so.1"]
        .map(built)
        .into();
    for program in programs {
        let name = program.file_name().expect("it is a file");
        std::fs::copy(program, root.join("bin").join(name)).expect("the program is copied");
        needed.push(program.clone());
    }
    for file in needed {
        let ldd = Command::new("ldd")
            .arg(&file)
            .output()
            .expect("ldd comes with glibc");
        for line in String::from_utf8_lossy(&ldd.stdout).lines() {
            let path = line
                .split_whitespace()
                .find(|word| word.starts_with("/lib") || word.starts_with("/usr/lib"));
            if let Some(path) = path {
                let inside = root.join(path.trim_start_matches('/'));
                std::fs::create_dir_all(inside.parent().expect("it is in a directory"))
                    .expect("ours");
                std::fs::copy(path, &inside).expect("a library is copied");
            }
        }
    }
    root
}

/// Whether containers can run here; says why they cannot.
fn can_run() -> bool {
    let works = |name: &str, args: &[&str]| {
        Command::new(name)
            .args(args)
            .output()
            .is_ok_and(|run| run.status.success())
    };
    let missing = if !works("podman", &["--version"]) {
        "podman is not installed (Debian packages podman, crun)"
    } else if !works("crun", &["--version"]) {
        "crun is not installed (Debian package crun)"
    } else if !works("unshare", &["-m", "true"]) {
        "no mount namespace may be made"
    } else {
        return true;
    };
    eprintln!("SKIPPED: {missing}");
    false
}

/// A container engine of one node, and the specification it reads.
struct Engine<'a> {
    node: &'a Node,
    root: PathBuf,
    specification: PathBuf,
    shim: Shim,
}

/// How the virtual GPU's shim gets into the containers: by the way the library does not use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shim {
    /// By /etc/ld.so.preload; the library by LD_PRELOAD.
    File,
    /// Behind the library in /etc/ld.so.preload.
    Behind,
}

impl<'a> Engine<'a> {
    fn new(node: &'a Node, programs: &[PathBuf], shim: Shim, format: &str) -> Self {
        let root = root(node, programs);
        let list = node.dir().join("ld.so.preload");
        let shim_inside = format!("{DRIVER}/libvgpu_rm.so");
        let (listed, preload) = match shim {
            Shim::File => (format!("{shim_inside}\n"), "env"),
            Shim::Behind => (format!("{LIBRARY}\n{shim_inside}\n"), "file"),
        };
        std::fs::write(&list, listed).expect("ours");
        let specification = node.dir().join(format!("tidegate.{format}"));
        let library = built("libtidegate.so");
        let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
        let made = node.tidegate(&[
            "cdi",
            "generate",
            "--format",
            format,
            "--preload",
            preload,
            "--library",
            &text(&library),
            "--preload-file",
            &text(&list),
            "--output",
            &text(&specification),
        ]);
        assert!(made.status.success(), "{made:?}");
        Self {
            node,
            root,
            specification,
            shim,
        }
    }

    /// `podman run` of a program of the root, as the device `name`.
    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let script = self.node.dir().join(format!("run-{name}"));
        let mut file = std::fs::File::create(&script).expect("ours");
        // crun asks for cgroup2 alone; podman reads specifications in its two directories only.
        file.write_all(
            b"umount -R /sys/fs/cgroup 2> /dev/null; mount -t cgroup2 none /sys/fs/cgroup || exit 97\n\
              mkdir -p /etc/cdi && mount -t tmpfs none /etc/cdi && cp \"$1\" /etc/cdi/ || exit 97\n\
              shift\nexec \"$@\"\n",
        )
        .expect("ours");
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh"])
            .arg(&script)
            .arg(&self.specification);
        command.args([
            "podman",
            "--runtime",
            "crun",
            "--cgroup-manager=cgroupfs",
            "--root",
            &self.within("podman"),
            "--runroot",
            &self.within("podman-run"),
            "--tmpdir",
            &self.within("podman-tmp"),
            // The network, limits and cgroups of a container need rights that a test machine may lack.
            "run",
            "--rm",
            "-i",
            "--cgroups=disabled",
            "--network=none",
            "--log-driver=none",
            "--ulimit",
            "nofile=1024:4096",
            "--ulimit",
            "nproc=10000:10000",
        ]);
        let device = format!("tidegate.dev/colo={name}");
        command.args(["--device", &device]);
        // What stands for the driver's own specification.
        let mount = |host: &Path, inside: &str| format!("{}:{inside}", host.display());
        let gpu = self.node.vgpu_dir();
        for volume in [
            mount(&gpu, "/gpu"),
            mount(
                &built("libcuda.so.1").canonicalize().expect("built"),
                &format!("{DRIVER}/libcuda.so.1"),
            ),
            mount(&built("libvgpu_rm.so"), &format!("{DRIVER}/libvgpu_rm.so")),
        ] {
            command.args(["-v", &volume]);
        }
        if self.shim == Shim::File {
            command.args([
                "-v",
                &mount(&self.node.dir().join("ld.so.preload"), "/etc/ld.so.preload"),
            ]);
        }
        command.args([
            "-e",
            "TIDEGATE_VGPU_DIR=/gpu",
            "-e",
            &format!("LD_LIBRARY_PATH={DRIVER}"),
        ]);
        command.arg("--rootfs").arg(&self.root).args(arguments);
        command
    }

    fn within(&self, name: &str) -> String {
        self.node.dir().join(name).display().to_string()
    }
}

/// The process on this machine that runs `program` from inside a container of `engine`.
fn inside(engine: &Engine<'_>, program: &str) -> u32 {
    let wanted = format!("/bin/{program}\0");
    let mine = |pid: u32| {
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let text = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let there = text.starts_with(wanted.as_bytes());
        (there && namespace(&pid.to_string()) != namespace("self")).then_some(())?;
        process(engine.node, pid).map(|_| pid)
    };
    wait_for("the program in the container to attach", || {
        let entries = std::fs::read_dir("/proc").expect("proc is mounted");
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .find_map(mine)
    })
}

/// An unmodified program in a container is attached, gated for an unmodified online one in another, and ends
/// as it would.
#[track_caller]
fn gated_in_containers(shim: Shim, format: &str) {
    if !can_run() {
        return;
    }
    let node = Node::new(
        &["--gpus", "1"],
        &format!("{TRUSTING}\n[gate]\ncooldown = \"20ms\"\n"),
    );
    let programs = [
        compile("offline", &["-lcuda"]),
        compile("online", &["-lcuda"]),
    ];
    let name = |program: &Path| {
        program
            .file_name()
            .expect("a file")
            .to_str()
            .expect("plain")
            .to_owned()
    };
    let names = [name(&programs[0]), name(&programs[1])];
    let engine = Engine::new(&node, &programs, shim, format);
    let at = |name: &str| format!("/bin/{name}");
    let mut offline =
        Offline::from_command(&mut engine.command("offline", &[&at(&names[0]), "2000000"]));
    offline.running();
    let pid = inside(&engine, &names[0]);
    assert_eq!(process(&node, pid).expect("attached")["role"], "offline");
    let mut online = Online::from_command(&mut engine.command("online", &[&at(&names[1])]));
    let worker = inside(&engine, &names[1]);
    assert_eq!(process(&node, worker).expect("attached")["role"], "online");
    wait_open(&node, 0, worker);
    wait_finished(&node, &[pid], 3, monotonic_ns());
    let count = wait_all(&node, &[pid], false);
    online.say("launch 1 500000000");
    assert_eq!(
        wait_all(&node, &[pid], true),
        count,
        "the burst stops the container's work"
    );
    online.say("sync");
    assert_eq!(wait_all(&node, &[pid], false), count);
    wait_finished(&node, &[pid], 3, monotonic_ns());
    assert!(
        offline.stop() > 0,
        "it counts what it finished, and ends by itself"
    );
}

/// P-OPERATE-2: a container gets the library and the hook socket.
#[test]
fn a_specification_brings_the_library_into_containers_by_the_environment() {
    gated_in_containers(Shim::File, "json");
}

/// P-OPERATE-2: a container gets the library and the hook socket.
#[test]
fn a_specification_brings_the_library_into_containers_by_the_preload_file() {
    gated_in_containers(Shim::Behind, "yaml");
}
