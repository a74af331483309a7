//! What can be set about the virtual GPU, at start (`--set NAME=VALUE`) and while it runs (`set`
//! on the control socket). One row a knob; times are in microseconds unless the name says else.

use tidegate_device::{Config, Eviction, Latency, Patch};
use tidegate_vgpu::facts::Status;
use tidegate_vgpu::personality::Personality;

/// A knob's name or value that does not exist.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KnobError {
    #[error("there is no knob {0:?}")]
    Unknown(String),
    #[error("knob {name} does not take {value:?}")]
    Value { name: String, value: String },
}

/// What the firmware does with pairs of another client than the caller's open file owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    Allow,
    Deny(Status),
}

#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    /// `patch = none | A | B`: the driver patch in force.
    pub(crate) patch: Patch,
    /// `gsp_foreign = allow | deny_1b | deny_23`.
    pub(crate) foreign: Foreign,
    /// `personality = NAME`: what the firmware does with a disable, with foreign pairs and with
    /// `RESTART_RUNLIST`, together ([`Personality`]).
    pub(crate) eviction: Eviction,
    /// `restart_runlist = allow | STATUS`: how `RESTART_RUNLIST` is refused.
    pub(crate) restart: Option<Status>,
    /// `unknown_pair = STATUS`: answer to a pair that does not exist (default 0x21, as P9 found on an H100).
    pub(crate) unknown_pair: Status,
    /// `disable_fixed_us`, or `disable_us` and `disable_p99_us`: how long a disable takes.
    pub(crate) disable: Latency,
    /// `answer_us`: how much later than its channels stop a disable is answered, locks held.
    pub(crate) answer_ns: u64,
    /// `enable_us`: how long an enable takes.
    pub(crate) enable: Latency,
    /// `enable_refcount = flag | count`: whether two disables need two enables, as on an H100 (the default).
    pub(crate) counting: bool,
    /// `timeslice_us`: of TSGs made from now on.
    pub(crate) timeslice_ns: u64,
    /// `switch_us`: cost of loading another TSG.
    pub(crate) switch_ns: u64,
    /// `kernel_us`: duration of a kernel that the device does not know.
    pub(crate) kernel_ns: u64,
    /// `writer_us`: how long an allocation or free holds the API lock for writing.
    pub(crate) writer_ns: u64,
    /// `create_us`, `map_us`, `unmap_us`, `release_us`: how long a call about 2 MiB of device memory
    /// takes, one after another; each further 2 MiB costs [`FURTHER`] of it. `memory_costs = a100 |
    /// none` sets all four, to what an A100 took (kvcached, benchmarks/bench_vmm; its release is
    /// vAttention's).
    pub(crate) create_ns: u64,
    pub(crate) map_ns: u64,
    pub(crate) unmap_ns: u64,
    pub(crate) release_ns: u64,
    /// `fail_create = N[:AFTER]`, `fail_map = N[:AFTER]`: N allocations or mappings of device memory
    /// are refused for want of memory, after AFTER that are not.
    pub(crate) fail_create: (u32, u32),
    pub(crate) fail_map: (u32, u32),
    /// `poison = BYTE`: what freed device memory is filled with; 0: it reads as zero.
    pub(crate) poison: u8,
    /// `stop_channel_wait_us`: what the driver waits for each channel that is disabled with work
    /// queued when its process dies, the locks of all GPUs held.
    pub(crate) stop_wait_ns: u64,
    /// `fail_disable = N[:STATUS]`: the next N disables change nothing and answer STATUS (0x65).
    pub(crate) fail_disable: (u32, Status),
    /// `fail_enable = N[:STATUS]`: the same for enables.
    pub(crate) fail_enable: (u32, Status),
    /// `partial_disable = N[:STATUS]`: the next N disables reach every other channel only.
    pub(crate) partial_disable: (u32, Status),
    /// `fail_disable_p = P`: each disable fails with this probability, as by `fail_disable`.
    pub(crate) fail_disable_p: f64,
    /// `deaf_disable = N`: the next N disables answer OK and reach no channel.
    pub(crate) deaf_disable: u32,
    /// `deaf_enable = N`: the same for enables.
    pub(crate) deaf_enable: u32,
    /// `refuse = CMD:STATUS:WORD`: the control CMD does nothing and is answered with STATUS, in processes whose command
    /// line, `+` between its arguments, contains WORD.
    pub(crate) refuse: Option<(u32, Status, String)>,
    /// `version = TEXT:WORD`: what the driver says that its version is, to processes whose command line contains WORD.
    pub(crate) version: Option<(String, String)>,
    /// `mig = 0 | 1`: whether the GPUs are split into instances.
    pub(crate) mig: bool,
    /// `confidential = 0 | 1`: whether they compute confidentially.
    pub(crate) confidential: bool,
    /// `guest = 0 | 1`: whether the GPUs are virtual ones of a hypervisor.
    pub(crate) guest: bool,
    /// `preempt_timeout = N`: the next N disables do not get their channels off the hardware: the
    /// first channel of the list is killed (Xid 109) and the answer is 0x65.
    pub(crate) preempt_timeout: u32,
    /// `hang = N:US`: the next N disables or enables are answered that much later, locks held.
    pub(crate) hang: (u32, u64),
    /// `lost = GPU | none`: what concerns an object of this GPU, and a new one on it, is answered with GPU_IS_LOST; what is
    /// on its engines goes on.
    pub(crate) lost: Option<usize>,
    /// `lost_in_enable = GPU | none`: this GPU is lost in the next enable of its channels, which reaches them.
    pub(crate) lost_in_enable: Option<usize>,
    /// `reuse_clients = 0 | 1`: whether a new RM client gets the lowest handle that is free, which a
    /// process that ended may have had, instead of one that nobody ever had.
    pub(crate) reuse_clients: bool,
}

/// What 2 MiB beyond the first add to the cost of a call: 64 MiB in one call took 325 us where 2 MiB
/// took 33 (kvcached, the same table).
const FURTHER: f64 = 0.285;
const UNIT: u64 = 2 << 20;

/// The cost of a call about `bytes`, from that of one about 2 MiB.
pub(crate) fn memory_cost(first_ns: u64, bytes: u64) -> u64 {
    let further = bytes.div_ceil(UNIT).saturating_sub(1);
    first_ns + (first_ns as f64 * FURTHER * further as f64) as u64
}

impl Default for Knobs {
    fn default() -> Self {
        let config = Config::default();
        Self {
            patch: Patch::None,
            foreign: Foreign::Allow,
            eviction: config.eviction,
            restart: None,
            unknown_pair: Status::INVALID_CHANNEL,
            disable: config.disable,
            answer_ns: 0,
            enable: Latency::Fixed(100_000),
            counting: true,
            timeslice_ns: config.timeslice_ns,
            switch_ns: config.switch_ns,
            kernel_ns: 20_000,
            writer_ns: 0,
            create_ns: 0,
            map_ns: 0,
            unmap_ns: 0,
            release_ns: 0,
            fail_create: (0, 0),
            fail_map: (0, 0),
            poison: 0,
            stop_wait_ns: 0,
            fail_disable: (0, Status::TIMEOUT),
            fail_enable: (0, Status::TIMEOUT),
            partial_disable: (0, Status::TIMEOUT),
            fail_disable_p: 0.0,
            deaf_disable: 0,
            deaf_enable: 0,
            refuse: None,
            version: None,
            mig: false,
            confidential: false,
            guest: false,
            preempt_timeout: 0,
            hang: (0, 0),
            lost: None,
            lost_in_enable: None,
            reuse_clients: false,
        }
    }
}

fn micros(value: &str) -> Option<u64> {
    let micros: f64 = value.parse().ok()?;
    (micros.is_finite() && micros >= 0.0).then_some((micros * 1_000.0) as u64)
}

fn number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => value.parse().ok(),
    }
}

/// `N` or `N:REST`.
fn counted<T>(value: &str, absent: T, rest: impl Fn(&str) -> Option<T>) -> Option<(u32, T)> {
    match value.split_once(':') {
        Some((count, after)) => Some((number(count)?, rest(after)?)),
        None => Some((number(value)?, absent)),
    }
}

/// A GPU by its minor number, or none.
fn gpu(value: &str) -> Option<Option<usize>> {
    match value {
        "none" => Some(None),
        _ => Some(Some(value.parse().ok()?)),
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn status(value: &str) -> Option<Status> {
    number(value).map(Status)
}

/// Whether the command line of process `pid` contains `word`.
fn is_called(pid: u32, word: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line)
        .replace('\0', "+")
        .contains(word)
}

/// Whether this call is one that a `(N, AFTER)` knob fails.
pub(crate) fn fails((count, after): &mut (u32, u32)) -> bool {
    if *count == 0 {
        return false;
    }
    if *after > 0 {
        *after -= 1;
        return false;
    }
    *count -= 1;
    true
}

impl Knobs {
    /// With what the control `cmd` of process `pid` is refused.
    pub(crate) fn refusal(&self, cmd: u32, pid: u32) -> Option<Status> {
        let (refused, status, word) = self.refuse.as_ref()?;
        (*refused == cmd && is_called(pid, word)).then_some(*status)
    }

    /// Which version process `pid` is told instead of the driver's own.
    pub(crate) fn version(&self, pid: u32) -> Option<&str> {
        let (version, word) = self.version.as_ref()?;
        is_called(pid, word).then_some(version)
    }

    /// What RM says of an object of this GPU.
    pub(crate) fn is_there(&self, gpu: Option<usize>) -> Result<(), Status> {
        if gpu.is_some() && self.lost == gpu {
            Err(Status::GPU_IS_LOST)
        } else {
            Ok(())
        }
    }

    /// Sets one knob.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), KnobError> {
        let set = self.try_set(name, value);
        match set {
            Some(true) => Ok(()),
            Some(false) => Err(KnobError::Unknown(name.to_owned())),
            None => Err(KnobError::Value {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
        }
    }

    /// `None`: a value that the knob does not take; `Some(false)`: no such knob.
    fn try_set(&mut self, name: &str, value: &str) -> Option<bool> {
        match name {
            "patch" => {
                self.patch = match value {
                    "none" => Patch::None,
                    "A" => Patch::A,
                    "B" => Patch::B,
                    _ => return None,
                }
            }
            "gsp_foreign" => {
                self.foreign = match value {
                    "allow" => Foreign::Allow,
                    "deny_1b" => Foreign::Deny(Status::INSUFFICIENT_PERMISSIONS),
                    "deny_23" => Foreign::Deny(Status::INVALID_CLIENT),
                    _ => return None,
                }
            }
            "personality" => {
                let personality = Personality::from_name(value)?;
                self.eviction = personality.eviction();
                self.foreign = personality
                    .refuses_foreign()
                    .map_or(Foreign::Allow, Foreign::Deny);
                self.restart = personality.refuses_restart();
            }
            "restart_runlist" => {
                self.restart = match value {
                    "allow" => None,
                    _ => Some(status(value)?),
                }
            }
            "unknown_pair" => self.unknown_pair = status(value)?,
            "disable_fixed_us" => self.disable = Latency::Fixed(micros(value)?),
            "disable_us" => {
                let p50 = micros(value)?;
                self.disable = Latency::LogNormal {
                    p50,
                    p99: p50.saturating_mul(3),
                };
            }
            "disable_p99_us" => {
                let p99 = micros(value)?;
                let (Latency::LogNormal { p50, .. } | Latency::Fixed(p50)) = self.disable;
                self.disable = Latency::LogNormal { p50, p99 };
            }
            "answer_us" => self.answer_ns = micros(value)?,
            "enable_us" => self.enable = Latency::Fixed(micros(value)?),
            "enable_refcount" => {
                self.counting = match value {
                    "flag" => false,
                    "count" => true,
                    _ => return None,
                }
            }
            "timeslice_us" => self.timeslice_ns = micros(value)?.max(1),
            "switch_us" => self.switch_ns = micros(value)?,
            "kernel_us" => self.kernel_ns = micros(value)?,
            "writer_us" => self.writer_ns = micros(value)?,
            "create_us" => self.create_ns = micros(value)?,
            "map_us" => self.map_ns = micros(value)?,
            "unmap_us" => self.unmap_ns = micros(value)?,
            "release_us" => self.release_ns = micros(value)?,
            "memory_costs" => {
                [self.create_ns, self.map_ns, self.unmap_ns, self.release_ns] = match value {
                    "none" => [0; 4],
                    "a100" => [193_000, 37_450, 25_600, 23_000],
                    _ => return None,
                }
            }
            "fail_create" => self.fail_create = counted(value, 0, number)?,
            "fail_map" => self.fail_map = counted(value, 0, number)?,
            "poison" => self.poison = number(value)?.try_into().ok()?,
            "stop_channel_wait_us" => self.stop_wait_ns = micros(value)?,
            "fail_disable" => self.fail_disable = counted(value, Status::TIMEOUT, status)?,
            "fail_enable" => self.fail_enable = counted(value, Status::TIMEOUT, status)?,
            "partial_disable" => self.partial_disable = counted(value, Status::TIMEOUT, status)?,
            "fail_disable_p" => {
                self.fail_disable_p = value.parse().ok().filter(|p| (0.0..=1.0).contains(p))?;
            }
            "deaf_disable" => self.deaf_disable = number(value)?,
            "deaf_enable" => self.deaf_enable = number(value)?,
            "preempt_timeout" => self.preempt_timeout = number(value)?,
            "lost" => self.lost = gpu(value)?,
            "lost_in_enable" => self.lost_in_enable = gpu(value)?,
            "hang" => self.hang = counted(value, 0, micros)?,
            "refuse" => {
                let mut parts = value.splitn(3, ':');
                let cmd = number(parts.next()?)?;
                self.refuse = Some((cmd, status(parts.next()?)?, parts.next()?.to_owned()));
            }
            "version" => {
                let (version, word) = value.split_once(':')?;
                self.version = Some((version.to_owned(), word.to_owned()));
            }
            "mig" => self.mig = flag(value)?,
            "confidential" => self.confidential = flag(value)?,
            "guest" => self.guest = flag(value)?,
            "reuse_clients" => self.reuse_clients = flag(value)?,
            _ => return Some(false),
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_four_mebibytes_in_one_call_cost_ten_times_as_much_as_two() {
        assert_eq!(memory_cost(33_000, UNIT), 33_000);
        let whole = memory_cost(33_000, 32 * UNIT);
        assert!((320_000..330_000).contains(&whole), "{whole} ns");
        assert_eq!(memory_cost(0, 32 * UNIT), 0);
    }

    #[test]
    fn a_knob_takes_only_what_it_knows() {
        let mut knobs = Knobs::default();
        assert!(knobs.set("patch", "B").is_ok());
        assert!(knobs.set("fail_disable", "3:0x62").is_ok());
        assert_eq!(knobs.fail_disable, (3, Status::RESET_REQUIRED));
        assert!(knobs.set("hang", "1:5000").is_ok());
        assert_eq!(knobs.hang, (1, 5_000_000));
        assert!(knobs.set("lost", "1").is_ok() && knobs.is_there(Some(1)).is_err());
        assert!(knobs.is_there(Some(0)).is_ok() && knobs.is_there(None).is_ok());
        assert!(knobs.set("lost", "none").is_ok() && knobs.is_there(Some(1)).is_ok());
        assert!(matches!(
            knobs.set("patch", "C"),
            Err(KnobError::Value { .. })
        ));
        assert!(matches!(knobs.set("pach", "A"), Err(KnobError::Unknown(_))));
    }
}
