//! What this node gives a job of each profile, as a number for the engine.

use super::facts::Facts;
use std::fmt;
use std::time::Duration;
use tidegate_policy::placement::{Costs, Horizon, Node, Prediction, Profile, is_name, predict};

/// A profile, and what a job of it would get.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Its name.
    pub profile: String,
    /// GPUs of one job.
    pub gpus: u8,
    /// The figure, or why there is none.
    pub prediction: Prediction,
}

/// What is known of a node by `facts`, alone in its GPUs and not corrected.
#[must_use]
pub fn node(facts: &Facts, horizon: Horizon) -> Node<'_> {
    Node {
        horizon,
        costs: Costs::default(),
        ..Node::new(facts.gpus, &facts.slices)
    }
}

/// Over windows of `window`, and nothing before `least`.
#[must_use]
pub fn horizon(window: Duration, least: Duration) -> Horizon {
    Horizon {
        window,
        least,
        ..Horizon::default()
    }
}

/// What a job of each of `profiles` would get; `correction` is measured over predicted of a profile here.
#[must_use]
pub fn offers(
    profiles: &[Profile],
    facts: &Facts,
    horizon: Horizon,
    correction: impl Fn(&str) -> f64,
) -> Vec<Offer> {
    let offer = |profile: &Profile| Offer {
        profile: profile.name().to_owned(),
        gpus: profile.gpus(),
        prediction: predict(
            profile,
            profile.gpus(),
            &Node {
                correction: correction(profile.name()),
                ..node(facts, horizon)
            },
        ),
    };
    profiles.iter().map(offer).collect()
}

/// What a user asks for: `tidegate: profile=summarise sla=0.40`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The profile.
    pub profile: String,
    /// The least share of its throughput alone, in per cent.
    pub percent: u8,
    /// GPUs.
    pub gpus: u8,
}

/// The line that shows a right one.
pub const RIGHT: &str = "write --comment 'tidegate: profile=NAME sla=SHARE', as in \
                         'tidegate: profile=summarise sla=0.40'; gpus=N for more than one";

/// Why it is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotUnderstood(&'static str);

impl fmt::Display for NotUnderstood {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}; {RIGHT}", self.0)
    }
}

impl Wish {
    /// Reads a job's comment; None: it is not about Tidegate. As `job_submit.lua` reads it.
    ///
    /// # Errors
    /// It begins as one, and is none.
    pub fn of(comment: &str) -> Result<Option<Self>, NotUnderstood> {
        let Some(words) = comment.strip_prefix("tidegate:") else {
            return Ok(None);
        };
        let (mut profile, mut percent, mut gpus) = (None, None, None);
        for word in words.split_ascii_whitespace() {
            let taken = match word.split_once('=') {
                Some(("profile", name)) if is_name(name) => {
                    profile.replace(name.to_owned()).is_none()
                }
                Some(("sla", share)) => match per_cent(share) {
                    Some(share) => percent.replace(share).is_none(),
                    None => return Err(NotUnderstood("sla is no share from 0.01 to 1")),
                },
                Some(("gpus", count)) => {
                    match count.parse().ok().filter(|n| (1..=64).contains(n)) {
                        Some(count) => gpus.replace(count).is_none(),
                        None => return Err(NotUnderstood("gpus is no number from 1 to 64")),
                    }
                }
                _ => return Err(NotUnderstood("a word is not understood")),
            };
            if !taken {
                return Err(NotUnderstood("a word stands twice"));
            }
        }
        match (profile, percent) {
            (Some(profile), Some(percent)) => Ok(Some(Self {
                profile,
                percent,
                gpus: gpus.unwrap_or(1),
            })),
            (None, _) => Err(NotUnderstood("profile is missing")),
            (_, None) => Err(NotUnderstood("sla is missing")),
        }
    }
}

/// `0.4` or `1`, with at most six decimals, as per cent rounded up.
fn per_cent(text: &str) -> Option<u8> {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if whole.len() != 1 || part.len() > 6 || !digits(whole) || !digits(part) {
        return None;
    }
    let millionths: u32 = format!("{whole}{part:0<6}").parse().ok()?;
    let percent = millionths.div_ceil(10_000);
    u8::try_from(percent)
        .ok()
        .filter(|percent| (1..=100).contains(percent) && millionths <= 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// P-CLUSTER-5: a comment says what is asked for, or is refused in one line that shows a right one.
    #[test]
    fn a_comment_is_understood_or_refused_with_one_that_is_right() {
        let wish = |text: &str| Wish::of(text).expect("understood");
        assert_eq!(wish("nightly run"), None);
        let asked = wish("tidegate: profile=summarise sla=0.40").expect("one");
        assert_eq!(
            (asked.profile.as_str(), asked.percent, asked.gpus),
            ("summarise", 40, 1)
        );
        assert_eq!(
            wish("tidegate: sla=1 gpus=8 profile=a").expect("one").gpus,
            8
        );
        // A share between two per cents asks for the higher.
        assert_eq!(
            wish("tidegate: profile=a sla=0.401").expect("one").percent,
            41
        );
        for text in [
            "tidegate:",
            "tidegate: profile=a",
            "tidegate: sla=0.4",
            "tidegate: profile=../../etc sla=0.4",
            "tidegate: profile=a sla=0",
            "tidegate: profile=a sla=1.01",
            "tidegate: profile=a sla=40",
            "tidegate: profile=a sla=nan",
            "tidegate: profile=a sla=0.4 sla=0.1",
            "tidegate: profile=a sla=0.4 gpus=0",
            "tidegate: profile=a sla=0.4; rm -rf /",
            "tidegate: profile=%s sla=0.4",
        ] {
            let why = Wish::of(text).expect_err(text).to_string();
            assert!(
                why.contains("'tidegate: profile=summarise sla=0.40'") && !why.contains('\n'),
                "{why}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_understood_is_safe_to_name(text in "tidegate:[ a-z=./%;$0-9\n]{0,60}") {
            if let Ok(Some(wish)) = Wish::of(&text) {
                prop_assert!(is_name(&wish.profile) && (1..=100).contains(&wish.percent));
            }
        }
    }
}
