//! The soft landing over random lives of an agent.

use proptest::prelude::*;
use tidegate_core::landing::{
    AgentView, Effect, HANDOVER_NS, Landing, OnLoss, PATIENCE_NS, Pulse, STALE_NS,
};

const MS: u64 = 1_000_000;
const TICK: u64 = 25 * MS;

/// One stretch of the agent's life.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    ticks: u64,
    beats: bool,
    stream: bool,
    hands_over: bool,
}

fn stretch() -> impl Strategy<Value = Stretch> {
    (
        1_u64..80,
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(ticks, beats, stream, hands_over)| Stretch {
            ticks,
            beats,
            stream,
            hands_over,
        })
}

proptest! {
    #[test]
    fn channels_are_enabled_in_time_and_never_while_an_agent_lives(
        life in prop::collection::vec(stretch(), 1..12),
        max_ns in prop::sample::select(vec![0, 300 * MS]),
        run in any::<bool>(),
        refused in prop::collection::vec(prop::bool::weighted(0.7), 0..6),
    ) {
        let on_loss = if run { OnLoss::Run } else { OnLoss::Hold { max_ns } };
        let mut landing = Landing::default();
        let (mut now, mut heartbeat, mut handing_over) = (1_000 * MS, 1_000 * MS, 0);
        let (mut tried, mut enabled, mut said, mut gate_open) = (false, false, false, true);
        let mut refused = refused.into_iter();
        for part in life {
            if part.hands_over && !part.beats {
                handing_over = now;
            }
            for _ in 0..part.ticks {
                now += TICK;
                if part.beats {
                    heartbeat = now;
                    handing_over = 0;
                }
                let look = AgentView { heartbeat_ns: heartbeat, handing_over_ns: handing_over, generation: 7, stream: part.stream };
                let (next, effects) = landing.step(look, on_loss, now);
                landing = next;
                let alive = part.stream && now - heartbeat <= STALE_NS;
                prop_assert!(!(enabled && effects.contains(&Effect::EnableChannels)), "nothing is enabled twice");
                let patience = if handing_over == 0 { heartbeat + PATIENCE_NS } else { handing_over + HANDOVER_NS };
                let again = tried && !enabled && !alive && now >= patience;
                prop_assert!(!again || effects.contains(&Effect::EnableChannels), "it tries again");
                for effect in effects {
                    match effect {
                        Effect::CloseGate => gate_open = false,
                        Effect::EnableChannels => {
                            prop_assert!(tried || !gate_open, "the gate is closed before channels are enabled");
                            prop_assert!(handing_over != 0 || now - heartbeat >= PATIENCE_NS);
                            prop_assert!(handing_over == 0 || now - handing_over >= HANDOVER_NS);
                            tried = true;
                            enabled = !refused.next().unwrap_or(false);
                            let (next, then) = landing.enabled(enabled);
                            landing = next;
                            prop_assert_eq!(then, enabled.then_some(7), "released is said of enabled channels");
                            said |= then.is_some();
                        }
                        Effect::OpenGate => {
                            prop_assert!(tried && (run || max_ns != 0));
                            gate_open = true;
                        }
                        Effect::ObeyAgent => {
                            prop_assert!(alive);
                            (tried, enabled, said, gate_open) = (false, false, false, true);
                        }
                    }
                }
                prop_assert_eq!(landing == Landing::Obeying, alive, "an agent is obeyed exactly while it lives");
                if !alive && now >= patience {
                    prop_assert!(tried, "nothing is left disabled past the deadline");
                }
                prop_assert_eq!(said, enabled, "released is said once every channel is enabled");
                if !alive && !tried {
                    prop_assert!(!gate_open, "no launch passes between the loss and the landing");
                }
            }
        }
    }
}

proptest! {
    /// P-LIFECYCLE-2: what a process does without an agent does not depend on how far its clock is from the agent's, and
    /// a clock that went back keeps no channel disabled for longer.
    #[test]
    fn only_that_the_heartbeat_changes_counts(
        life in prop::collection::vec((1_u64..80, any::<bool>()), 1..12),
        ahead in prop_oneof![Just(0_i64), -300_000_i64..86_400_000],
        back in prop::option::of(0_usize..12),
    ) {
        const BEGIN: u64 = 400_000 * MS;
        let theirs = |now: u64, back: u64| now.checked_add_signed(ahead * 1_000_000).expect("in range") - back;
        let (mut same, mut shifted) = (Landing::default(), Landing::default());
        let (mut heartbeat, mut own, mut other) = (BEGIN, Pulse::default(), Pulse::default());
        let (mut now, mut went_back, mut alive_at) = (BEGIN, 0, BEGIN);
        for (nth, (ticks, beats)) in life.into_iter().enumerate() {
            if back == Some(nth) && went_back == 0 {
                went_back = 50_000 * MS;
            }
            for _ in 0..ticks {
                now += TICK;
                if beats {
                    (heartbeat, alive_at) = (now, now);
                }
                let view = |pulse: &mut Pulse, at| AgentView {
                    heartbeat_ns: pulse.look(heartbeat, at),
                    handing_over_ns: 0,
                    generation: 7,
                    stream: true,
                };
                let at = theirs(now, went_back);
                let mut effects = Vec::new();
                for (landing, pulse, at) in [(&mut same, &mut own, now), (&mut shifted, &mut other, at)] {
                    let (next, done) = landing.step(view(pulse, at), OnLoss::default(), at);
                    *landing = if done.contains(&Effect::EnableChannels) { next.enabled(true).0 } else { next };
                    effects.push(done);
                }
                if went_back == 0 {
                    prop_assert_eq!(&effects[0], &effects[1], "{} ns ahead", ahead);
                }
                // What passed between the two looks around the jump is lost.
                let spare = if went_back == 0 { TICK } else { 2 * TICK };
                if now >= alive_at + PATIENCE_NS + spare {
                    let landed = matches!(shifted, Landing::Landed { released: true, .. });
                    prop_assert!(landed, "{:?} long after the agent was gone", shifted);
                }
                if beats {
                    prop_assert_eq!(shifted, Landing::Obeying);
                }
            }
        }
    }
}
