//! The soft landing over random lives of an agent.

use proptest::prelude::*;
use tidegate_core::landing::{Effect, HANDOVER_NS, Landing, Look, OnLoss, PATIENCE_NS, STALE_NS};

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
    ) {
        let on_loss = if run { OnLoss::Run } else { OnLoss::Hold { max_ns } };
        let mut landing = Landing::default();
        let (mut now, mut heartbeat, mut handing_over) = (1_000 * MS, 1_000 * MS, 0);
        let (mut enabled, mut gate_open) = (false, true);
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
                let look = Look { heartbeat_ns: heartbeat, handing_over_ns: handing_over, generation: 7, stream: part.stream };
                let (next, effects) = landing.step(look, on_loss, now);
                landing = next;
                let alive = part.stream && now - heartbeat <= STALE_NS;
                for effect in effects {
                    match effect {
                        Effect::CloseGate => gate_open = false,
                        Effect::EnableChannels => {
                            prop_assert!(!gate_open, "the gate is closed before channels are enabled");
                            prop_assert!(handing_over != 0 || now - heartbeat >= PATIENCE_NS);
                            prop_assert!(handing_over == 0 || now - handing_over >= HANDOVER_NS);
                            enabled = true;
                        }
                        Effect::WriteReleased(generation) => {
                            prop_assert!(enabled, "released is written after the channels are enabled");
                            prop_assert_eq!(generation, 7);
                        }
                        Effect::OpenGate => {
                            prop_assert!(enabled && (run || max_ns != 0));
                            gate_open = true;
                        }
                        Effect::ObeyAgent => {
                            prop_assert!(alive);
                            (enabled, gate_open) = (false, true);
                        }
                    }
                }
                prop_assert_eq!(landing == Landing::Obeying, alive, "an agent is obeyed exactly while it lives");
                let patience = if handing_over == 0 { heartbeat + PATIENCE_NS } else { handing_over + HANDOVER_NS };
                if !alive && now >= patience {
                    prop_assert!(enabled, "nothing stays disabled past the deadline");
                }
                if !alive && !enabled {
                    prop_assert!(!gate_open, "no launch passes between the loss and the landing");
                }
            }
        }
    }
}
