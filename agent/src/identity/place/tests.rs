//! Paths as the runtimes make them, and as tenants would.

use super::*;
use proptest::prelude::*;

const ID: &str = "3b1d5c0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c";
const POD: &str = "0b1f9d3e-5a6c-4e2b-9c1d-7e8f9a0b1c2d";

/// What a path is expected to say: unit, container, qos, pod, job. `ID`, `POD` and `P_D` stand for ids.
fn says(path: &str) -> (String, bool, Option<Qos>, bool, String) {
    let path = path
        .replace("ID", ID)
        .replace("POD", POD)
        .replace("P_D", &POD.replace('-', "_"));
    let place = Place::of_path(&path);
    assert!(
        place.container.as_deref().is_none_or(|id| id == ID),
        "{place:?}"
    );
    assert!(
        place.pod.as_deref().is_none_or(|pod| pod == POD),
        "{place:?}"
    );
    (
        place.unit.unwrap_or_default().replace(ID, "ID"),
        place.container.is_some(),
        place.qos,
        place.pod.is_some(),
        place.slurm_job.unwrap_or_default(),
    )
}

/// Path, unit, container or not, class, pod or not, job.
type Row = (
    &'static str,
    &'static str,
    bool,
    Option<Qos>,
    bool,
    &'static str,
);

/// As the runtimes and drivers make them.
const ROWS: &[Row] = &[
    ("/", "", false, None, false, ""),
    ("", "", false, None, false, ""),
    ("/init.scope", "init.scope", false, None, false, ""),
    (
        "/system.slice/vllm@0.service",
        "vllm@0.service",
        false,
        None,
        false,
        "",
    ),
    // docker: cgroupfs, systemd, and docker in docker.
    ("/docker/ID", "", true, None, false, ""),
    (
        "/system.slice/docker-ID.scope",
        "docker-ID.scope",
        true,
        None,
        false,
        "",
    ),
    (
        "/docker/ID/docker/ID/kubepods/podPOD",
        "",
        true,
        None,
        false,
        "",
    ),
    // Kubernetes with systemd: containerd, CRI-O, each class.
    (
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podP_D.slice/cri-containerd-ID.scope",
        "cri-containerd-ID.scope",
        true,
        Some(Qos::BestEffort),
        true,
        "",
    ),
    (
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podP_D.slice/crio-ID.scope",
        "crio-ID.scope",
        true,
        Some(Qos::Burstable),
        true,
        "",
    ),
    (
        "/kubepods.slice/kubepods-podP_D.slice/cri-containerd-ID.scope/nested/x",
        "cri-containerd-ID.scope",
        true,
        Some(Qos::Guaranteed),
        true,
        "",
    ),
    // The same with cgroupfs.
    (
        "/kubepods/besteffort/podPOD/ID",
        "",
        true,
        Some(Qos::BestEffort),
        true,
        "",
    ),
    (
        "/kubepods/burstable/podPOD/crio-ID",
        "",
        true,
        Some(Qos::Burstable),
        true,
        "",
    ),
    (
        "/kubepods/podPOD/ID",
        "",
        true,
        Some(Qos::Guaranteed),
        true,
        "",
    ),
    // containerd told to use systemd by a path of cgroupfs.
    (
        "/system.slice/containerd.service/kubepods-burstable-podP_D.slice:cri-containerd:ID",
        "containerd.service",
        true,
        Some(Qos::Burstable),
        true,
        "",
    ),
    // A kubelet with a root of its own.
    (
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
             kubelet-kubepods-besteffort-podP_D.slice/cri-containerd-ID.scope",
        "cri-containerd-ID.scope",
        true,
        Some(Qos::BestEffort),
        true,
        "",
    ),
    // podman: of root, and of a user, whose part of the path is the user's word.
    (
        "/machine.slice/libpod-ID.scope/container",
        "libpod-ID.scope",
        true,
        None,
        false,
        "",
    ),
    (
        "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
        "user@1000.service",
        false,
        None,
        false,
        "",
    ),
    // Slurm: cgroup v1, v1 with several daemons, v2, v2 with several daemons.
    (
        "/slurm/uid_1000/job_123/step_0/task_0",
        "",
        false,
        None,
        false,
        "123",
    ),
    (
        "/slurm_n1/uid_1000/job_7/step_batch",
        "",
        false,
        None,
        false,
        "7",
    ),
    (
        "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
        "slurmstepd.scope",
        false,
        None,
        false,
        "42",
    ),
    (
        "/system.slice/n2_slurmstepd.scope/job_9/step_extern/user/task_special",
        "n2_slurmstepd.scope",
        false,
        None,
        false,
        "9",
    ),
];

#[test]
fn every_runtime_and_driver_is_read() {
    for &(path, unit, container, qos, pod, job) in ROWS {
        assert_eq!(
            says(path),
            (unit.to_owned(), container, qos, pod, job.to_owned()),
            "{path}"
        );
    }
}

/// P-SECURITY-4: no tenant chooses its role.
#[test]
fn nothing_is_believed_below_what_a_tenant_owns() {
    for (path, what) in [
        ("/docker/ID/kubepods/podPOD/x", "a pod in a container"),
        ("/docker/ID/slurm/uid_0/job_7", "a job in a container"),
        (
            "/user.slice/user@1000.service/kubepods/besteffort/podPOD/ID",
            "a pod of a user's",
        ),
        (
            "/user.slice/user@1000.service/slurm/uid_0/job_7",
            "a job of a user's",
        ),
        (
            "/system.slice/slurmstepd.scope/job_1/step_0/kubepods/podPOD",
            "a pod in a job",
        ),
    ] {
        let (_, _, qos, pod, job) = says(path);
        assert!(
            qos.is_none() && !pod && (job.is_empty() || job == "1"),
            "{what}"
        );
    }
    // Names that only look like it.
    for path in [
        "/kubepodsx/podPOD",
        "/podPOD",
        "/job_7",
        "/slurm/job_x",
        "/docker/ID0",
        "/kubepods/pod../ID",
    ] {
        let (_, _, _, pod, job) = says(path);
        assert!(!pod && job.is_empty(), "{path}");
    }
}

#[test]
fn facts_of_several_hierarchies_are_put_together() {
    let text = "12:devices:/slurm/uid_1000/job_123/step_0\n0::/system.slice/slurmd.service\n";
    let place = Place::of(text);
    assert_eq!(place.slurm_job.as_deref(), Some("123"));
    assert_eq!(place.unit.as_deref(), Some("slurmd.service"));
    assert_eq!(Place::of("garbage\n1:\n::\n"), Place::default());
}

fn component() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,20}",
        Just("kubepods".to_owned()),
        Just("kubepods-besteffort.slice".to_owned()),
        Just(format!("kubepods-pod{}.slice", POD.replace('-', "_"))),
        Just(format!("pod{POD}")),
        Just(ID.to_owned()),
        Just(format!("docker-{ID}.scope")),
        Just("slurmstepd.scope".to_owned()),
        Just("job_7".to_owned()),
        Just("user@1000.service".to_owned()),
    ]
}

proptest! {
    #[test]
    fn any_text_is_read_and_no_fact_holds_what_could_leave_a_directory(text in ".{0,300}") {
        let place = Place::of(&text);
        for name in [place.container, place.pod, place.slurm_job].into_iter().flatten() {
            prop_assert!(name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-'), "{name}");
        }
    }

    /// P-SECURITY-4: no tenant chooses its role.
    #[test]
    fn what_a_tenant_appends_to_its_path_changes_nothing(
        own in prop::collection::vec(component(), 0..5),
        more in prop::collection::vec(component(), 0..5),
        delegated in prop::sample::select(vec![ID.to_owned(), format!("crio-{ID}.scope"), "user@5.service".to_owned()]),
    ) {
        let own = format!("/{}/{delegated}", own.join("/"));
        let longer = format!("{own}/{}", more.join("/"));
        prop_assert_eq!(Place::of_path(&own), Place::of_path(&longer));
    }
}
