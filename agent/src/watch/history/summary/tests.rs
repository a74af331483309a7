use super::super::record::tests::slices;
use super::*;
use proptest::prelude::*;

const S: u64 = 1_000_000_000;

fn of(length_ns: u64, subject: Subject) -> Slice {
    Slice {
        span: Span {
            end_unix_ms: 1_000,
            length_ns,
        },
        subject,
    }
}

fn job(attached: u64, running: u64, launches: u64) -> Subject {
    Subject::Job(JobSlice {
        name: "batch".to_owned(),
        uid: None,
        gpus: 0b11,
        attached,
        running,
        launches,
        units: 2 * launches,
        lost: 0,
        paused: 0,
        held: 0,
        undisturbed: running == attached,
    })
}

fn gpu(busy: u64, running: u64) -> Subject {
    Subject::Gpu(GpuSlice {
        busy,
        running,
        ..GpuSlice::default()
    })
}

#[test]
fn gpus_saved_are_throughput_over_standalone_throughput_times_gpus() {
    // Alone for 10 s at 100 launches a second; then 30 s in which it got 40 % of the time.
    let mut slices = [
        of(10 * S, gpu(0, 10 * S)),
        of(30 * S, gpu(15 * S, 12 * S)),
        of(10 * S, job(10 * S, 10 * S, 1_000)),
        of(30 * S, job(30 * S, 12 * S, 1_200)),
    ];
    for later in [1, 3] {
        slices[later].span.end_unix_ms += 30_000;
    }
    let found = summarise(&slices, &BTreeMap::new());
    let job = &found.jobs[0];
    assert_eq!(job.standalone, Some((100.0, Basis::Alone)));
    assert!((job.fraction.expect("known") - 2_200.0 / 4_000.0).abs() < 1e-9);
    assert!(
        (job.saved.expect("known") - 1.1).abs() < 1e-9,
        "two GPUs at 55 %"
    );
    assert!((found.gpus[0].harvested - 22.0 / 40.0).abs() < 1e-9);
    let given = BTreeMap::from([("batch".to_owned(), 220.0)]);
    let job = &summarise(&slices, &given).jobs[0];
    assert_eq!(job.standalone, Some((220.0, Basis::Given)));
    assert!((job.fraction.expect("known") - 0.25).abs() < 1e-9);
}

#[test]
fn a_job_that_never_had_a_slice_to_itself_is_judged_by_the_time_it_ran() {
    let slices = [of(10 * S, gpu(0, 0)), of(10 * S, job(10 * S, 4 * S, 200))];
    let job = &summarise(&slices, &BTreeMap::new()).jobs[0];
    assert_eq!(job.standalone, Some((50.0, Basis::WhileRunning)));
    assert!((job.fraction.expect("known") - 0.4).abs() < 1e-9);
}

/// P-OPERATE-14: jobs that run at once on a GPU save no more than that GPU, and none of their slices passes for one
/// that a job had to itself. Jobs one after the other do not divide it.
#[test]
fn jobs_that_share_a_gpu_do_not_save_it_twice() {
    let job = |name: &str, gpus, running, launches| {
        let slice = JobSlice {
            name: name.to_owned(),
            uid: None,
            gpus,
            attached: 10 * S,
            running,
            launches,
            units: 0,
            lost: 0,
            paused: 0,
            held: 0,
            undisturbed: running == 10 * S,
        };
        of(10 * S, Subject::Job(slice))
    };
    let saved = |slices: &[Slice]| -> f64 {
        let found = summarise(slices, &BTreeMap::new());
        let jobs = found.jobs.iter();
        jobs.map(|job| job.saved.expect("known")).sum()
    };
    let at_once = [
        of(10 * S, gpu(0, 10 * S)),
        job("a", 1, 10 * S, 500),
        job("b", 1, 10 * S, 300),
        job("gang", 0b11, 10 * S, 300),
    ];
    let found = summarise(&at_once, &BTreeMap::new());
    for job in &found.jobs {
        let basis = job.standalone.expect("known").1;
        assert_eq!(basis, Basis::WhileRunning, "{job:?}");
    }
    assert!(
        (saved(&at_once) - 4.0 / 3.0).abs() < 1e-9,
        "{}",
        saved(&at_once)
    );
    let in_turns = [
        of(10 * S, gpu(0, 10 * S)),
        job("a", 1, 5 * S, 500),
        job("b", 1, 5 * S, 300),
    ];
    assert!(
        (saved(&in_turns) - 1.0).abs() < 1e-9,
        "{}",
        saved(&in_turns)
    );
}

#[test]
fn steady_use_is_not_bursty_and_on_and_off_is() {
    let cv = |busy: [u64; 4]| {
        let slices = busy.map(|busy| of(10, gpu(busy, 0)));
        summarise(&slices, &BTreeMap::new()).gpus[0].busy_cv
    };
    assert!(cv([5; 4]).abs() < 1e-9);
    assert!((cv([0, 10, 0, 10]) - 1.0).abs() < 1e-9);
}

#[test]
fn a_quantile_of_gaps_is_the_bound_it_lies_below() {
    let mut gaps = Gaps::default();
    assert_eq!(gaps.quantile(0.5), None);
    (gaps.counts[0], gaps.counts[3], gaps.count) = (90, 10, 100);
    assert_eq!(gaps.quantile(0.5), Some(1_000_000));
    assert_eq!(gaps.quantile(0.9), Some(1_000_000));
    assert_eq!(gaps.quantile(0.91), Some(10_000_000));
    (gaps.counts[GAPS - 1], gaps.count) = (1, 101);
    assert_eq!(gaps.quantile(1.0), None, "above every bound");
}

proptest! {
    #[test]
    fn whatever_a_history_says_shares_are_shares_and_the_order_of_slices_does_not_matter(
        mut slices in prop::collection::vec(slices(), 0..40),
    ) {
        let found = summarise(&slices, &BTreeMap::new());
        for gpu in &found.gpus {
            for share in [gpu.busy, gpu.harvested, gpu.open] {
                prop_assert!((0.0..=1.0).contains(&share), "{}", share);
            }
            prop_assert!(gpu.busy_cv >= 0.0 && gpu.gaps.cv >= 0.0);
            prop_assert!(gpu.memory.is_none_or(|memory| memory.min <= memory.p5));
        }
        for job in &found.jobs {
            prop_assert!(job.saved.is_none_or(|saved| saved >= 0.0));
        }
        slices.reverse();
        let again = summarise(&slices, &BTreeMap::new());
        let sizes = |s: &Summary| (s.gpus.len(), s.pairs.clone(), s.jobs.len(), s.begin_unix_ms);
        prop_assert_eq!(sizes(&found), sizes(&again));
        for (a, b) in found.gpus.iter().zip(&again.gpus) {
            prop_assert_eq!((a.observed, a.preemptions, &a.gaps.counts), (b.observed, b.preemptions, &b.gaps.counts));
        }
    }
}

/// P-OPERATE-14: a user's jobs add up, two users' jobs of one name are two, and what is not known is a row too.
#[test]
fn the_rows_of_users_add_up_to_those_of_jobs() {
    let own = |name: &str, uid: Option<u32>, launches: u64| {
        let Subject::Job(job) = job(600, 300, launches) else {
            panic!("a job")
        };
        let name = name.to_owned();
        of(1_000, Subject::Job(JobSlice { name, uid, ..job }))
    };
    let slices = [
        of(1_000, gpu(0, 600)),
        own("a", Some(7), 10),
        own("b", Some(7), 20),
        own("a", Some(8), 40),
        own("a", None, 80),
    ];
    let summary = summarise(&slices, &BTreeMap::from([("a".to_owned(), 1e9)]));
    assert_eq!(summary.jobs.len(), 4);
    let users = summary.users();
    let rows: Vec<_> = users
        .iter()
        .map(|user| (user.uid, user.jobs, user.running, user.launches))
        .collect();
    assert_eq!(
        rows,
        [
            (Some(7), 2, 600, 30),
            (Some(8), 1, 300, 40),
            (None, 1, 300, 80)
        ]
    );
    let saved: f64 = summary.jobs.iter().filter_map(|job| job.saved).sum();
    let by_user: f64 = users.iter().map(|user| user.saved).sum();
    assert!((saved - by_user).abs() < 1e-9 && saved > 0.0);
}
