use super::*;

/// Leases on a GPU of which everything is known.
fn known() -> v1::GpuLeases {
    let decision = |lease: u64, overran| v1::LeaseDecision {
        job: "tune".to_owned(),
        lease,
        ago_ns: 41_000_000,
        fingerprint: 7,
        batch: 4,
        predicted_ns: 6_400_000,
        took_ns: Some(6_210_000),
        slack_ns: 11_000_000,
        unit_ns: 2_010_000,
        units: 1_000,
        granted_ns: 10_900_000,
        ran: Some(5),
        used_ns: Some(10_100_000),
        overran,
    };
    v1::GpuLeases {
        gpu: 0,
        status: Some(v1::LeaseStatus {
            ttft_ns: 500_000_000,
            tpot_ns: 20_000_000,
            granted: 812,
            overruns: 3,
            units: 4_120,
            slack_ns: Some(11_000_000),
            predicted_ns: Some(6_400_000),
            predictions: 1_234,
            prediction_error: 0.0191,
            slack_used: 0.82,
            alone_ns: 7_100_000,
            reported_ago_ns: Some(4_000_000),
            ..v1::LeaseStatus::default()
        }),
        margin: 0.05,
        grace_ns: 1_000_000,
        online: vec![v1::LeaseService {
            pid: 1_234,
            name: "VLLM::EngineCor".to_owned(),
            iterations: 31_234,
            says_batch: true,
        }],
        iterations: (0..10)
            .map(|shape| v1::LeaseShape {
                fingerprint: 0x9e37_79b9_7f4a_7c15 ^ shape,
                mean_ns: 6_100_000,
                tail_ns: 6_400_000,
                seen: 1_000 - shape,
            })
            .collect(),
        trainers: vec![v1::LeaseTrainer {
            job: "tune".to_owned(),
            kind: "backward".to_owned(),
            most: 1_000,
            claimed_ns: 2_000_000,
            unit_ns: 2_010_000,
            leases: 812,
            units: 4_120,
            used_ns: 8_300_000_000,
            no_lease: Some(v1::NoLease {
                kind: "unit_too_long".to_owned(),
                text: "a unit takes 9.1 ms, and 2.0 ms fit".to_owned(),
                remedy: "make units of 2.0 ms at most, by shorter windows, or raise lease.tpot"
                    .to_owned(),
            }),
            ..v1::LeaseTrainer::default()
        }],
        decisions: vec![decision(810, false), decision(811, true)],
        refused: [("no_slack".to_owned(), 40), ("prompt".to_owned(), 113)].into(),
    }
}

/// P-LEASE-7: who reads that a trainer has no lease reads why and what to do; no line is wider than the terminal.
#[test]
fn who_reads_that_there_is_no_lease_reads_why_and_what_to_do() {
    for width in [80, 120] {
        let text = text(&[known()], Some(width));
        let folded = tidegate_text::screen::fold(&text, usize::from(width));
        for line in folded.lines() {
            assert!(line.chars().count() <= usize::from(width), "{line}");
        }
        let words = folded.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            "tune has no lease: a unit takes 9.1 ms, and 2.0 ms fit",
            "make units of 2.0 ms at most, by shorter windows, or raise lease.tpot",
            "off by 1.9 % of late, of 1234 compared",
            "alone it needs 7.1 ms for a token",
            "prompt 113, no slack 40",
            "and 2 more shapes",
            "overran",
        ] {
            assert!(words.contains(said), "{said}: {folded}");
        }
    }
}

/// P-LEASE-7: what programs read has the figures of the text.
#[test]
fn programs_read_the_same_figures() {
    let json = json(&[known()]);
    let gpu = &json["gpus"][0];
    assert_eq!(gpu["leases"]["granted"], 812);
    assert_eq!(gpu["leases"]["job"], Value::Null);
    assert_eq!(gpu["trainers"][0]["no_lease"]["kind"], "unit_too_long");
    assert_eq!(gpu["decisions"][1]["overran"], true);
    assert_eq!(gpu["iterations"][0]["fingerprint"], "9e3779b97f4a7c15");
    assert_eq!(gpu["refused"]["prompt"], 113);
}

#[test]
fn leases_that_are_off_are_said_to_be() {
    let off = v1::GpuLeases {
        status: None,
        ..known()
    };
    assert!(text(&[off], None).starts_with("GPU 0: leases are off\n"));
    assert_eq!(text(&[], None), "no job trains\n");
}
