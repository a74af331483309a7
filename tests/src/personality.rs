//! What an agent must make of each firmware personality, by the published measurements that those play.

use crate::view::status;
use crate::{Node, TRUSTING};
use serde_json::Value;
use tidegate_vgpu::personality::Personality;

/// A level with the method by which it stops what runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// As status names it.
    pub level: &'static str,
    /// As status names it; None where no channel is touched.
    pub method: Option<&'static str>,
    /// Work that runs goes on to the end of its kernel.
    pub at_kernel_end: bool,
}

/// The best there is on such firmware.
#[must_use]
pub const fn expected(personality: Personality) -> Expected {
    let (level, method) = match personality {
        Personality::Evicts | Personality::KernelEnd => ("l1_agent", Some("disable")),
        Personality::Restart => ("l1_agent", Some("disable+restart")),
        Personality::RefusesForeign => ("l2_owner_file", Some("disable")),
        Personality::Preempt | Personality::RefusesRestart => ("l2_owner_file", Some("preempt")),
        Personality::Deaf => ("l5_launch_gate", None),
    };
    Expected {
        level,
        method,
        at_kernel_end: matches!(personality, Personality::KernelEnd),
    }
}

/// Configuration that names what the self-test would find.
#[must_use]
pub fn forced(personality: Personality) -> String {
    let Expected { level, method, .. } = expected(personality);
    let level = level.get(..2).unwrap_or_default().to_uppercase();
    let method = method.map_or_else(String::new, |name| format!("method = \"{name}\"\n"));
    format!("[channel]\nlevel = \"{level}\"\n{method}")
}

/// A device of that personality without an agent; its agents will find out by themselves.
#[must_use]
pub fn device(personality: Personality, args: &[&str]) -> Node {
    let mut all = vec!["--personality", personality.name()];
    all.extend(args);
    let mut node = Node::device_only(&all);
    node.self_test = "full";
    node
}

/// The same with an agent that was checked to have chosen what is expected.
///
/// # Panics
/// When it has not.
#[must_use]
pub fn node(personality: Personality, args: &[&str], more: &str) -> Node {
    let mut node = device(personality, args);
    node.start_agent(&format!("{TRUSTING}{more}"));
    assert_eq!(chosen(&status(&node)), Ok(expected(personality)));
    node
}

/// What the agent says that it chose; else what it says.
///
/// # Errors
/// With the status, where it names none of the levels and methods there are.
pub fn chosen(status: &Value) -> Result<Expected, String> {
    let known = Personality::ALL.map(expected);
    let text = |key: &str| status[key].as_str();
    let same = |one: &&Expected| {
        text("level") == Some(one.level)
            && text("method") == one.method
            && status["method_at_kernel_end"] == one.at_kernel_end
    };
    let found = known.iter().find(same).copied();
    found.ok_or_else(|| {
        let keys = ["level", "level_note", "method", "method_note", "self_test"];
        let said = keys.map(|key| format!("{key}: {}", status[key]));
        said.join(", ")
    })
}
