//! Traces, the synthetic generator and the virtual-time engine.
//!
//! One crate feeds three users: the demo, which replays a trace against real processes; the
//! evaluation, which replays hours of it in virtual time; and an operator, who asks what their own
//! trace would harvest. They share:
//!
//! * [`trace`]: requests, and the readers of the public formats;
//! * [`input`] and [`names`]: what people write, and one clear error where it is wrong;
//! * [`generator`]: synthetic traces from published parameters, by seed;
//! * [`engine`]: a continuous-batching server whose iterations take calibrated time;
//! * [`gap`]: the decode gaps between those iterations;
//! * [`clock`] and [`queue`]: virtual time and the events on it;
//! * [`estimate`]: the trace on one GPU, alone;
//! * [`spec`], [`run`], [`record`], [`pair`]: two workloads on one GPU under a policy, what came of
//!   it, and what it cost online;
//! * [`trainer`], [`tuning`], [`run::beside`], [`slo`], [`comparison`]: a finetuning job beside online, under ours and
//!   the published schedulers, and whether what was promised was kept;
//! * [`hardware`] and [`costs`]: what things take, each figure with its source; [`calibration`] and [`iteration`]:
//!   the same from somebody's tables;
//! * [`scenarios`], [`draw`], [`cases`], [`evaluation`], [`sweep`]: whole tables of such runs, of pairs that
//!   somebody chose or that a seed did;
//! * [`figures`], [`verdict`] and [`report`]: what is said of them; [`timeline`]: what happened, for a trace
//!   viewer.
//!
//! Nothing here reads a clock or draws from anything but a seed, so the same call gives the same
//! answer on every machine. Only the readers ([`input`]) touch files, and only [`sweep`] starts
//! threads.
#![forbid(unsafe_code)]

pub mod baselines;
pub mod batch;
mod bits;
pub mod calibration;
pub mod cases;
pub mod clock;
pub mod comparison;
pub mod compute;
pub mod costs;
pub mod draw;
pub mod engine;
pub mod estimate;
pub mod evaluation;
pub mod figures;
pub mod fleet;
pub mod gap;
pub mod generator;
pub mod hardware;
pub mod input;
pub mod iteration;
pub mod kv;
pub mod memory;
pub mod names;
pub mod pair;
pub mod placing;
pub mod plan;
pub mod policies;
pub mod queue;
pub mod record;
pub mod report;
pub mod run;
pub mod scenarios;
pub mod slo;
pub mod spec;
pub mod sweep;
pub mod tidegate;
pub mod timeline;
pub mod trace;
pub mod trainer;
pub mod tuning;
pub mod verdict;
