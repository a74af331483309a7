//! The node in Slurm's words: features and a weight.
//!
//! A feature `tg.PROFILE.KxP` says that a job of K GPUs gets at least P per cent here. There is one for each step up
//! to the value, so that a job asks by one of them. Features of others stay as they are.

use super::claims::is_job;
use super::offers::Offer;
use std::collections::BTreeSet;
use tidegate_policy::placement::Profile;

/// Per cent from one feature to the next.
pub const STEP: u8 = 10;

/// What features of ours begin with.
pub const OURS: &str = "tg.";

/// The node that is never given to anybody: it has every feature, so that a job whose SLA no node gives waits, and
/// is not refused. Its name is what a waiting user reads.
pub const PLACEHOLDER: &str = "none-gives-enough-yet";

fn ladder(profile: &str, gpus: u8, percent: u8) -> impl Iterator<Item = String> {
    let steps = (1..=percent / STEP).map(|step| step * STEP);
    steps.map(move |percent| format!("{OURS}{profile}.{gpus}x{percent}"))
}

/// Features of a node that gives this.
#[must_use]
pub fn features(offers: &[Offer]) -> Vec<String> {
    let of = |offer: &Offer| {
        let percent = offer.prediction.percent().unwrap_or(0);
        ladder(&offer.profile, offer.gpus, percent).collect::<Vec<_>>()
    };
    offers.iter().flat_map(of).collect()
}

/// Every feature there may be.
#[must_use]
pub fn all_features(profiles: &[Profile]) -> Vec<String> {
    let of = |profile: &Profile| ladder(profile.name(), profile.gpus(), 100).collect::<Vec<_>>();
    profiles.iter().flat_map(of).collect()
}

/// Slurm gives nodes of little weight first: 1 for one that is always idle, 101 for one that never is.
#[must_use]
pub fn weight(idle: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 100"
    )]
    let percent = (idle.clamp(0.0, 1.0) * 100.0).round() as u32;
    101 - percent
}

/// A node as `scontrol show node --oneliner` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Features that may be active.
    pub available: BTreeSet<String>,
    /// Features that are.
    pub active: BTreeSet<String>,
    /// Its weight.
    pub weight: Option<u32>,
    /// Slurm has lost it, or has not heard of it for a while.
    pub lost: bool,
}

/// Whether a node's state is one of a node that Slurm cannot reach: `DOWN+NOT_RESPONDING`, or `IDLE*` in short.
fn is_lost(state: &str) -> bool {
    let mut flags = state.split('+');
    flags.any(|flag| flag.ends_with('*') || matches!(flag, "DOWN" | "NOT_RESPONDING"))
}

impl Shown {
    /// Reads it; None: it shows no node. Names become arguments of a command, so there is no control character in them.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        if text.contains(|c: char| c.is_control() && !c.is_ascii_whitespace()) {
            return None;
        }
        let mut shown = Self::default();
        let words: Vec<_> = text.split_ascii_whitespace().collect();
        words
            .iter()
            .any(|word| word.starts_with("NodeName="))
            .then_some(())?;
        let list = |text: &str| -> BTreeSet<String> {
            let names = text
                .split(',')
                .filter(|name| !name.is_empty() && *name != "(null)");
            names.map(str::to_owned).collect()
        };
        for word in words {
            match word.split_once('=') {
                Some(("AvailableFeatures", names)) => shown.available = list(names),
                Some(("ActiveFeatures", names)) => shown.active = list(names),
                Some(("Weight", weight)) => shown.weight = weight.parse().ok(),
                Some(("State", state)) => shown.lost = is_lost(state),
                _ => {}
            }
        }
        Some(shown)
    }

    /// Whether none of its features is ours, as after a restart of the controller, or of a node that was lost.
    #[must_use]
    pub fn says_nothing(&self) -> bool {
        !self.active.iter().any(|name| name.starts_with(OURS))
    }

    /// What is to be told `scontrol update NodeName=...` so that the node has just these features of ours, and this
    /// weight; None: nothing.
    #[must_use]
    pub fn update(&self, features: &[String], weight: Option<u32>) -> Option<Vec<String>> {
        let with = |known: &BTreeSet<String>| {
            let mut all: BTreeSet<String> = known
                .iter()
                .filter(|name| !name.starts_with(OURS))
                .cloned()
                .collect();
            all.extend(features.iter().cloned());
            all
        };
        let (available, active) = (with(&self.available), with(&self.active));
        let mut told = Vec::new();
        if available != self.available || active != self.active {
            let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(",");
            told.push(format!("AvailableFeatures={}", list(available)));
            told.push(format!("ActiveFeatures={}", list(active)));
        }
        if let Some(weight) = weight.filter(|weight| self.weight != Some(*weight)) {
            told.push(format!("Weight={weight}"));
        }
        (!told.is_empty()).then_some(told)
    }
}

/// Whether `name` is a host's: it becomes an argument of a command.
#[must_use]
pub fn is_node(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=255).contains(&name.len()) && name.bytes().all(known) && !name.starts_with('-')
}

/// Slurm's name of this node: as given, as slurmd says, or the host's.
///
/// # Errors
/// It is none.
pub fn here(given: Option<&str>) -> Result<String, String> {
    let slurmd = || std::env::var("SLURMD_NODENAME").ok();
    let host = || {
        let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        Some(text.trim().split('.').next().unwrap_or_default().to_owned())
    };
    let name = given
        .map(str::to_owned)
        .or_else(slurmd)
        .or_else(host)
        .unwrap_or_default();
    if is_node(&name) {
        return Ok(name);
    }
    Err(format!("{name:?} is no node's name: give --node"))
}

/// The processes in what `scontrol listpids` prints.
#[must_use]
pub fn pids(text: &str) -> BTreeSet<i32> {
    let first = |line: &str| line.split_ascii_whitespace().next()?.parse().ok();
    text.lines()
        .filter_map(first)
        .filter(|pid| *pid > 0)
        .collect()
}

/// The jobs whose steps `scontrol listpids` prints.
#[must_use]
pub fn jobs_of_steps(text: &str) -> BTreeSet<String> {
    let second = |line: &str| line.split_ascii_whitespace().nth(1).map(str::to_owned);
    text.lines()
        .filter_map(second)
        .filter(|job| is_job(job))
        .collect()
}

/// Lines for `slurm.conf`, and the one for `gres.conf`.
#[must_use]
pub fn conf(profiles: &[Profile], nodes: &str, gpus: u32) -> String {
    let features = all_features(profiles).join(",");
    let features = match features.as_str() {
        "" => String::new(),
        all => format!(" Features={all}"),
    };
    format!(
        "# Tidegate: lines for slurm.conf. What GresTypes, AuthInfo and JobSubmitPlugins have already stays beside it.\n\
         # Each node of {nodes} gets Gres=harvest:{gpus} in its own NodeName line.\n\
         GresTypes=harvest\n\
         SelectType=select/cons_tres\n\
         JobRequeue=1\n\
         JobSubmitPlugins=lua\n\
         Prolog=/usr/share/tidegate/examples/slurm/prolog\n\
         Epilog=/usr/share/tidegate/examples/slurm/epilog\n\
         TaskProlog=/usr/share/tidegate/examples/slurm/taskprolog\n\
         PrologFlags=Alloc\n\
         HealthCheckProgram=/usr/share/tidegate/examples/slurm/health\n\
         HealthCheckInterval=30\n\
         HealthCheckNodeState=ANY\n\
         # A requeued job waits cred_expire and a second; the default is 120.\n\
         AuthInfo=cred_expire=5\n\
         # Never up: a job that asks for more than any node gives waits, and this name is the reason it is shown.\n\
         NodeName={PLACEHOLDER} NodeAddr=127.0.0.1 Port=16829 CPUs=64 RealMemory=1000000 Gres=harvest:{gpus}{features} \
         State=DRAIN Reason=\"lets jobs wait for a node that fits\"\n\
         PartitionName=harvest Nodes={nodes},{PLACEHOLDER} OverSubscribe=FORCE:8 MaxTime=UNLIMITED State=UP\n\
         #\n\
         # For gres.conf:\n\
         # NodeName={nodes},{PLACEHOLDER} Name=harvest Count={gpus}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    /// P-CLUSTER-6: what others gave a node stays, ours are those of now, and what stands is not written again.
    #[test]
    fn features_of_others_stay_and_nothing_is_written_twice() {
        let text = "NodeName=n1 Arch=x86_64 CoresPerSocket=1 AvailableFeatures=a100,tg.old.1x90,ib \
                    ActiveFeatures=ib,tg.old.1x90 Gres=harvest:2 Weight=1 Owner=N/A";
        let shown = Shown::of(text).expect("a node");
        let ours = list("tg.s.1x10,tg.s.1x20");
        let told = shown.update(&ours, Some(40)).expect("news");
        assert_eq!(
            told,
            [
                "AvailableFeatures=a100,ib,tg.s.1x10,tg.s.1x20",
                "ActiveFeatures=ib,tg.s.1x10,tg.s.1x20",
                "Weight=40"
            ]
        );
        let after = format!("NodeName=n1 {} {} {}", told[0], told[1], told[2]);
        assert_eq!(
            Shown::of(&after).expect("a node").update(&ours, Some(40)),
            None
        );
        let none = Shown::of(&after)
            .expect("a node")
            .update(&[], None)
            .expect("news");
        assert_eq!(none, ["AvailableFeatures=a100,ib", "ActiveFeatures=ib"]);
        let empty =
            Shown::of("NodeName=n1 AvailableFeatures=(null) ActiveFeatures=(null) Weight=1");
        assert_eq!(empty.expect("a node").update(&[], Some(1)), None);
        assert_eq!(
            Shown::of("slurm_load_node error: Unable to contact slurm controller"),
            None
        );
    }

    /// P-CLUSTER-21: a node that Slurm has lost is told from one that works, and a step is known by its job.
    #[test]
    fn a_lost_node_is_told_by_its_state_and_a_step_by_its_job() {
        let lost = |state: &str| {
            Shown::of(&format!("NodeName=n1 State={state} "))
                .expect("a node")
                .lost
        };
        for state in [
            "DOWN",
            "DOWN*",
            "IDLE*",
            "DOWN+NOT_RESPONDING",
            "MIXED+NOT_RESPONDING",
        ] {
            assert!(lost(state), "{state}");
        }
        for state in [
            "IDLE",
            "MIXED",
            "ALLOCATED+DRAIN",
            "IDLE+COMPLETING",
            "MIXED+PLANNED",
        ] {
            assert!(!lost(state), "{state}");
        }
        let text = "PID      JOBID    STEPID   LOCALID GLOBALID\n4711     12       batch    0       0\n-1 13 extern - -\n";
        let jobs: Vec<_> = jobs_of_steps(text).into_iter().collect();
        assert_eq!(jobs, ["12", "13"]);
        assert!(
            Shown::of("NodeName=n1 ActiveFeatures=ib")
                .expect("a node")
                .says_nothing()
        );
        assert!(
            !Shown::of("NodeName=n1 ActiveFeatures=ib,tg.a.1x10")
                .expect("a node")
                .says_nothing()
        );
    }

    #[test]
    fn a_weight_is_less_the_more_a_node_idles() {
        assert_eq!([0.0, 0.654, 1.0].map(weight), [101, 36, 1]);
        assert!(is_node("gpu-07.cluster") && !is_node("-f") && !is_node("a b") && !is_node(""));
    }
}
