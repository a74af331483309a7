//! What placement says and what jobs got, as files for the textfile collector of Prometheus' node_exporter.
//!
//! Placement has no daemon that could be scraped, and the agent knows neither profiles nor SLAs. So the commands that
//! run anyway leave a file each, and node_exporter serves both with the time at which they were written.

use super::nfd::put;
use super::offers::Offer;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// What `place publish` leaves.
pub const PUBLISHED: &str = "tidegate-publish.prom";
/// What `place tend` leaves.
pub const TENDED: &str = "tidegate-tend.prom";

/// Name, kind and help.
type Family = (&'static str, &'static str, &'static str);

const PREDICTED: Family = (
    "tidegate_predicted_throughput_ratio",
    "gauge",
    "Share of its throughput alone that a job of a profile would get here, in nine windows of ten",
);
const GOT: Family = (
    "tidegate_job_throughput_ratio",
    "gauge",
    "Share of its throughput alone that a placed job got in its last whole window",
);
const SLA: Family = (
    "tidegate_job_sla_ratio",
    "gauge",
    "Share of its throughput alone that a placed job asks for",
);
const EVICTIONS: Family = (
    "tidegate_evictions_total",
    "counter",
    "Jobs that were moved off this node because they got less than they ask for",
);

/// Names of all of these.
pub const NAMES: [&str; 4] = [PREDICTED.0, GOT.0, SLA.0, EVICTIONS.0];

/// A job that was judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The engine's number.
    pub job: String,
    /// Its profile.
    pub profile: String,
    /// Its SLA, as a share.
    pub sla: f64,
    /// What it got in its last whole window, a share as well; None: nobody can say.
    pub got: Option<f64>,
}

fn family(text: &mut String, (name, kind, help): Family, samples: &[(String, f64)]) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

/// What a node publishes. Names of profiles and numbers of jobs hold nothing that a label would have to escape.
#[must_use]
pub fn published(offers: &[Offer]) -> String {
    let sample = |offer: &Offer| {
        let Offer {
            profile,
            gpus,
            prediction,
        } = offer;
        let labels = format!("{{profile=\"{profile}\",gpus=\"{gpus}\"}}");
        prediction
            .refusals
            .is_empty()
            .then_some((labels, prediction.ratio))
    };
    let samples: Vec<_> = offers.iter().filter_map(sample).collect();
    let mut text = String::new();
    family(&mut text, PREDICTED, &samples);
    text
}

/// What its jobs got, and how many were moved since the memo began.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a count in a format of floats")]
pub fn tended(jobs: &[Judged], evictions: u64) -> String {
    let labels = |own: &Judged| {
        format!(
            "{{offline_job=\"{}\",profile=\"{}\"}}",
            own.job, own.profile
        )
    };
    let got = jobs.iter().filter_map(|own| Some((labels(own), own.got?)));
    let asked = jobs.iter().map(|own| (labels(own), own.sla));
    let mut text = String::new();
    family(&mut text, GOT, &got.collect::<Vec<_>>());
    family(&mut text, SLA, &asked.collect::<Vec<_>>());
    family(&mut text, EVICTIONS, &[(String::new(), evictions as f64)]);
    text
}

/// Leaves `text` as `name` in `dir`, whole.
///
/// # Errors
/// Of the disk.
pub fn leave(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    put(&dir.join(name), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_policy::ids::GpuSet;
    use tidegate_policy::placement::{Node, Profile, predict};

    /// P-CLUSTER-15: who says nothing leaves no sample, and what is said is said in full.
    #[test]
    fn what_nobody_knows_is_no_sample() {
        let text = "unit = \"tokens\"\nrate = 100\nfull = \"8GiB\"\nhalf = \"1GiB\"\n";
        let profile: Profile = crate::profiles::parse(Path::new("a.toml"), text).expect("right");
        let refused = predict(&profile, 1, &Node::new(GpuSet::EMPTY, &[]));
        assert!(!refused.refusals.is_empty());
        let mut good = refused.clone();
        (good.ratio, good.refusals) = (0.625, Vec::new());
        let offer = |profile: &str, prediction| Offer {
            profile: profile.to_owned(),
            gpus: 2,
            prediction,
        };
        let text = published(&[offer("a", refused), offer("b", good)]);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            ["tidegate_predicted_throughput_ratio{profile=\"b\",gpus=\"2\"} 0.625"]
        );
        let judged = |job: &str, got| Judged {
            job: job.to_owned(),
            profile: "b".to_owned(),
            sla: 0.4,
            got,
        };
        let text = tended(&[judged("7", None), judged("8", Some(0.25))], 3);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "tidegate_job_throughput_ratio{offline_job=\"8\",profile=\"b\"} 0.25",
                "tidegate_job_sla_ratio{offline_job=\"7\",profile=\"b\"} 0.4",
                "tidegate_job_sla_ratio{offline_job=\"8\",profile=\"b\"} 0.4",
                "tidegate_evictions_total 3",
            ]
        );
    }
}
