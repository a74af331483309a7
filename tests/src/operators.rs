//! What happens to processes on a machine that people operate, while the gate works: `nemesis operators`.
//!
//! Schedules are those of [`crate::schedules`], with one incident in each: something is killed, stopped or frozen, a
//! disk is full, descriptors run out, the wall clock jumps, a socket is removed, a second agent is started, one of
//! another version takes over. What an incident did lasts through the rest of its schedule. The device's history is
//! judged as ever. In the first two thirds of the time the agent is left alive, so that its memory and descriptors
//! can be compared.

use crate::judge::Schedule;
use crate::schedules::{AGENT, Nemesis, Rng};
use crate::view::{descriptors, status_value};
use crate::{Node, Running, clock, compile, monotonic_ns, wait_until};
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long after an agent was lost order is not judged: what the landing may take, and slack.
const LANDING_NS: u64 = 1_500_000_000;
/// Growth of the agent's memory that is no leak yet.
const GROWTH: f64 = 0.05;
/// A year, in seconds.
const YEAR: i64 = 365 * 86_400;

/// What a run amounts to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Schedules run.
    pub schedules: u64,
    /// Broken promises, with the seed of their schedule.
    pub violations: Vec<(u64, String)>,
    /// How often each incident happened.
    pub incidents: BTreeMap<&'static str, u64>,
    /// What could not happen here, and why.
    pub missing: Vec<String>,
    /// Disables of running offline work.
    pub preemptions: u64,
    /// Wakes that were held up on their way until a request had begun, and that it took back.
    pub late_wakes: u64,
    /// Longest time a channel stayed disabled without a live agent, in nanoseconds.
    pub worst_stuck_ns: u64,
    /// The agent's resident memory in MiB when it was warm, and at the end of the same life.
    pub rss_mib: (f64, f64),
    /// Its descriptors likewise, with the same programs attached.
    pub descriptors: (usize, usize),
}

/// Whether an incident ends the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agent {
    Lives,
    Ends,
}

/// Does it; what went wrong already, if something did.
type Strike = fn(&mut Ground, &mut Nemesis, &mut Rng, &mut Schedule) -> Result<(), String>;

const INCIDENTS: [(&str, Agent, Strike); 12] = [
    ("offline_killed", Agent::Lives, Ground::kill_offline),
    ("offline_stopped", Agent::Lives, Ground::stop_offline),
    ("offline_frozen", Agent::Lives, Ground::freeze_offline),
    ("agent_stopped", Agent::Lives, Ground::stop_agent),
    ("disk_full", Agent::Lives, Ground::fill_disk),
    ("descriptors_out", Agent::Lives, Ground::take_descriptors),
    ("clock_jumped", Agent::Lives, Ground::jump),
    ("second_agent", Agent::Lives, Ground::second_agent),
    ("agent_killed", Agent::Ends, Ground::kill_agent),
    ("agent_replaced", Agent::Ends, Ground::replace_agent),
    ("socket_removed", Agent::Ends, Ground::remove_socket),
    ("version_mixed", Agent::Ends, Ground::mix_versions),
];

/// What incidents happen to, and what they leave until the schedule ends.
#[derive(Debug)]
struct Ground {
    run_dir: PathBuf,
    mounted: bool,
    cgroup: Option<Cgroup>,
    clock: PathBuf,
    shim: PathBuf,
    /// Directories with the programs of earlier versions; the first has its turn.
    older: Vec<PathBuf>,
    frozen: Vec<u32>,
    limited: Option<(u32, libc::rlimit)>,
}

impl Ground {
    /// Prepares `node`, which has no agent.
    fn new(node: &Node, older: Vec<PathBuf>, missing: &mut Vec<String>) -> Self {
        let run_dir = node.run_dir();
        let mounted = run("mount", &["-t", "tmpfs", "-o", "size=1m", "none"], &run_dir);
        if !mounted {
            missing.push("disk_full: no file system may be mounted".to_owned());
        }
        let cgroup = Cgroup::new();
        if cgroup.is_none() {
            missing.push(
                "offline_frozen: no cgroup may be made; processes are stopped instead".to_owned(),
            );
        }
        if older.is_empty() {
            missing.push("version_mixed: no --older DIR; the same version takes over".to_owned());
        }
        let clock = node.dir().join("clock");
        std::fs::write(&clock, 0_i64.to_ne_bytes()).expect("the temporary directory is writable");
        Self {
            run_dir,
            mounted,
            cgroup,
            clock,
            shim: compile("clock_jump", &["-shared", "-fPIC"]),
            older,
            frozen: Vec::new(),
            limited: None,
        }
    }

    /// Starts the node's agent, or the older one, under a clock that can be made to jump.
    fn start_agent(&self, node: &mut Node, older: bool) {
        node.start_agent_by(AGENT, |command| {
            let program = self
                .older
                .first()
                .filter(|_| older)
                .map(|dir| dir.join("tidegate-agent"));
            let mut other = Command::new(
                program
                    .as_deref()
                    .unwrap_or(Path::new(command.get_program())),
            );
            other
                .args(command.get_args())
                .arg("--vgpu-shim")
                .arg(crate::built("libvgpu_rm.so"))
                .envs(
                    command
                        .get_envs()
                        .filter_map(|(name, value)| Some((name, value?))),
                )
                .env("LD_PRELOAD", &self.shim)
                .env("CLOCK_JUMP", &self.clock)
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            let log = std::fs::File::options()
                .create(true)
                .append(true)
                .open(node_log(&self.run_dir));
            if let Ok(log) = log {
                other.stderr(log);
            }
            other
        });
    }

    fn kill_offline(
        &mut self,
        nemesis: &mut Nemesis,
        _: &mut Rng,
        schedule: &mut Schedule,
    ) -> Result<(), String> {
        nemesis.kill_offline(schedule);
        Ok(())
    }

    fn stop_offline(
        &mut self,
        nemesis: &mut Nemesis,
        _: &mut Rng,
        _: &mut Schedule,
    ) -> Result<(), String> {
        for offline in &nemesis.offline {
            offline.process.signal(libc::SIGSTOP);
            self.frozen.push(offline.process.pid());
        }
        Ok(())
    }

    fn freeze_offline(
        &mut self,
        nemesis: &mut Nemesis,
        rng: &mut Rng,
        schedule: &mut Schedule,
    ) -> Result<(), String> {
        let Some(cgroup) = &mut self.cgroup else {
            return self.stop_offline(nemesis, rng, schedule);
        };
        let pids = nemesis.offline.iter().map(|offline| offline.process.pid());
        cgroup
            .freeze(pids)
            .map_err(|error| format!("cannot freeze: {error}"))
    }

    fn stop_agent(
        &mut self,
        nemesis: &mut Nemesis,
        rng: &mut Rng,
        schedule: &mut Schedule,
    ) -> Result<(), String> {
        nemesis.stop_agent(rng, schedule);
        Ok(())
    }

    fn fill_disk(&mut self, _: &mut Nemesis, _: &mut Rng, _: &mut Schedule) -> Result<(), String> {
        if self.mounted {
            let block = vec![1; 4096];
            let mut file = std::fs::File::create(self.run_dir.join("full"))
                .map_err(|error| error.to_string())?;
            while std::io::Write::write_all(&mut file, &block).is_ok() {}
        }
        Ok(())
    }

    fn take_descriptors(
        &mut self,
        nemesis: &mut Nemesis,
        _: &mut Rng,
        _: &mut Schedule,
    ) -> Result<(), String> {
        let agent = nemesis.node.agent.as_ref().ok_or("no agent")?;
        let used = descriptors(agent.pid()) as u64;
        let had = limit_descriptors(agent.pid(), used + 1).map_err(|error| error.to_string())?;
        self.limited = Some((agent.pid(), had));
        // More callers than it can take, who hang up without a word.
        for socket in ["hook.sock", "status.sock"] {
            let crowd: Vec<_> = (0..40)
                .map(|_| UnixStream::connect(self.run_dir.join(socket)))
                .collect();
            drop(crowd);
        }
        Ok(())
    }

    fn jump(&mut self, _: &mut Nemesis, rng: &mut Rng, _: &mut Schedule) -> Result<(), String> {
        let years = if rng.percent(50) { 1 } else { -1 };
        self.set_clock(years * YEAR)
            .map_err(|error| error.to_string())
    }

    fn set_clock(&self, seconds: i64) -> std::io::Result<()> {
        // In place, since the agent has it mapped.
        let file = std::fs::File::options().write(true).open(&self.clock)?;
        std::os::unix::fs::FileExt::write_all_at(&file, &seconds.to_ne_bytes(), 0)
    }

    fn second_agent(
        &mut self,
        nemesis: &mut Nemesis,
        _: &mut Rng,
        _: &mut Schedule,
    ) -> Result<(), String> {
        let mut command = nemesis.node.agent_command();
        let output = Running::start("a second agent", &mut command).finish();
        if output.status.code() == Some(3) {
            return Ok(());
        }
        Err(format!(
            "a second agent ends with {:?} instead of 3",
            output.status.code()
        ))
    }

    fn kill_agent(
        &mut self,
        nemesis: &mut Nemesis,
        rng: &mut Rng,
        schedule: &mut Schedule,
    ) -> Result<(), String> {
        let from = monotonic_ns();
        nemesis.node.agent = None;
        let gone = rng.between(0, 300);
        wait_until(Duration::from_millis(gone), || None::<()>);
        self.succeed(nemesis, schedule, from, false);
        Ok(())
    }

    fn replace_agent(
        &mut self,
        nemesis: &mut Nemesis,
        _: &mut Rng,
        schedule: &mut Schedule,
    ) -> Result<(), String> {
        let from = monotonic_ns();
        self.end_agent(nemesis)?;
        self.succeed(nemesis, schedule, from, false);
        Ok(())
    }

    fn remove_socket(
        &mut self,
        nemesis: &mut Nemesis,
        rng: &mut Rng,
        schedule: &mut Schedule,
    ) -> Result<(), String> {
        for name in ["hook.sock", "control.sock", "status.sock"] {
            std::fs::remove_file(self.run_dir.join(name)).map_err(|error| error.to_string())?;
        }
        // Those that were attached notice nothing. The operator restarts the agent, which binds them anew.
        if rng.percent(50) {
            return self.replace_agent(nemesis, rng, schedule);
        }
        self.kill_agent(nemesis, rng, schedule)
    }

    /// The older agent, an offline program with the older library, or both: until the next agent and
    /// the next such program.
    fn mix_versions(
        &mut self,
        nemesis: &mut Nemesis,
        rng: &mut Rng,
        schedule: &mut Schedule,
    ) -> Result<(), String> {
        let (agent, library) = [(true, false), (false, true), (true, true)]
            [usize::try_from(rng.between(0, 3)).unwrap_or(0)];
        let from = monotonic_ns();
        self.end_agent(nemesis)?;
        self.succeed(nemesis, schedule, from, agent);
        if library {
            let older = self.older.first();
            nemesis.node.library = older.map(|dir| dir.join("libtidegate.so"));
            nemesis.kill_offline(schedule);
            nemesis.node.library = None;
        }
        // Another version takes over next time.
        if !self.older.is_empty() {
            self.older.rotate_left(1);
        }
        Ok(())
    }

    /// As `systemctl stop` does.
    fn end_agent(&self, nemesis: &mut Nemesis) -> Result<(), String> {
        let agent = nemesis.node.agent.take().ok_or("no agent")?;
        agent.signal(libc::SIGTERM);
        let output = agent.finish();
        if output.status.success() {
            return Ok(());
        }
        Err(format!(
            "an agent told to end ends with {:?}",
            output.status
        ))
    }

    fn succeed(&self, nemesis: &mut Nemesis, schedule: &mut Schedule, from: u64, older: bool) {
        schedule.agentless.push(from..monotonic_ns());
        self.start_agent(&mut nemesis.node, older);
        schedule.excused.push(from..monotonic_ns() + LANDING_NS);
    }

    /// Takes back what incidents left.
    fn restore(&mut self) {
        for pid in self.frozen.drain(..) {
            // SAFETY: plain system call; the process is a child that has not been waited for, or is gone.
            unsafe { libc::kill(pid.cast_signed(), libc::SIGCONT) };
        }
        if let Some(cgroup) = &mut self.cgroup {
            cgroup.thaw();
        }
        let _ = std::fs::remove_file(self.run_dir.join("full"));
        if let Some((pid, had)) = self.limited.take() {
            let _ = set_limit(pid, had);
        }
        let _ = self.set_clock(0);
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.restore();
        if self.mounted {
            run("umount", &["-l"], &self.run_dir);
        }
    }
}

fn node_log(run_dir: &Path) -> PathBuf {
    run_dir.with_file_name("agent.log")
}

fn run(program: &str, arguments: &[&str], at: &Path) -> bool {
    let mut command = Command::new(program);
    let quiet = command
        .args(arguments)
        .arg(at)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Lets a process have no more than `count` descriptors; what it might have had.
fn limit_descriptors(pid: u32, count: u64) -> std::io::Result<libc::rlimit> {
    let mut had = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `had` is valid to write to; nothing is set.
    let asked = unsafe {
        libc::prlimit(
            pid.cast_signed(),
            libc::RLIMIT_NOFILE,
            std::ptr::null(),
            &raw mut had,
        )
    };
    if asked != 0 {
        return Err(std::io::Error::last_os_error());
    }
    set_limit(
        pid,
        libc::rlimit {
            rlim_cur: count.min(had.rlim_max),
            ..had
        },
    )?;
    Ok(had)
}

fn set_limit(pid: u32, limit: libc::rlimit) -> std::io::Result<()> {
    // SAFETY: `limit` is valid to read; nothing is asked for.
    let set = unsafe {
        libc::prlimit(
            pid.cast_signed(),
            libc::RLIMIT_NOFILE,
            &raw const limit,
            std::ptr::null_mut(),
        )
    };
    if set == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// A cgroup of our own that can be frozen: of the second kind, or of the first one's freezer.
#[derive(Debug)]
struct Cgroup {
    dir: PathBuf,
    switch: PathBuf,
    words: (&'static str, &'static str),
    inside: bool,
}

impl Cgroup {
    fn new() -> Option<Self> {
        let kinds = [
            ("/sys/fs/cgroup", "cgroup.freeze", ("1", "0")),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", ("1", "0")),
            (
                "/sys/fs/cgroup/freezer",
                "freezer.state",
                ("FROZEN", "THAWED"),
            ),
        ];
        kinds.into_iter().find_map(|(base, switch, words)| {
            let dir = Path::new(base).join(format!("tidegate-nemesis-{}", std::process::id()));
            std::fs::create_dir(&dir).ok()?;
            let switch = dir.join(switch);
            if switch.exists() {
                return Some(Self {
                    dir,
                    switch,
                    words,
                    inside: false,
                });
            }
            let _ = std::fs::remove_dir(&dir);
            None
        })
    }

    fn freeze(&mut self, pids: impl Iterator<Item = u32>) -> std::io::Result<()> {
        for pid in pids {
            std::fs::write(self.dir.join("cgroup.procs"), pid.to_string())?;
        }
        self.inside = true;
        std::fs::write(&self.switch, self.words.0)
    }

    fn thaw(&mut self) {
        if std::mem::take(&mut self.inside) {
            let _ = std::fs::write(&self.switch, self.words.1);
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.thaw();
        // Its processes are gone by then, or a moment later.
        wait_until(Duration::from_secs(2), || {
            std::fs::remove_dir(&self.dir).ok()
        });
    }
}

/// Memory and descriptors of one life of an agent.
#[derive(Debug, Default)]
struct Health {
    warm: Option<(f64, usize)>,
    now: (f64, usize),
}

impl Health {
    /// Looks at the agent while exactly one offline program is attached to it. While it warms up, what it has is what it
    /// may have: not all that a program sends it is there as soon as it is attached. Later, looks until it has no more
    /// descriptors than that.
    fn look(&mut self, node: &Node, warming: bool) {
        let Some(agent) = &node.agent else {
            return;
        };
        let rss = || status_value(agent.pid(), "VmRSS") / 1024.0;
        if warming {
            let (most_rss, most) = self.warm.unwrap_or_default();
            let held = settled(agent.pid());
            self.warm = Some((most_rss.max(rss()), most.max(held)));
        }
        let Some((_, most)) = self.warm else { return };
        let few = || Some(descriptors(agent.pid())).filter(|held| *held <= most);
        let held = wait_until(clock::DEADLINE, few).unwrap_or_else(|| descriptors(agent.pid()));
        self.now = (rss(), held);
    }

    fn judge(&self) -> Option<String> {
        let (rss, fds) = self.warm?;
        if self.now.0 > rss * (1.0 + GROWTH) {
            return Some(format!(
                "the agent's memory grew from {rss:.1} to {:.1} MiB",
                self.now.0
            ));
        }
        (self.now.1 > fds)
            .then(|| format!("the agent's descriptors grew from {fds} to {}", self.now.1))
    }
}

/// Descriptors of a process once their count stays: those of the dead go within moments.
fn settled(pid: u32) -> usize {
    const STAYS: usize = 250;
    let (mut held, mut looks) = (descriptors(pid), 0);
    wait_until(clock::DEADLINE, || {
        let now = descriptors(pid);
        looks = if now == held { looks + 1 } else { 0 };
        held = now;
        (looks >= STAYS).then_some(())
    });
    held
}

/// Runs schedules from `seed` on for `seconds`. `older` are directories with the programs of earlier versions, which
/// take turns.
///
/// # Panics
/// When no agent starts.
#[must_use]
pub fn run_for(
    seed: u64,
    seconds: u64,
    older: Vec<PathBuf>,
    mut progress: impl FnMut(u64, &Report),
) -> Report {
    let mut report = Report::default();
    let mut node = Node::device_only(&["--gpus", "1"]);
    let ground = Ground::new(&node, older, &mut report.missing);
    ground.start_agent(&mut node, false);
    let mut nemesis = Nemesis::on(node);
    // Behind it, so that it is dropped first: what is mounted lies in a directory of the node's.
    let mut ground = ground;
    let mut health = Health::default();
    let begun = monotonic_ns();
    let length = seconds * 1_000_000_000;
    let mut number = 0;
    loop {
        let share = (monotonic_ns() - begun) as f64 / length as f64;
        if share >= 1.0 {
            break;
        }
        let spared = share < 0.66;
        let this = seed.wrapping_add(number);
        let mut failed = None;
        let (verdict, _) = nemesis.run_with(this, 100, &mut |nemesis, rng, schedule| {
            // Each in its turn, so that a short run has them all.
            let eligible = INCIDENTS
                .iter()
                .filter(|incident| !spared || incident.1 == Agent::Lives);
            let eligible: Vec<_> = eligible.collect();
            let (name, _, strike) = eligible[usize::try_from(number).unwrap_or(0) % eligible.len()];
            *report.incidents.entry(name).or_default() += 1;
            failed = strike(&mut ground, nemesis, rng, schedule)
                .err()
                .map(|why| format!("{name}: {why}"));
        });
        ground.restore();
        report.late_wakes += verdict.late;
        report.schedules += 1;
        report.preemptions += verdict.preemptions;
        report.worst_stuck_ns = report.worst_stuck_ns.max(verdict.worst_stuck_ns);
        let broken = verdict.violations.into_iter().map(|(_, what)| what);
        let broken = broken.chain(failed);
        report.violations.extend(broken.map(|what| (this, what)));
        // Every incident that it survives has happened by now, and will again.
        if spared && share > 0.33 && nemesis.offline.len() == 1 {
            health.look(&nemesis.node, share < 0.5 || health.warm.is_none());
        }
        number += 1;
        progress(this, &report);
    }
    if let Some(warm) = health.warm {
        report.rss_mib = (warm.0, health.now.0);
        report.descriptors = (warm.1, health.now.1);
    } else {
        let never = "the agent's memory and descriptors were never compared: run it for longer";
        report.missing.push(never.to_owned());
    }
    report
        .violations
        .extend(health.judge().map(|what| (seed, what)));
    report
}
