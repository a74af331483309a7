//! Roles, levels and methods as the protocol says them.

use crate::config::{Level, Method, Role};
use tidegate_proto::v1;

/// A role as the protocol says it.
#[must_use]
pub const fn role(role: Role) -> v1::Role {
    match role {
        Role::Online => v1::Role::Online,
        Role::Offline => v1::Role::Offline,
        Role::Ignore => v1::Role::Ignore,
    }
}

/// A role as the protocol names it, if it does.
#[must_use]
pub const fn role_said(role: v1::Role) -> Option<Role> {
    match role {
        v1::Role::Online => Some(Role::Online),
        v1::Role::Offline => Some(Role::Offline),
        v1::Role::Ignore => Some(Role::Ignore),
        v1::Role::Unspecified => None,
    }
}

/// A method as the protocol says it.
#[must_use]
pub const fn method(method: Method) -> v1::StopMethod {
    match method {
        Method::Disable => v1::StopMethod::Disable,
        Method::Restart => v1::StopMethod::Restart,
        Method::Preempt => v1::StopMethod::Preempt,
        Method::PreemptFirst => v1::StopMethod::PreemptFirst,
    }
}

/// A method as the protocol names it, if it does.
#[must_use]
pub const fn method_said(method: v1::StopMethod) -> Option<Method> {
    match method {
        v1::StopMethod::Disable => Some(Method::Disable),
        v1::StopMethod::Restart => Some(Method::Restart),
        v1::StopMethod::Preempt => Some(Method::Preempt),
        v1::StopMethod::PreemptFirst => Some(Method::PreemptFirst),
        v1::StopMethod::Unspecified => None,
    }
}

/// A level as the protocol says it.
#[must_use]
pub const fn level(level: Level) -> v1::ChannelLevel {
    match level {
        Level::L1 => v1::ChannelLevel::L1Agent,
        Level::L2 => v1::ChannelLevel::L2OwnerFile,
        Level::L3 => v1::ChannelLevel::L3Interposer,
        Level::L5 => v1::ChannelLevel::L5LaunchGate,
    }
}
