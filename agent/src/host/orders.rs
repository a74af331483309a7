//! What an operator told the node and did not take back, kept for the agents that come after this one.
//!
//! A drain and a pause hold until somebody ends them, whatever becomes of the agent meanwhile: a crash, an upgrade, a
//! reboot. They lie in one small file. Each change writes a new file beside it, syncs it and renames it, so that a reader
//! finds the old state or the new one. A file that cannot be read counts as a drain: no offline job may run where an
//! operator may have said that none shall.

use super::kept::replace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tidegate_node::text::Text;

/// Name of the file.
const FILE: &str = "operator.json";
/// Version of its form.
const VERSION: u32 = 1;
/// Jobs that are remembered by name. The oldest order makes room.
const JOBS: usize = 1_024;

/// Who gave an order, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Who, as the audit events name operators.
    pub by: String,
}

/// An order about one job, whatever holds for all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOrder {
    /// Paused; false: it may run although all others are paused.
    pub paused: bool,
    /// Whose order this is.
    #[serde(flatten)]
    pub order: Order,
}

/// The orders in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// No offline job may run.
    #[serde(default)]
    pub drained: Option<Order>,
    /// Every job is paused, those to come included.
    #[serde(default)]
    pub all_paused: Option<Order>,
    /// Orders about single jobs, by name.
    #[serde(default)]
    pub jobs: BTreeMap<String, JobOrder>,
}

impl Orders {
    /// Pauses one job or, without a name, all of them.
    pub fn pause(&mut self, job: Option<&str>, order: Order) {
        match job {
            Some(job) => self.note(job, true, order),
            None => {
                self.jobs.clear();
                self.all_paused = Some(order);
            }
        }
    }

    /// Takes that back.
    pub fn resume(&mut self, job: Option<&str>, order: Order) {
        match job {
            Some(job) if self.all_paused.is_some() => self.note(job, false, order),
            Some(job) => {
                self.jobs.remove(job);
            }
            None => {
                self.jobs.clear();
                self.all_paused = None;
            }
        }
    }

    /// Which jobs are paused, and which run although all others are, by name.
    #[must_use]
    pub fn by_name(&self) -> Vec<(Text, bool)> {
        let jobs = self.jobs.iter();
        jobs.map(|(name, known)| (Text::name(name), known.paused))
            .collect()
    }

    fn note(&mut self, job: &str, paused: bool, order: Order) {
        self.jobs.insert(job.to_owned(), JobOrder { paused, order });
        if self.jobs.len() > JOBS {
            let oldest = self
                .jobs
                .iter()
                .min_by_key(|(_, known)| known.order.since_unix_ms);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.jobs.remove(&oldest);
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// Of the agent that wrote it.
    generation: u64,
    #[serde(flatten)]
    orders: Orders,
}

/// The file.
#[derive(Clone, Debug)]
pub struct OrdersFile {
    path: PathBuf,
    generation: u64,
}

impl OrdersFile {
    /// The file in `dir`, of the agent of this generation.
    #[must_use]
    pub fn new(dir: &Path, generation: u64) -> Self {
        Self {
            path: dir.join(FILE),
            generation,
        }
    }

    /// What holds. Where it cannot be told, the node is drained, and the order says why.
    #[must_use]
    pub fn read(&self, now_unix_ms: u64) -> Orders {
        match self.kept() {
            Ok(orders) => orders,
            Err(why) => {
                let path = self.path.display();
                let by = format!(
                    "the agent: {path} cannot be read ({why}), so earlier orders are unknown"
                );
                Orders {
                    drained: Some(Order {
                        since_unix_ms: now_unix_ms,
                        by,
                    }),
                    ..Orders::default()
                }
            }
        }
    }

    fn kept(&self) -> Result<Orders, String> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Orders::default()),
            Err(error) => return Err(error.to_string()),
        };
        let kept: Kept = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if kept.version == VERSION {
            Ok(kept.orders)
        } else {
            Err(format!("version {}, expected {VERSION}", kept.version))
        }
    }

    /// Keeps `orders` for the next agent.
    ///
    /// # Errors
    /// Why the next agent will not know of them, for the operator.
    pub fn write(&self, orders: &Orders) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", self.path.display());
        let kept = Kept {
            version: VERSION,
            generation: self.generation,
            orders: orders.clone(),
        };
        let text = serde_json::to_vec(&kept).map_err(|error| failed(error.into()))?;
        replace(&self.path, &text).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(at: u64) -> Order {
        Order {
            since_unix_ms: at,
            by: "uid 0".to_owned(),
        }
    }

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).expect("the directory is writable");
            Self(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn orders_are_read_as_they_were_written() {
        let dir = Dir::new("orders");
        let file = OrdersFile::new(&dir.0, 7);
        assert_eq!(file.read(1), Orders::default());
        let mut orders = Orders {
            drained: Some(order(3)),
            ..Orders::default()
        };
        orders.pause(None, order(4));
        orders.resume(Some("nightly"), order(5));
        file.write(&orders).expect("own directory");
        assert_eq!(OrdersFile::new(&dir.0, 8).read(9), orders);
        assert!(!orders.jobs["nightly"].paused);
        orders.resume(None, order(6));
        assert!(orders.jobs.is_empty() && orders.all_paused.is_none());
    }

    /// P-OPERATE-22: what cannot be read counts as a drain, and stays where it is.
    #[test]
    fn a_file_that_cannot_be_read_drains_the_node() {
        let dir = Dir::new("orders-unread");
        let file = OrdersFile::new(&dir.0, 7);
        let whole = br#"{"version":1,"generation":7,"drained":null,"jobs":{}}"#;
        fs::write(&file.path, whole).expect("own directory");
        assert_eq!(file.read(1), Orders::default());
        let newer = br#"{"version":2,"generation":7}"#;
        for text in [&whole[..20], b"", b"[]", newer] {
            fs::write(&file.path, text).expect("own directory");
            let drained = file.read(11).drained.expect("drained");
            assert!(drained.by.contains(FILE), "{}", drained.by);
            assert_eq!(drained.since_unix_ms, 11);
            assert!(file.path.exists());
        }
    }

    #[test]
    fn names_of_jobs_do_not_pile_up() {
        let mut orders = Orders::default();
        for at in 0..2_000 {
            orders.pause(Some(&format!("job-{at}")), order(at));
        }
        assert_eq!(orders.jobs.len(), JOBS);
        assert!(orders.jobs.contains_key("job-1999") && !orders.jobs.contains_key("job-0"));
    }
}
