//! Things counted since the start.

/// What the shell counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each has its help text in `rows`")]
pub struct Counters {
    pub rings: u64,
    pub late_turns: u64,
    pub stalls: u64,
    pub disables_failed: u64,
    pub enables_failed: u64,
    pub enables_withheld: u64,
    pub slices_refused: u64,
    pub wakes_overtaken: u64,
    pub orders_stale: u64,
    pub fired: u64,
    pub strayed: u64,
    pub foreign_claims: u64,
    pub proofs_lapsed: u64,
    pub requests_doubted: u64,
    pub channels_refused: u64,
    pub pages_dropped: u64,
    pub remotes_late: u64,
    pub notes: u64,
    pub blocks_invalidated: u64,
}

impl Counters {
    /// Name, value and help of each.
    #[must_use]
    pub fn rows(&self) -> [(&'static str, u64, &'static str); 19] {
        [
            ("rings", self.rings, "Doorbells heard"),
            (
                "late_turns",
                self.late_turns,
                "Times the control thread came late by 250 ms or more",
            ),
            (
                "issue_stalls",
                self.stalls,
                "Calls the driver did not return from for 50 ms",
            ),
            (
                "disables_failed",
                self.disables_failed,
                "Orders to disable that the driver refused",
            ),
            (
                "enables_failed",
                self.enables_failed,
                "Orders to enable that the driver refused",
            ),
            (
                "enables_withheld",
                self.enables_withheld,
                "Enables given up because online was busy again",
            ),
            (
                "slices_refused",
                self.slices_refused,
                "Timeslices of jobs that the driver refused to set",
            ),
            (
                "wakes_overtaken",
                self.wakes_overtaken,
                "Enables that took effect after online had begun, with their disable behind them",
            ),
            (
                "orders_stale",
                self.orders_stale,
                "Orders that a newer one had replaced before they were handed on",
            ),
            (
                "disables_unasked",
                self.fired,
                "Disables that a GPU's thread made for an edge by itself",
            ),
            (
                "disables_strayed",
                self.strayed,
                "Of those, for an edge that was none",
            ),
            (
                "foreign_claims",
                self.foreign_claims,
                "RM clients reported by a process that could not prove them",
            ),
            (
                "proofs_lapsed",
                self.proofs_lapsed,
                "Proven RM clients that were another process' when proven again",
            ),
            (
                "requests_doubted",
                self.requests_doubted,
                "Times an online process said that requests are in flight and no work came",
            ),
            (
                "channels_refused",
                self.channels_refused,
                "Channels beyond what a session or the journal may hold",
            ),
            (
                "pages_dropped",
                self.pages_dropped,
                "Processes that rang, or woke the agent, beyond the allowed rate",
            ),
            (
                "remotes_late",
                self.remotes_late,
                "Orders of level L3 that a process did not answer",
            ),
            ("notes", self.notes, "Remarks of attached processes"),
            (
                "invalidated_blocks",
                self.blocks_invalidated,
                "KV blocks whose content offline jobs lost to reclaims",
            ),
        ]
    }
}
