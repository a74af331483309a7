use super::*;
use crate::watch::recent::Shares;

fn status(jobs: usize) -> v1::GetStatusResponse {
    let memory = v1::GpuMemory {
        pool_bytes: 1 << 30,
        quarantined_bytes: 6 << 20,
        ..v1::GpuMemory::default()
    };
    let gpu = |index| v1::GpuStatus {
        index,
        uuid: format!("GPU-{index}"),
        preemptions: 3,
        usage: Some(v1::GpuUsage {
            gaps: Some(crate::watch::latency::histogram(
                &crate::watch::latency::Buckets::new(&tidegate_node::usage::GAP_BOUNDS_NS),
            )),
            overlap_ns: vec![0; 2],
            ..v1::GpuUsage::default()
        }),
        preemptions_per_unit: Some(v1::PreemptionsPerUnit {
            unit: "request".to_owned(),
            units: 5,
            preemptions: 4,
            untouched: 2,
            once: 2,
            ..v1::PreemptionsPerUnit::default()
        }),
        memory: Some(memory.clone()),
        ..v1::GpuStatus::default()
    };
    let job = |n| v1::JobStatus {
        name: format!("job {n}"),
        launches: 10,
        ..v1::JobStatus::default()
    };
    v1::GetStatusResponse {
        version: "0.1.0".to_owned(),
        gpus: vec![gpu(0), gpu(1)],
        jobs: (0..jobs).map(job).collect(),
        ..v1::GetStatusResponse::default()
    }
}

fn scrape(status: v1::GetStatusResponse) -> Scrape {
    let shares = Shares {
        aligned: vec![1.0, 0.5],
        ..Shares::default()
    };
    Scrape {
        shares: vec![shares; status.gpus.len()],
        status,
        denied: vec![("/tidegate.v1.Control/Pause", 2)],
        history_lost: 0,
    }
}

fn series(text: &str, name: &str) -> usize {
    let of = |line: &&str| line.starts_with(name) && line[name.len()..].starts_with(['{', ' ']);
    text.lines().filter(of).count()
}

/// P-OPERATE-12: a scrape is well-formed, bounded and true.
#[test]
fn counters_end_in_total_in_both_formats_and_units_are_said_where_there_is_a_place_for_them() {
    let open = render(scrape(status(1)), Format::OpenMetrics);
    assert!(open.ends_with("# EOF\n"));
    assert!(open.contains("# TYPE tidegate_preemptions counter\n"));
    assert!(open.contains("# UNIT tidegate_preempt_latency_seconds seconds\n"));
    let text = render(scrape(status(1)), Format::Text);
    assert!(text.contains("# TYPE tidegate_preemptions_total counter\n"));
    assert!(
        text.contains("tidegate_preemptions_total{gpu=\"1\",UUID=\"GPU-1\",reason=\"online\"} 3\n")
            || text.contains("reason=\"online\"")
    );
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
        let name = line.split(' ').nth(2).expect("a name");
        let is_counter = line.ends_with(" counter");
        assert_eq!(is_counter, name.ends_with("_total"), "{line}");
    }
}

/// P-OPERATE-12: a scrape is well-formed, bounded and true.
#[test]
fn a_histogram_of_preemptions_tells_none_one_and_more_apart() {
    let text = render(scrape(status(0)), Format::Text);
    let at = |le: &str| {
        let found = text.lines().find(|line| {
            line.starts_with("tidegate_preemptions_per_request_bucket{")
                && line.contains(&format!("le=\"{le}\""))
        });
        found
            .and_then(|line| line.rsplit(' ').next())
            .map(str::to_owned)
    };
    assert_eq!(at("0.0").or_else(|| at("0")).as_deref(), Some("2"));
    assert_eq!(at("1.0").or_else(|| at("1")).as_deref(), Some("4"));
    assert_eq!(at("+Inf").as_deref(), Some("5"));
}

/// P-MEMORY-20: what offline costs online's users can be watched beside what the operator allows.
#[test]
fn what_is_used_of_the_budget_has_a_series_for_each_cause_and_nothing_before_online_worked() {
    let mut spent = status(0);
    let budget = |prompts_ns, busy_ns, ttft_allowed| v1::Budget {
        prompts_ns,
        busy_ns,
        preempted_ns: 2_000_000,
        short_ns: 5_000_000,
        short_tpot_ns: 7_000_000,
        shortages: 1,
        ttft_allowed,
        tpot_allowed: ttft_allowed / 2,
    };
    spent.gpus[0].budget = Some(budget(1_000_000_000, 10_000_000_000, 100));
    spent.gpus[1].budget = Some(budget(0, 0, 0));
    let text = render(scrape(spent), Format::Text);
    let found = |name: &str| -> Vec<_> {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(str::to_owned).collect()
    };
    let of = "gpu=\"0\",UUID=\"GPU-0\"";
    assert_eq!(
        found("tidegate_online_delay_ratio"),
        [
            format!("tidegate_online_delay_ratio{{{of},slo=\"ttft\",cause=\"preemption\"}} 0.002"),
            format!("tidegate_online_delay_ratio{{{of},slo=\"ttft\",cause=\"memory\"}} 0.005"),
            format!("tidegate_online_delay_ratio{{{of},slo=\"tpot\",cause=\"memory\"}} 0.0007"),
        ]
    );
    assert_eq!(
        found("tidegate_slo_allowed_ratio"),
        [
            format!("tidegate_slo_allowed_ratio{{{of},slo=\"ttft\"}} 0.01"),
            format!("tidegate_slo_allowed_ratio{{{of},slo=\"tpot\"}} 0.005"),
        ]
    );
}

/// P-TRAINER-10: a job that trains has series of its training, and others have none.
#[test]
fn a_training_has_series_and_two_of_one_name_are_one() {
    let mut trains = status(3);
    let trainer = |tokens, resident_layers| v1::TrainerStatus {
        tokens,
        steps: 4,
        units_redone: 2,
        said: Some(v1::Training {
            resident_layers,
            ..v1::Training::default()
        }),
        ..v1::TrainerStatus::default()
    };
    for (job, trainer) in trains
        .jobs
        .iter_mut()
        .zip([trainer(100, 3), trainer(11, 1)])
    {
        "tune".clone_into(&mut job.name);
        job.units = 7;
        job.trainer = Some(trainer);
    }
    let text = render(scrape(trains), Format::Text);
    for (name, value) in [
        ("tokens_total", "111"),
        ("steps_total", "8"),
        ("units_redone_total", "4"),
        ("resident_layers", "4.0"),
    ] {
        let name = format!("tidegate_trainer_{name}");
        assert_eq!(series(&text, &name), 1, "{text}");
        let line = format!("{name}{{offline_job=\"tune\"}} {value}\n");
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert!(text.contains("tidegate_job_units_total{offline_job=\"tune\"} 14\n"));
}

/// P-OPERATE-12: a scrape is well-formed, bounded and true.
#[test]
fn there_are_no_more_series_than_gpus_and_a_bounded_number_of_jobs() {
    let text = render(scrape(status(1_000)), Format::Text);
    assert_eq!(series(&text, "tidegate_job_launches_total"), JOBS);
    assert!(text.contains(&format!(
        "tidegate_job_launches_total{{offline_job=\"{OTHER}\"}} {}\n",
        (1_000 - (JOBS - 1)) * 10
    )));
    assert_eq!(series(&text, "tidegate_quarantined_pages"), 2);
    assert_eq!(series(&text, "tidegate_pair_alignment"), 1);
    let mut hostile = status(0);
    for n in 0..500 {
        hostile.processes.push(v1::ProcessStatus {
            library_version: format!("v{n}"),
            ..v1::ProcessStatus::default()
        });
    }
    let text = render(scrape(hostile), Format::Text);
    assert!(series(&text, "tidegate_clients") <= 4, "{text}");
}

/// P-OPERATE-12: a scrape is well-formed, bounded and true.
#[test]
fn a_job_s_name_cannot_break_out_of_its_label() {
    let mut named = status(1);
    named.jobs[0].name = "x\"} 1\ntidegate_evil 1 \\".to_owned();
    let text = render(scrape(named), Format::Text);
    assert!(!text.lines().any(|line| line.starts_with("tidegate_evil")));
    assert!(
        text.contains("{offline_job=\"x\\\"} 1tidegate_evil 1 \\\\\"}"),
        "{text}"
    );
}

/// P-OPERATE-12: a scrape is well-formed, bounded and true.
#[test]
fn names_are_unique_and_every_metric_has_help() {
    let text = render(scrape(status(1)), Format::Text);
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "))
        .map(|rest| rest.split_once(' ').expect("help"))
        .inspect(|(name, help)| assert!(help.len() > 10, "{name}"))
        .map(|(name, _)| name)
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// P-OPERATE-18: where jobs run is there to join on, for as many jobs as have series.
#[test]
fn jobs_have_the_names_of_where_they_run_as_far_as_they_have_series() {
    let mut placed = status(1_000);
    placed.processes = (0..1_000)
        .map(|n| v1::ProcessStatus {
            job: format!("job {n}"),
            whereabouts: Some(v1::Whereabouts {
                namespace: "team-a".to_owned(),
                pod: format!("batch-{n}"),
                ..v1::Whereabouts::default()
            }),
            ..v1::ProcessStatus::default()
        })
        .collect();
    let places = render(scrape(placed), Format::Text);
    assert_eq!(
        series(&places, "tidegate_job_info"),
        JOBS - 1,
        "all that have a name"
    );
    let first = "tidegate_job_info{offline_job=\"job 0\",offline_namespace=\"team-a\",offline_pod=\"batch-0\",offline_container=\"\",";
    assert!(places.contains(first), "{places}");
}

/// P-OPERATE-21: what jobs that take turns deserve and get, and how long they waited.
#[test]
fn shares_are_those_of_jobs_that_take_turns_and_no_others() {
    let mut shared = status(3);
    shared.jobs[1].share = Some(v1::JobShare {
        deserved: 0.8,
        got: 0.75,
        ..v1::JobShare::default()
    });
    shared.jobs[1].turns = 12;
    shared.turn_wait = Some(v1::Histogram {
        bounds_ns: vec![10_000_000, 100_000_000],
        counts: vec![1, 2, 3],
        sum_ns: 1_500_000_000,
        ..v1::Histogram::default()
    });
    let text = render(scrape(shared), Format::Text);
    for line in [
        "tidegate_job_share_ratio{offline_job=\"job 1\",part=\"deserved\"} 0.8\n",
        "tidegate_job_share_ratio{offline_job=\"job 1\",part=\"got\"} 0.75\n",
        "tidegate_job_turns_total{offline_job=\"job 1\"} 12\n",
        "tidegate_job_turns_total{offline_job=\"job 0\"} 0\n",
        "tidegate_turn_wait_seconds_sum{} 1.5\n",
        "tidegate_turn_wait_seconds_count{} 6\n",
        "tidegate_turn_wait_seconds_bucket{le=\"0.1\"} 3\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(series(&text, "tidegate_job_share_ratio"), 2);
}
