//! What an operator can set, checked once into a [`Config`] that cannot be wrong.
//!
//! A setting has one dotted path (`gate.cooldown`) and one row in [`SETTINGS`]: how it is read, how it
//! is shown, and from when a change of it counts. Values come in layers, each over the one before:
//! built in, the file, its drop-ins in the order of their names, the environment
//! (`TIDEGATE_GATE__COOLDOWN=5ms`), flags (`--set gate.cooldown=5ms`), and what an operator set on the
//! running agent. [`Sources`] names the layers and reads them, again at every reload; [`Loaded`] is
//! what came out, with the origin of every value. Times and sizes carry their unit in the value ("2ms",
//! "64MiB"), so that no reader has to guess it. Whatever is wrong is an error that names the place.

mod fits;
mod load;
mod log_filter;
mod nearest;
mod origin;
mod rules;
mod sections;
mod settings;
mod tunables;
mod tuning;
mod users;
mod value;
mod watching;

pub use fits::pool_of;
pub use load::{Change, FILE, Loaded, Sources, environment};
pub use log_filter::{BadFilter, log_filter};
pub use origin::{ConfigError, Origin};
pub use rules::show_rule;
pub use sections::{
    AgentLoss, Config, Cooldown, Gate, Identity, LevelChoice, Limits, Log, LogFormat, LongGate,
    Memory, MethodChoice, OnAgentLoss, Qos, Rule, SelfTestKind, Suspects, Unproven,
};
pub use settings::{Applies, SETTINGS, Setting, setting};
pub use tidegate_node::kinds::{Level, Method, Role};
pub use tunables::tunables;
pub use tuning::Tuning;
pub use value::{bytes as size, duration, rise, show_duration};
pub use watching::{Kept, Listen, Watching, state_directory};
