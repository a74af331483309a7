//! The node in the words of Kubernetes' node-feature-discovery: a file whose lines become labels.
//!
//! Its worker reads `/etc/kubernetes/node-feature-discovery/features.d` once a minute. A label
//! `tidegate.dev/PROFILE.K: "P"` says that a job of K GPUs gets P per cent here; pods compare by `Gt`. The file has an
//! expiry, so what a dead node said lapses. It is written beside and renamed, so no half of one is read.

use super::offers::Offer;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;
use tidegate_agent::clock::stamp;

/// Where the worker looks for files.
pub const FILE: &str = "/etc/kubernetes/node-feature-discovery/features.d/tidegate";

/// A file lapses after so many periods without a newer one.
const PERIODS: u32 = 3;

/// The file of a node with so many GPUs that gives this, at a time in ns since 1970.
#[must_use]
pub fn text(offers: &[Offer], slots: u32, period: Duration, unix_ns: u64) -> String {
    let lapse = tidegate_agent::clock::nanos(period.saturating_mul(PERIODS));
    let mut text = format!("# +expiry-time={}\n", stamp(unix_ns.saturating_add(lapse)));
    let given = offers
        .iter()
        .filter_map(|offer| Some((offer, offer.prediction.percent()?)));
    let mut any = false;
    for (offer, percent) in given {
        let _ = writeln!(
            text,
            "tidegate.dev/{}.{}={percent}",
            offer.profile, offer.gpus
        );
        any = true;
    }
    if any {
        let _ = writeln!(text, "tidegate.dev/slots={slots}");
    }
    text
}

/// Puts `text` at `file`, whole.
///
/// # Errors
/// Of the disk.
pub fn put(file: &Path, text: &str) -> io::Result<()> {
    let name = file
        .file_name()
        .ok_or_else(|| io::Error::other("this names no file"))?;
    // Files whose names begin with a dot are not read.
    let beside = file.with_file_name(format!(
        ".{}.{}",
        name.to_string_lossy(),
        std::process::id()
    ));
    let written = (|| {
        let mut new = fs::File::create(&beside)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&beside, file)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};
    use tidegate_policy::ids::GpuSet;
    use tidegate_policy::placement::{Parts, Prediction};

    fn offer(profile: &str, gpus: u8, ratio: Option<f64>) -> Offer {
        let refusals = match ratio {
            Some(_) => vec![],
            None => vec![tidegate_policy::placement::Refusal::Gpus {
                has: 0,
                needs: gpus,
            }],
        };
        let prediction = Prediction {
            ratio: ratio.unwrap_or(0.0),
            mean: 0.0,
            parts: Parts::default(),
            gpus: GpuSet::EMPTY,
            windows: 1,
            unknown: 0.0,
            refusals,
        };
        Offer {
            profile: profile.to_owned(),
            gpus,
            prediction,
        }
    }

    /// As node-feature-discovery's documentation says a file is read: lapsed, it has nothing.
    fn read(text: &str, now: &str) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        let mut lapsed = false;
        for line in text.lines() {
            if let Some(at) = line.strip_prefix("# +expiry-time=") {
                // RFC 3339 in UTC compares as text, to the second.
                lapsed = at[..19] <= now[..19];
            } else if let Some((key, value)) = line.split_once('=').filter(|_| !lapsed) {
                labels.insert(key.to_owned(), value.to_owned());
            }
        }
        labels
    }

    proptest! {
        /// P-CLUSTER-7: both engines select the same nodes for the same numbers, and a file that lapsed selects none.
        #[test]
        fn slurm_and_kubernetes_select_the_same_nodes(
            nodes in prop::collection::vec(prop::collection::vec(prop::option::of(0.0..=1.0f64), 3), 1..6),
            step in 1u8..=10,
            asked in 0usize..3,
        ) {
            let names = [("a", 1u8), ("a_b", 2), ("b", 8)];
            let sla = step * slurm::STEP;
            let feature = format!("tg.{}.{}x{sla}", names[asked].0, names[asked].1);
            for given in nodes {
                let offers: Vec<_> = names.iter().zip(&given).map(|((name, gpus), ratio)| offer(name, *gpus, *ratio)).collect();
                let by_slurm = slurm::features(&offers).into_iter().collect::<BTreeSet<_>>().contains(&feature);
                let file = text(&offers, 8, Duration::from_secs(60), 0);
                let label = format!("tidegate.dev/{}.{}", names[asked].0, names[asked].1);
                let above = |labels: BTreeMap<String, String>| labels
                    .get(&label)
                    .is_some_and(|value| value.parse::<i64>().expect("a number") > i64::from(sla) - 1);
                prop_assert_eq!(by_slurm, above(read(&file, "1970-01-01T00:02:59Z")), "{:?}", given);
                prop_assert!(!above(read(&file, "1970-01-01T00:03:00Z")), "lapsed");
            }
        }
    }

    /// P-CLUSTER-7: a file is whole or the one before.
    #[test]
    fn a_file_is_put_in_place_whole_and_nothing_is_left_beside_it() {
        let dir = std::env::temp_dir().join(format!("tg-nfd-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("writable");
        let file = dir.join("tidegate");
        let whole = text(
            &[offer("a", 1, Some(0.657))],
            2,
            Duration::from_secs(60),
            1_000_000_000,
        );
        put(&file, "old\n").expect("put");
        put(&file, &whole).expect("put");
        let found = fs::read_to_string(&file).expect("there");
        assert_eq!(
            found,
            "# +expiry-time=1970-01-01T00:03:01.000000Z\ntidegate.dev/a.1=65\ntidegate.dev/slots=2\n"
        );
        assert_eq!(fs::read_dir(&dir).expect("there").count(), 1);
        assert!(put(&dir.join("none/there"), "x").is_err());
        fs::remove_dir_all(&dir).expect("there");
    }
}
