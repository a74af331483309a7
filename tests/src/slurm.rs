//! A Slurm of this machine: munged, slurmctld and a slurmd for each node, as Debian ships them, on loopback.
//!
//! Each node has a virtual GPU and an agent of its own. The scripts are those of `scripts/examples/slurm`; what stands
//! around them says only which node they run for. Nothing outside a temporary directory is touched, and no port is
//! fixed. What a value started ends with it.

pub mod log;

use crate::{Node, Running, TempDir, built, compile, wait_for, wait_until};
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What every program of it is.
const PROGRAMS: [&str; 7] = [
    "munged",
    "slurmctld",
    "slurmd",
    "scontrol",
    "sbatch",
    "squeue",
    "scancel",
];

/// Why no Slurm runs here.
#[must_use]
pub fn missing() -> Option<String> {
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return Some("only root runs a Slurm of its own".to_owned());
    }
    let there = |name: &&&str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|dir| Path::new(dir).join(name).exists())
    };
    let absent: Vec<_> = PROGRAMS
        .iter()
        .filter(|name| !there(name))
        .copied()
        .collect();
    (!absent.is_empty()).then(|| {
        format!(
            "no {} here: Debian's slurmctld, slurmd, slurm-client, munge",
            absent.join(", ")
        )
    })
}

/// A profile whose job does half with a 96th of the pool: memory then hardly counts, idle time does.
pub const PROFILE: &str = "unit = \"launches\"\nrate = 100\nfull = \"96MiB\"\nhalf = \"1MiB\"\n";

/// Features of one GPU of it, each followed by per cent.
pub const PREFIX: &str = "tg.summarise.1x";

/// How each node's agent is configured: a small pool, and a history of seconds.
pub(crate) const AGENT: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"5ms\"\n[memory]\npool = \"96MiB\"\n\
                     headroom_min = \"4MiB\"\n[history]\nevery = \"1s\"\nsize = \"1MiB\"\n";

/// One node.
#[derive(Debug)]
pub struct Host {
    /// Slurm's name.
    pub name: String,
    /// Its GPU and agent.
    pub node: Node,
    /// Its slurmd; none while it is dead.
    pub slurmd: Option<Running>,
    /// Its agent's.
    config: String,
    /// How often its health script began and ended well since [`Slurm::tick`].
    passes: Arc<AtomicU64>,
}

/// What a site would choose.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A node is lost when its slurmd has not answered for so many seconds.
    pub lost_s: u8,
    /// Options of every `tidegate place`.
    pub place: &'static str,
    /// Options of `tidegate place tend`.
    pub tend: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lost_s: 10,
            place: "--window 2s --least 2s --since 8s",
            tend: "--judge 2s",
        }
    }
}

/// A cluster.
#[derive(Debug)]
pub struct Slurm {
    /// Its nodes.
    pub hosts: Vec<Host>,
    slurmctld: Option<Running>,
    munged: Option<Running>,
    stop: Arc<AtomicBool>,
    tickers: Vec<JoinHandle<()>>,
    dir: TempDir,
}

/// A job as squeue shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// "PENDING", "RUNNING", ...
    pub state: String,
    /// Why it waits.
    pub reason: String,
    /// Where it runs.
    pub host: String,
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("the temporary directory is writable");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/examples/slurm")
}

/// Ports that nobody has at this moment.
pub(crate) fn ports(count: usize) -> Vec<u16> {
    let held: Vec<_> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("loopback"))
        .collect();
    held.iter()
        .map(|socket| socket.local_addr().expect("bound").port())
        .collect()
}

impl Slurm {
    /// Starts one with so many nodes, on which nothing is published: the directory of profiles is empty.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(count: usize) -> Self {
        Self::start_as(count, Settings::default())
    }

    /// The same, of a site that chose otherwise.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start_as(count: usize, settings: Settings) -> Self {
        let dir = TempDir::new();
        let root = dir.path();
        // munged and slurmd want no directory above theirs that others may write to.
        for path in [root.to_path_buf(), root.join("munge")] {
            fs::create_dir_all(&path).expect("writable");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        }
        for name in ["state", "spool", "profiles", "known", "env"] {
            fs::create_dir_all(root.join(name)).expect("writable");
        }
        fs::write(root.join("known/summarise.toml"), PROFILE).expect("writable");
        let hosts: Vec<Host> = (1..=count)
            .map(|number| {
                let mut node = Node::device_only(&[]);
                let history = node.dir().join("history.ring");
                let history = format!("[history]\nfile = \"{}\"", history.display());
                let config = AGENT.replace("[history]", &history);
                node.start_agent(&config);
                Host {
                    name: format!("n{number}"),
                    node,
                    slurmd: None,
                    config,
                    passes: Arc::default(),
                }
            })
            .collect();
        let mut slurm = Self {
            hosts,
            slurmctld: None,
            munged: None,
            stop: Arc::default(),
            tickers: Vec::new(),
            dir,
        };
        slurm.configure(settings);
        slurm.start_munge();
        slurm.start_controller();
        for at in 0..count {
            slurm.start_slurmd(at);
        }
        wait_for("every node is up", || {
            let text = slurm.text("sinfo", &["-h", "-N", "-o", "%N %T"]);
            let up = |host: &Host| {
                text.lines()
                    .any(|line| line == format!("{} idle", host.name))
            };
            slurm.hosts.iter().all(up).then_some(())
        });
        slurm
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn conf(&self) -> PathBuf {
        self.dir().join("slurm.conf")
    }

    /// What the tool itself says belongs into the configuration, and what this machine needs besides.
    fn configure(&self, settings: Settings) {
        let root = self.dir();
        let ports = ports(self.hosts.len() + 2);
        let count = self.hosts.len();
        let known = root.join("known");
        let known = known.to_str().expect("text");
        let nodes = format!("n[1-{count}]");
        let said = self.hosts[0].node.tidegate(&[
            "place",
            "slurm-conf",
            "--profiles",
            known,
            "--nodes",
            &nodes,
            "--gpus",
            "1",
        ]);
        assert!(said.status.success(), "{said:?}");
        let said = String::from_utf8(said.stdout).expect("text");
        let placed = said
            .replace(
                "/usr/share/tidegate/examples/slurm/",
                &format!("{}/", root.display()),
            )
            .replace(
                "AuthInfo=",
                &format!("AuthInfo=socket={}/munge/socket,", root.display()),
            )
            .replace("Port=16829", &format!("Port={}", ports[count + 1]))
            .replace("HealthCheckInterval=30", "HealthCheckInterval=5");
        let mut text = format!(
            "ClusterName=tg\nSlurmctldHost=localhost\nSlurmctldPort={}\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nCredType=cred/munge\nMpiDefault=none\nStateSaveLocation={root}/state\n\
             SlurmdSpoolDir={root}/spool/%n\nSlurmctldPidFile={root}/ctld.pid\nSlurmdPidFile={root}/%n.pid\n\
             SlurmctldLogFile={root}/ctld.log\nSlurmdLogFile={root}/%n.log\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nSchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=100000\n\
             SelectTypeParameters=CR_Core\nReturnToService=2\nMinJobAge=300\nKillWait=2\nSlurmctldTimeout=10\n\
             SlurmdTimeout={lost}\nMessageTimeout={lost}\nSlurmctldDebug=debug2\n{placed}",
            ports[count],
            lost = settings.lost_s,
            root = root.display(),
        );
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux");
        for (at, own) in self.hosts.iter().enumerate() {
            fs::create_dir_all(root.join("spool").join(&own.name)).expect("writable");
            let (name, port) = (&own.name, ports[at]);
            let _ = writeln!(
                text,
                "NodeName={name} NodeHostname={} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 Gres=harvest:1",
                host.trim()
            );
            self.describe(own, settings);
        }
        // A partition stands behind its nodes.
        let (partition, rest): (Vec<_>, Vec<_>) = text
            .lines()
            .partition(|line| line.starts_with("PartitionName="));
        let text = format!("{}\n{}\n", rest.join("\n"), partition.join("\n"));
        let gres = said
            .lines()
            .find_map(|line| line.strip_prefix("# NodeName="))
            .expect("a line for gres.conf");
        fs::write(root.join("gres.conf"), format!("NodeName={gres}\n")).expect("writable");
        fs::write(self.conf(), text).expect("writable");
        fs::copy(
            examples().join("job_submit.lua"),
            root.join("job_submit.lua"),
        )
        .expect("readable");
        for name in ["health", "prolog", "epilog", "taskprolog"] {
            let more = if name == "taskprolog" {
                "cat \"$TASK_ENV\"\n"
            } else {
                ""
            };
            let text = format!(
                "#!/bin/sh\n. {}/env/$SLURMD_NODENAME\n{more}exec {}\n",
                root.display(),
                examples().join(name).display()
            );
            script(&root.join(name), &text);
        }
        let program = compile("offline", &["-lcuda"]);
        // SIGTERM ends it, as it ends a program that has no handler; this one's own ends with a kernel, and none ends
        // behind a closed gate.
        let text = "#!/bin/sh\ntrap 'kill -KILL $!' TERM\nPROGRAM 10000000 0 &\nwait\n";
        let text = text.replace("PROGRAM", program.to_str().expect("text"));
        script(&root.join("job.sh"), &text);
    }

    /// What the scripts find in the environment of a node.
    fn describe(&self, host: &Host, settings: Settings) {
        let (root, node) = (self.dir(), &host.node);
        let library = built("libtidegate.so");
        let bin = library.parent().expect("a directory");
        let place = format!(
            "--profiles {}/profiles --metrics {} {}",
            root.display(),
            node.dir().display(),
            options(node, settings)
        );
        let text = format!(
            "export SLURM_CONF={conf} SLURMD_NODENAME={name} TIDEGATE_RUN_DIR={run} TIDEGATE_PLACE='{place}' TIDEGATE_TEND='{}'\n\
             export PATH={bin}:/usr/sbin:/usr/bin:/sbin:/bin TIDEGATE_PRELOAD={library}:{rm} TASK_ENV={root}/env/{name}.task\n",
            settings.tend,
            conf = self.conf().display(),
            name = host.name,
            run = node.run_dir().display(),
            bin = bin.display(),
            library = library.display(),
            rm = built("libvgpu_rm.so").display(),
            root = root.display(),
        );
        fs::write(root.join("env").join(&host.name), text).expect("writable");
        let task = format!(
            "export TIDEGATE_RUN_DIR={}\nexport TIDEGATE_VGPU_DIR={}\nexport LD_LIBRARY_PATH={}\n",
            node.run_dir().display(),
            node.vgpu_dir().display(),
            bin.display()
        );
        fs::write(root.join("env").join(format!("{}.task", host.name)), task).expect("writable");
    }

    fn start_munge(&mut self) {
        let dir = self.dir().join("munge");
        let key = dir.join("key");
        let random: Vec<u8> = fs::read("/proc/sys/kernel/random/uuid")
            .expect("Linux")
            .repeat(4);
        fs::write(&key, random).expect("writable");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).expect("ours");
        let at = |option: &str, file: &str| format!("--{option}={}/{file}", dir.display());
        let mut command = Command::new("munged");
        command
            .args(["--foreground", "--force"])
            .args([
                at("key-file", "key"),
                at("socket", "socket"),
                at("pid-file", "pid"),
            ])
            .args([at("log-file", "log"), at("seed-file", "seed")])
            .stdin(Stdio::null())
            .stderr(fs::File::create(dir.join("err")).expect("writable"));
        self.munged = Some(Running::start("munged", &mut command));
        wait_for("munged listens", || {
            dir.join("socket").exists().then_some(())
        });
    }

    /// Starts the controller (again), and waits until it answers.
    pub fn start_controller(&mut self) {
        let mut command = self.daemon("slurmctld", "ctld.out");
        command.arg("-D").arg("-f").arg(self.conf());
        self.slurmctld = Some(Running::start("slurmctld", &mut command));
        wait_for("slurmctld answers", || {
            let up = self
                .command("scontrol")
                .arg("ping")
                .output()
                .expect("it starts");
            String::from_utf8_lossy(&up.stdout)
                .contains("is UP")
                .then_some(())
        });
    }

    /// Whether there is one.
    #[must_use]
    pub const fn has_controller(&self) -> bool {
        self.slurmctld.is_some()
    }

    /// Where it writes what it does, also of its lives before it was killed.
    #[must_use]
    pub fn controllers_log(&self) -> PathBuf {
        self.dir().join("ctld.log")
    }

    /// What a node of the usual settings would publish, with profiles.
    ///
    /// # Panics
    /// When it says nothing.
    #[must_use]
    pub fn would_publish(&self, at: usize) -> String {
        let Host { name, node, .. } = &self.hosts[at];
        let known = self.dir().join("known").display().to_string();
        let mut args = vec!["place", "publish", "--engine", "slurm", "--dry-run"];
        args.extend(["--node", name, "--profiles", &known]);
        let options = options(node, Settings::default());
        args.extend(options.split(' '));
        let output = node.tidegate(&args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Kills the controller, as a crash does.
    pub fn kill_controller(&mut self) {
        self.slurmctld = None;
    }

    /// Starts a node's slurmd.
    pub fn start_slurmd(&mut self, at: usize) {
        let name = self.hosts[at].name.clone();
        let mut command = self.daemon("slurmd", &format!("{name}.out"));
        command
            .arg("-D")
            .arg("-f")
            .arg(self.conf())
            .args(["-N", &name]);
        self.hosts[at].slurmd = Some(Running::start("slurmd", &mut command));
    }

    /// Kills a node's slurmd, as a crash does. Its steps outlive it.
    pub fn kill_slurmd(&mut self, at: usize) {
        self.hosts[at].slurmd = None;
    }

    /// Starts a node's agent again.
    pub fn start_agent(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.node.start_agent(&host.config);
    }

    fn daemon(&self, name: &str, out: &str) -> Command {
        let out = fs::File::create(self.dir().join(out)).expect("writable");
        let mut command = self.command(name);
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a file"))
            .stderr(out);
        command
    }

    /// A program of Slurm that speaks to this one.
    #[must_use]
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command
            .env("SLURM_CONF", self.conf())
            .env("LC_ALL", "C")
            .current_dir(self.dir());
        command
    }

    /// What such a program prints.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn text(&self, name: &str, args: &[&str]) -> String {
        let output = self
            .command(name)
            .args(args)
            .output()
            .expect("it is installed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a node's health script once.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn health(&self, name: &str) -> Output {
        health(self.dir(), name)
    }

    /// Runs the health script of every node once a second from now on, as `tidegate-place.timer` does.
    pub fn tick(&mut self) {
        for host in &self.hosts {
            let (dir, name) = (self.dir().to_owned(), host.name.clone());
            let (stop, passes) = (Arc::clone(&self.stop), Arc::clone(&host.passes));
            self.tickers.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let output = health(&dir, &name);
                    assert!(
                        output.status.success(),
                        "the health script fails: {output:?}"
                    );
                    passes.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_secs(1));
                }
            }));
        }
    }

    /// Waits until a node's health script has run `count` times from its begin, a second apart, after this moment.
    ///
    /// # Panics
    /// When it does not, as when it failed.
    #[track_caller]
    pub fn pass(&self, at: usize, count: u64) {
        let seen = || self.hosts[at].passes.load(Ordering::Relaxed);
        // One may be on its way.
        let enough = seen() + 1 + count;
        wait_for("the health script", || (seen() >= enough).then_some(()));
    }

    /// Submits the offline program with this comment; its number, or what the user is told.
    ///
    /// # Errors
    /// It is refused.
    ///
    /// # Panics
    /// When sbatch cannot be started.
    pub fn submit(&self, comment: &str) -> Result<u32, String> {
        let job = self.dir().join("job.sh");
        let mut command = self.command("sbatch");
        command
            .args([
                "--parsable",
                "-p",
                "harvest",
                "-n1",
                "--requeue",
                "--comment",
                comment,
            ])
            .arg(job);
        let output = command.output().expect("sbatch is installed");
        if output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout);
            return Ok(text.trim().parse().expect("a number"));
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Waits until the controller has written all jobs of this moment to its disk: of a job that is newer it knows
    /// nothing after a crash. It writes when something changed, so a job comes and goes for that.
    ///
    /// # Panics
    /// When it does not.
    pub fn saved(&self) {
        let now = std::time::SystemTime::UNIX_EPOCH
            + Duration::from_nanos(tidegate_agent::clock::unix_ns());
        let held = ["--parsable", "--hold", "-p", "harvest", "job.sh"];
        let id = self.text("sbatch", &held);
        let _ = self.text("scancel", &[id.trim()]);
        let file = self.dir().join("state/job_state");
        wait_for("the controller saves its jobs", || {
            let about = fs::metadata(&file).ok()?;
            (about.modified().ok()? > now).then_some(())
        });
    }

    /// A job, as squeue shows it at this moment.
    #[must_use]
    pub fn job(&self, id: u32) -> Job {
        let text = self.text("squeue", &["-h", "-j", &id.to_string(), "-o", "%T|%r|%N"]);
        let mut fields = text.trim().split('|').map(str::to_owned);
        let mut next = || fields.next().unwrap_or_default();
        Job {
            state: next(),
            reason: next(),
            host: next(),
        }
    }

    /// The nodes that a job does not go to.
    #[must_use]
    pub fn excluded(&self, id: u32) -> Vec<String> {
        let list = self.text("squeue", &["-h", "-j", &id.to_string(), "-o", "%x"]);
        let names = self.text("scontrol", &["show", "hostnames", list.trim()]);
        names.split_whitespace().map(str::to_owned).collect()
    }

    /// Waits until a job runs; where.
    pub fn runs(&self, id: u32) -> String {
        wait_for("the job runs", || {
            let job = self.job(id);
            (job.state == "RUNNING").then_some(job.host)
        })
    }

    /// The features of ours that a node has.
    #[must_use]
    pub fn features(&self, name: &str) -> Vec<String> {
        let text = self.text("scontrol", &["--oneliner", "show", "node", name]);
        let active = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix("ActiveFeatures="));
        let active = active.unwrap_or_default().split(',');
        active
            .filter(|name| name.starts_with("tg."))
            .map(str::to_owned)
            .collect()
    }

    /// Every node gives what profiles say from now on.
    ///
    /// # Panics
    /// When the directory is gone.
    pub fn give_profiles(&self) {
        fs::copy(
            self.dir().join("known/summarise.toml"),
            self.dir().join("profiles/summarise.toml"),
        )
        .expect("writable");
    }

    /// Nodes that Slurm no longer gives jobs, but for the placeholder.
    #[must_use]
    pub fn drained(&self) -> Vec<String> {
        let text = self.text("sinfo", &["-h", "-N", "-o", "%N %T"]);
        let drained = text.lines().filter(|line| {
            line.contains("drain") && line.starts_with('n') && !line.starts_with("none")
        });
        drained.map(str::to_owned).collect()
    }

    /// What the daemons wrote last, for who looks at a failure.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = self.text("scontrol", &["show", "job"]);
        for entry in fs::read_dir(self.dir()).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|ending| ending == "log") {
                let all = fs::read_to_string(&path).unwrap_or_default();
                let lines = all.lines().rev().filter(|line| !line.contains(" debug2: "));
                let last: Vec<_> = lines.take(15).collect();
                let last: Vec<_> = last.into_iter().rev().collect();
                let _ = writeln!(text, "== {}\n{}", path.display(), last.join("\n"));
            }
        }
        text
    }
}

/// Where a node's files are, and what counts of its history.
fn options(node: &Node, settings: Settings) -> String {
    let dir = node.dir().display();
    format!(
        "--history {dir}/history.ring --memo {dir}/place.json {}",
        settings.place
    )
}

fn health(dir: &Path, name: &str) -> Output {
    let mut command = Command::new(dir.join("health"));
    command
        .env_clear()
        .env("SLURMD_NODENAME", name)
        .stdin(Stdio::null());
    command.output().expect("the script starts")
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        self.stop.store(true, Ordering::Relaxed);
        for ticker in self.tickers.drain(..) {
            let _ = ticker.join();
        }
        if self.slurmctld.is_some() {
            let _ = self.text("scancel", &["--user=root", "--signal=KILL"]);
            let _ = self.text("scancel", &["--user=root"]);
            let _ = wait_until(Duration::from_secs(15), || {
                self.text("squeue", &["-h"]).trim().is_empty().then_some(())
            });
        }
        // A step outlives its slurmd.
        for host in &self.hosts {
            let here = format!("{}/spool/{}", self.dir().display(), host.name);
            let text = self.text("pgrep", &["-f", &here]);
            for pid in text.lines().filter_map(|pid| pid.parse::<i32>().ok()) {
                // SAFETY: a plain system call, on processes of this directory alone.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }
}
