//! From facts to checks, without asking anybody.

mod driver;
mod leases;
mod library;
mod node;
mod processes;
mod system;
mod view;

#[cfg(test)]
pub(super) mod healthy;

use super::check::{CHECKS, Check};
use super::facts::Facts;
use view::View;

/// All checks, in the order of [`CHECKS`].
pub(super) fn all(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::with_capacity(CHECKS.len());
    if let Some(node) = &facts.node {
        let view = View::new(facts, node);
        checks.extend(system::checks(&view));
        checks.extend(driver::checks(&view));
        checks.extend(node::checks(&view));
        checks.extend(processes::checks(&view));
        checks.push(leases::check(&view));
    }
    if let Some(library) = &facts.library {
        checks.push(library::check(library));
    }
    checks
}
