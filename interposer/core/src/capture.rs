//! The prober and a stream capture never overlap.
//!
//! Asking a stream for its state can invalidate a capture, in whichever thread and mode. Both sides announce themselves
//! before they look at the other (a store, a full fence, a load), so at least one of them sees the other. Then the
//! prober gives up, or the begin-capture call waits for the one query that is under way.

use crate::word::Word;
use core::sync::atomic::Ordering::SeqCst;

/// The two announcements; the captures come first, where a detour finds them.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Announce<W> {
    captures: W,
    probing: W,
}

impl<W: Word> Announce<W> {
    /// Over two words that are zero.
    pub const fn new(captures: W, probing: W) -> Self {
        Self { captures, probing }
    }

    /// Before a capture begins. The caller then waits until [`Self::probing`] is false.
    pub fn capture_begins(&self) {
        self.captures.fetch_add(1);
    }

    /// After a capture ended, or did not begin.
    pub fn capture_ended(&self) {
        self.captures.fetch_add(u64::MAX);
    }

    /// Whether any capture is under way.
    #[inline(always)]
    pub fn capturing(&self) -> bool {
        self.captures.load(core::sync::atomic::Ordering::Acquire) != 0
    }

    /// Whether the prober asks a stream at this moment.
    pub fn probing(&self) -> bool {
        self.probing.load(SeqCst) != 0
    }

    /// Announces the prober; `false`: a capture is under way, nothing was announced, ask nothing.
    pub fn probe_begins(&self) -> bool {
        self.probing.fetch_add(1);
        if self.captures.load(SeqCst) == 0 {
            return true;
        }
        self.probe_ended();
        false
    }

    /// After the prober asked.
    pub fn probe_ended(&self) {
        self.probing.fetch_add(u64::MAX);
    }
}
