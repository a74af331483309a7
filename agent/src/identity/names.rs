//! What people call the place where a process runs: the names that a scheduler's tools print.
//!
//! A cgroup's path has ids. The name and namespace of a pod come from its label file ([`super::labels`]), or the directory
//! in which the kubelet keeps the logs of pods: `NAMESPACE_NAME_UID`, neither of which can have a `_`
//! (`kubelet/kuberuntime`, `BuildPodLogsDirectory`; names are DNS labels and subdomains). A tenant of it chooses
//! both, so they are [`Text`]; neither ever gives a role.

use super::labels::Labels;
use super::place::Place;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tidegate_node::message::Whereabouts;
use tidegate_node::text::Text;

/// Labels of a pod's file that name it.
const NAMESPACE: &str = "namespace";
/// See [`NAMESPACE`].
const POD: &str = "pod";
/// Entries of the directory that are looked at: a kubelet runs 110 pods unless told otherwise.
const PODS: usize = 4_096;

/// Where `place` is, with the names that `labels` or the pods' logs in `pod_logs` have for it.
#[must_use]
pub fn of(place: &Place, labels: &Labels, pod_logs: &Path) -> Whereabouts {
    let text = |said: &Option<String>| Text::name(said.as_deref().unwrap_or_default());
    let mut whereabouts = Whereabouts {
        unit: text(&place.unit),
        container: text(&place.container),
        pod_uid: text(&place.pod),
        slurm_job: text(&place.slurm_job),
        ..Whereabouts::default()
    };
    let labelled = labels.get(NAMESPACE).zip(labels.get(POD));
    if let (Some((namespace, pod)), Some(_)) = (labelled, &place.pod) {
        whereabouts.namespace = Text::name(namespace);
        whereabouts.pod = Text::line(pod);
    } else if let Some((namespace, pod)) = place.pod.as_ref().and_then(|uid| find(pod_logs, uid)) {
        whereabouts.namespace = namespace;
        whereabouts.pod = pod;
    }
    whereabouts
}

/// Namespace and name of the pod with this UID; None: the directory does not say, or others than root and the own user
/// could have written there.
fn find(pod_logs: &Path, uid: &str) -> Option<(Text, Text)> {
    let about = std::fs::symlink_metadata(pod_logs).ok()?;
    let own = nix::unistd::Uid::effective().as_raw();
    let trusted =
        about.is_dir() && (about.uid() == 0 || about.uid() == own) && about.mode() & 0o022 == 0;
    if !trusted {
        return None;
    }
    let entries = std::fs::read_dir(pod_logs).ok()?.take(PODS).flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .find_map(|name| {
            let (rest, id) = name.rsplit_once('_')?;
            let (namespace, pod) = rest.split_once('_').filter(|_| id == uid)?;
            Some((Text::name(namespace), Text::line(pod)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// P-OPERATE-18: names that people join on, by whom only root writes.
    #[test]
    fn a_pod_has_the_names_of_its_labels_else_of_the_kubelets_logs_that_only_root_writes() {
        const UID: &str = "0b7a1c52-52e4-4b1c-9c5f-0d6f1a2b3c4d";
        let dir = std::env::temp_dir().join(format!("tg-pods-{}", std::process::id()));
        for pod in [
            format!("team-a_batch-0_{UID}"),
            "kube-system_etcd_8fa3".to_owned(),
            "junk".to_owned(),
        ] {
            std::fs::create_dir_all(dir.join(pod)).expect("writable");
        }
        let mode = |mode| {
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).expect("own");
        };
        mode(0o755);
        let place = Place {
            pod: Some(UID.to_owned()),
            container: Some("a1b2c3d4e5f60718".repeat(4)),
            ..Place::default()
        };
        let none = Labels::new();
        assert_eq!(of(&place, &none, &dir).text(), "team-a/batch-0");
        let labels = [("namespace", "other"), ("pod", "named\u{1b}[2J")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let labelled = of(&place, &labels.clone().into(), &dir);
        assert_eq!(labelled.text(), "other/named?[2J");
        let elsewhere = Place::default();
        assert_eq!(
            of(&elsewhere, &labels.into(), &dir).text(),
            "",
            "no pod at all"
        );
        let unknown = dir.join("absent");
        assert_eq!(of(&place, &none, &unknown).text(), format!("pod {UID}"));
        mode(0o777);
        let open = of(&place, &none, &dir);
        assert_eq!(open.pod.as_str(), "", "anyone could have made the entry");
        mode(0o755);
        let container = Place { pod: None, ..place };
        let shown = of(&container, &none, &dir);
        assert_eq!(shown.text(), "container a1b2c3d4e5f6");
        let slurm = Place {
            slurm_job: Some("17".to_owned()),
            unit: Some("slurmstepd.scope".to_owned()),
            ..Place::default()
        };
        assert_eq!(of(&slurm, &none, &dir).text(), "slurm 17");
        let _ = std::fs::remove_dir_all(&dir);
    }
}
