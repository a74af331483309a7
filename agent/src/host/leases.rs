//! What agents learn of leases, kept for the agents that come after this one.
//!
//! How long iterations and units take is learnt from what they took. It lies in one small file, by GPU. A new file is
//! written beside it and renamed, so that a reader finds the old state or the new one. A file that cannot be used costs
//! nothing but time: the agent says so and learns anew.

use super::kept::replace;
use crate::inbox::Learnt;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tidegate_policy::lease::event::{Key, Kind};
use tidegate_policy::lease::record::{Known, RECORDS};

/// Name of the file.
const FILE: &str = "leases.json";
/// Version of its form.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    gpus: BTreeMap<String, Vec<Row>>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Row {
    shape: u64,
    kind: Name,
    mean_ns: u64,
    spread_ns: u64,
    p95_ns: u64,
    seen: u64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Name {
    Iteration,
    Forward,
    Backward,
    Optimizer,
}

impl From<&Known> for Row {
    fn from(known: &Known) -> Self {
        Self {
            shape: known.key.fingerprint,
            kind: match known.key.kind {
                Kind::Iteration => Name::Iteration,
                Kind::Forward => Name::Forward,
                Kind::Backward => Name::Backward,
                Kind::Optimizer => Name::Optimizer,
            },
            mean_ns: known.mean_ns,
            spread_ns: known.spread_ns,
            p95_ns: known.p95_ns,
            seen: known.seen,
        }
    }
}

impl From<&Row> for Known {
    fn from(row: &Row) -> Self {
        Self {
            key: Key {
                fingerprint: row.shape,
                kind: match row.kind {
                    Name::Iteration => Kind::Iteration,
                    Name::Forward => Kind::Forward,
                    Name::Backward => Kind::Backward,
                    Name::Optimizer => Kind::Optimizer,
                },
            },
            mean_ns: row.mean_ns,
            spread_ns: row.spread_ns,
            p95_ns: row.p95_ns,
            seen: row.seen,
        }
    }
}

/// The file.
#[derive(Clone, Debug)]
pub struct LeasesFile {
    path: PathBuf,
}

impl LeasesFile {
    /// The file in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            path: dir.join(FILE),
        }
    }

    /// What earlier agents learnt.
    ///
    /// # Errors
    /// Why it is not used, for the log.
    pub fn read(&self) -> Result<Learnt, String> {
        let failed = |why: String| {
            format!(
                "what earlier agents learnt of leases is not used: {}: {why}; it is learnt and written anew",
                self.path.display()
            )
        };
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Learnt::new()),
            Err(error) => return Err(failed(error.to_string())),
        };
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } =
            serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        if version != VERSION {
            return Err(failed(format!("version {version}, expected {VERSION}")));
        }
        let kept: Kept = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        let gpus = kept.gpus.into_iter();
        let known = |rows: Vec<Row>| rows.iter().take(RECORDS).map(Known::from).collect();
        Ok(gpus.map(|(gpu, rows)| (gpu, known(rows))).collect())
    }

    /// Keeps what is known for the next agent; where nothing is, the file stays as it is.
    ///
    /// # Errors
    /// Why the next agent will not know it, for the log.
    pub fn write(&self, learnt: &Learnt) -> Result<(), String> {
        if learnt.values().all(Vec::is_empty) {
            return Ok(());
        }
        let gpus = learnt.iter();
        let gpus = gpus.map(|(gpu, known)| (gpu.clone(), known.iter().map(Row::from).collect()));
        let kept = Kept {
            version: VERSION,
            gpus: gpus.collect(),
        };
        let failed = |error: io::Error| format!("{}: {error}", self.path.display());
        let text = serde_json::to_vec(&kept).map_err(|error| failed(error.into()))?;
        replace(&self.path, &text).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt() -> Learnt {
        let known = |fingerprint, kind| Known {
            key: Key { fingerprint, kind },
            mean_ns: 6_000_000,
            spread_ns: 40_000,
            p95_ns: 6_300_000,
            seen: u64::MAX,
        };
        let records = vec![
            known(u64::MAX, Kind::Iteration),
            known(7, Kind::Forward),
            known(7, Kind::Backward),
            known(0, Kind::Optimizer),
        ];
        [("GPU-0".to_owned(), records)].into()
    }

    /// P-LEASE-9: what was learnt is read as it was written, and a file of another version or without sense is dropped with a
    /// line that says which.
    #[test]
    fn what_was_learnt_is_read_as_it_was_written() {
        let dir = std::env::temp_dir().join(format!("tidegate-leases-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("the directory is writable");
        let file = LeasesFile::new(&dir);
        assert_eq!(file.read(), Ok(Learnt::new()));
        file.write(&learnt()).expect("own directory");
        assert_eq!(file.read(), Ok(learnt()));
        file.write(&Learnt::new()).expect("own directory");
        assert_eq!(file.read(), Ok(learnt()), "nothing was learnt since");
        let whole = fs::read_to_string(dir.join(FILE)).expect("it is there");
        for (text, why) in [
            (r#"{"version":2,"gpus":[]}"#, "version 2, expected 1"),
            (&whole[..whole.len() / 2], "EOF"),
            ("[]", "invalid"),
        ] {
            fs::write(dir.join(FILE), text).expect("own directory");
            let told = file.read().expect_err("it is of no use");
            assert!(told.contains(why) && told.contains(FILE), "{told}");
        }
        file.write(&learnt()).expect("own directory");
        assert_eq!(file.read(), Ok(learnt()));
        let left: Vec<_> = fs::read_dir(&dir).expect("it is there").collect();
        assert_eq!(left.len(), 1, "{left:?}");
        fs::remove_dir_all(&dir).expect("own directory");
    }
}
