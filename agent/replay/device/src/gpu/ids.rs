//! What names a part of a GPU.

use crate::slots::Key;

/// Names a TSG of one [`Gpu`](crate::Gpu); never means another one after removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TsgId(pub(super) Key);

/// Names a channel of one [`Gpu`](crate::Gpu); never means another one after removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub(super) Key);
