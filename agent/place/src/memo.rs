//! What `place tend` remembers from one run to the next, in a file: what it learnt of each profile here, and which jobs
//! it sent away. By the calendar; a file that is lost or not understood is as none.

use super::nfd::put;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;
use tidegate_policy::tend::{Correction, Hold};
use tidegate_policy::time::Instant;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memo {
    /// By profile.
    pub corrections: BTreeMap<String, Correction>,
    /// Jobs that are kept away from here, by number.
    pub holds: BTreeMap<String, (Hold, String)>,
    /// The end of the last window that was learnt from, by job, ms since 1970.
    pub learnt: BTreeMap<String, u64>,
    /// When a job was last sent away.
    pub last_here: Option<Instant>,
    /// Jobs that were.
    pub evictions: u64,
}

fn ns(value: &Value) -> Option<Instant> {
    Some(Instant::from_nanos(value.as_u64()?))
}

impl Memo {
    /// What `file` holds.
    #[must_use]
    pub fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let rows = |name: &str| value[name].as_object().cloned().unwrap_or_default();
        let correction = |row: &Value| {
            let factor = row["factor"].as_f64()?;
            Some(Correction {
                factor,
                at: ns(&row["at"])?,
            })
        };
        let hold = |row: &Value| {
            let above = row["above"].as_f64().unwrap_or(f64::INFINITY);
            let profile = row["profile"].as_str()?.to_owned();
            Some((
                Hold {
                    until: ns(&row["until"])?,
                    above,
                },
                profile,
            ))
        };
        Self {
            corrections: rows("corrections")
                .iter()
                .filter_map(|(name, row)| Some((name.clone(), correction(row)?)))
                .collect(),
            holds: rows("holds")
                .iter()
                .filter_map(|(name, row)| Some((name.clone(), hold(row)?)))
                .collect(),
            learnt: rows("learnt")
                .iter()
                .filter_map(|(name, row)| Some((name.clone(), row.as_u64()?)))
                .collect(),
            last_here: ns(&value["last_here"]),
            evictions: value["evictions"].as_u64().unwrap_or(0),
        }
    }

    /// Has what a clock that was ahead wrote count from `now` on: nothing waits for that clock's time to come.
    pub fn bear(&mut self, now: Instant, hold_off: Duration) {
        for own in self.corrections.values_mut() {
            own.at = own.at.min(now);
        }
        for (hold, _) in self.holds.values_mut() {
            hold.until = hold.until.min(now.after(hold_off));
        }
        self.last_here = self.last_here.map(|at| at.min(now));
    }

    /// Keeps it.
    ///
    /// # Errors
    /// Of the disk.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let corrections = self.corrections.iter().map(|(name, own)| {
            (
                name.clone(),
                json!({"factor": own.factor, "at": own.at.as_nanos()}),
            )
        });
        let holds = self.holds.iter().map(|(job, (hold, profile))| {
            let row =
                json!({"until": hold.until.as_nanos(), "above": hold.above, "profile": profile});
            (job.clone(), row)
        });
        let value = json!({
            "corrections": corrections.collect::<serde_json::Map<_, _>>(),
            "holds": holds.collect::<serde_json::Map<_, _>>(),
            "learnt": self.learnt,
            "last_here": self.last_here.map(Instant::as_nanos),
            "evictions": self.evictions,
        });
        put(file, &format!("{value:#}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_and_rubbish_is_nothing() {
        let file = std::env::temp_dir().join(format!("tg-memo-{}", std::process::id()));
        let mut memo = Memo {
            evictions: 2,
            last_here: Some(Instant::from_nanos(7)),
            ..Memo::default()
        };
        memo.corrections.insert(
            "a".to_owned(),
            Correction {
                factor: 0.5,
                at: Instant::from_nanos(3),
            },
        );
        let never = Hold {
            until: Instant::from_nanos(9),
            above: f64::INFINITY,
        };
        memo.holds.insert("12".to_owned(), (never, "a".to_owned()));
        memo.learnt.insert("12".to_owned(), 5);
        memo.write(&file).expect("writable");
        assert_eq!(Memo::read(&file), memo);
        fs::write(&file, "{\"holds\": 3, \"corrections\": {\"a\": 4}").expect("writable");
        assert_eq!(Memo::read(&file), Memo::default());
        fs::remove_file(&file).expect("there");
    }

    /// P-CLUSTER-10: a calendar that was a year ahead and is set right keeps no job away for a year.
    #[test]
    fn a_clock_that_was_ahead_keeps_nothing_away_for_longer_than_the_hold_off() {
        let day = Duration::from_secs(86_400);
        let now = Instant::from_nanos(0).after(day * 20_000);
        let ahead = now.after(day * 365);
        let hold_off = Duration::from_secs(7_200);
        let held = |until| Hold { until, above: 0.5 };
        let mut memo = Memo {
            last_here: Some(ahead),
            ..Memo::default()
        };
        let learnt = |at| Correction { factor: 0.5, at };
        memo.corrections.insert("ahead".to_owned(), learnt(ahead));
        memo.corrections.insert("right".to_owned(), learnt(now));
        for (job, until) in [("1", ahead), ("2", now.after(day / 24))] {
            memo.holds
                .insert(job.to_owned(), (held(until), "a".to_owned()));
        }
        memo.bear(now, hold_off);
        assert_eq!(memo.last_here, Some(now));
        assert!(memo.corrections.values().all(|own| own.at == now));
        assert_eq!(memo.holds["1"].0.until, now.after(hold_off));
        assert_eq!(memo.holds["2"].0.until, now.after(day / 24));
        let before = memo.clone();
        memo.bear(now, hold_off);
        assert_eq!(memo, before);
    }
}
