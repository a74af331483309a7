//! The shell as it ships, turned by hand, when jobs come and go.

mod rig;

use rig::Rig;
use tidegate_node::kinds::Role;

/// P-SECURITY-7: what one tenant takes is bounded and named, and nobody else notices.
#[test]
fn a_days_worth_of_job_names_leaves_no_more_than_a_few() {
    let mut rig = Rig::new(1, Rig::without_waits());
    let stays = rig.attach(Role::Offline, "honest");
    let of = |rig: &Rig, session| rig.shell.members().get(session).and_then(|own| own.job);
    let honest = of(&rig, stays).expect("it has a job");
    // Slurm begins anew with its numbers.
    for (nth, new) in (0..100_000)
        .map(|nth| (nth, true))
        .chain((0..1_000).map(|nth| (nth, false)))
    {
        let passing = rig.attach(Role::Offline, &format!("slurm-{nth}"));
        let job = of(&rig, passing).expect("it has a job");
        assert_ne!(job, honest);
        let name = rig.shell.lanes().job(job).map(|job| job.name.to_string());
        assert_eq!(name, Some(format!("slurm-{nth}")));
        assert!(!new || rig.shell.usage().job(job).attached == 0);
        rig.pass(1_000);
        rig.exit(passing);
    }
    assert!(
        rig.shell.lanes().jobs.len() <= 300,
        "{}",
        rig.shell.lanes().jobs.len()
    );
    assert_eq!(rig.shell.policy().jobs().count(), 1);
}
