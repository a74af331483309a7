//! What the node's own services say of a pod, a container or a Slurm job, in files that only root writes.
//!
//! A cgroup's path tells a job's number, not its partition, and a pod's id, not its labels. Whoever
//! knows them on the node (Slurm's prolog, which runs as root with `SLURM_JOB_PARTITION`; something that
//! reads the kubelet's pods) writes a file `slurm-JOB`, `pod-UID` or `container-ID` with a line
//! `name=value` for each. The process' own environment says it too, and is not asked: it is the
//! tenant's word.

use super::place::Place;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The label that a rule's `slurm_partition` looks at.
pub const PARTITION: &str = "partition";
/// Longest file that is read.
const LONGEST: u64 = 64 << 10;

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// What the files in `directory` say of a process there. The names are made of digits, letters and
/// dashes only, so that no cgroup's name leads out of the directory.
#[must_use]
pub fn of(directory: &Path, place: &Place) -> Labels {
    let mut labels = Labels::new();
    let files = [
        ("pod", &place.pod),
        ("container", &place.container),
        ("slurm", &place.slurm_job),
    ];
    for (kind, id) in files {
        if let Some(id) = id {
            labels.extend(read(&directory.join(format!("{kind}-{id}"))).unwrap_or_default());
        }
    }
    labels
}

/// None when there is no such file, or others than root and the agent's user could have written it.
fn read(path: &Path) -> Option<Labels> {
    let about = std::fs::symlink_metadata(path).ok()?;
    let own = nix::unistd::Uid::effective().as_raw();
    let trusted = about.is_file()
        && (about.uid() == 0 || about.uid() == own)
        && about.mode() & 0o022 == 0
        && about.len() <= LONGEST;
    if !trusted {
        tracing::warn!(file = %path.display(), "ignoring a label file: it must be a regular file of at most 64 KiB that only root can write");
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    Some(parse(&text))
}

fn parse(text: &str) -> Labels {
    let pair = |line: &str| {
        let (name, value) = line.trim().split_once('=')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    text.lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(pair)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn labels_are_read_of_what_only_root_or_the_agent_could_have_written() {
        let dir = std::env::temp_dir().join(format!("tg-labels-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("writable");
        let file = dir.join("slurm-7");
        std::fs::write(
            &file,
            "# by the prolog\npartition = harvest\n\nbroken\nx=a=b\n",
        )
        .expect("writable");
        let place = Place {
            slurm_job: Some("7".to_owned()),
            pod: Some("absent".to_owned()),
            ..Place::default()
        };
        let set = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))
                .expect("own file");
        };
        set(0o644);
        let labels = of(&dir, &place);
        assert_eq!(labels.get(PARTITION).map(String::as_str), Some("harvest"));
        assert_eq!(labels.get("x").map(String::as_str), Some("a=b"));
        assert_eq!(labels.len(), 2, "{labels:?}");
        set(0o666);
        assert_eq!(
            of(&dir, &place),
            Labels::new(),
            "anyone could have written it"
        );
        set(0o644);
        std::fs::rename(&file, dir.join("elsewhere")).expect("own directory");
        std::os::unix::fs::symlink(dir.join("elsewhere"), &file).expect("own directory");
        assert_eq!(of(&dir, &place), Labels::new(), "a link leads anywhere");
        let _ = std::fs::remove_dir_all(&dir);
    }
}
