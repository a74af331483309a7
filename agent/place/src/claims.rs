//! Which GPUs each Slurm job of this node got, where Slurm itself does not choose: a file a job.
//!
//! `claim` runs in the prolog and `release` in the epilog; the task prolog reads the file. Files are in the agent's
//! directory, which a restart of the node empties.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tidegate_policy::ids::{GpuId, GpuSet};

/// The claims of a node.
#[derive(Clone, Debug)]
pub struct Claims(PathBuf);

/// Whether `job` is a job's number: it becomes a file's name.
#[must_use]
pub fn is_job(job: &str) -> bool {
    (1..=12).contains(&job.len()) && job.bytes().all(|byte| byte.is_ascii_digit())
}

/// `0,2`, as `CUDA_VISIBLE_DEVICES` has it.
#[must_use]
pub fn list(gpus: GpuSet) -> String {
    let gpus: Vec<_> = gpus.iter().map(|gpu| gpu.0.to_string()).collect();
    gpus.join(",")
}

fn parse(text: &str) -> GpuSet {
    let gpus = text.trim().split(',').filter_map(|gpu| gpu.parse().ok());
    gpus.map(GpuId).collect()
}

impl Claims {
    /// In the agent's directory.
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        Self(run_dir.join("claims"))
    }

    /// GPUs that other jobs have.
    #[must_use]
    pub fn taken(&self, but: &str) -> GpuSet {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let others = entries.filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| is_job(name) && name != but)
        });
        others
            .filter_map(|entry| fs::read_to_string(entry.path()).ok())
            .fold(GpuSet::EMPTY, |all, text| all.union(parse(&text)))
    }

    /// `job` gets `gpus`.
    ///
    /// # Errors
    /// Of the disk.
    pub fn claim(&self, job: &str, gpus: GpuSet) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        fs::write(self.0.join(job), format!("{}\n", list(gpus)))
    }

    /// `job` is over.
    ///
    /// # Errors
    /// Of the disk; a job that had none is no error.
    pub fn release(&self, job: &str) -> io::Result<()> {
        match fs::remove_file(self.0.join(job)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_its_gpus_until_it_is_over() {
        let dir = std::env::temp_dir().join(format!("tg-claims-{}", std::process::id()));
        let claims = Claims::new(&dir);
        assert_eq!(claims.taken("7"), GpuSet::EMPTY);
        claims
            .claim("7", GpuSet::from_bits(0b101))
            .expect("writable");
        claims
            .claim("8", GpuSet::from_bits(0b010))
            .expect("writable");
        assert_eq!(claims.taken("7"), GpuSet::from_bits(0b010));
        claims.release("8").expect("there");
        claims.release("8").expect("no error");
        assert_eq!(list(claims.taken("9")), "0,2");
        fs::remove_dir_all(&dir).expect("there");
        assert!(!is_job("../7") && !is_job("") && is_job("123456"));
    }
}
