//! Events about processes, orders and operators as lines of a recording.

use crate::fields::rows;
use tidegate_policy::event::Event;

rows! {
    fn write_row, read_row: Event, Event<'_>, Event<'static>;
    "online_attached" OnlineAttached { session }
    "online_gone" OnlineGone { session }
    "activity" Activity { session, gpu, reading }
    "progress" Progress { session, at }
    "suspected" Suspected { session, gpu, suspect }
    "request_started" RequestStarted { session, request }
    "request_ended" RequestEnded { session, request }
    "offline_attached" OfflineAttached { session, job, gpus, standing }
    "offline_gone" OfflineGone { session }
    "works" Works { session, works }
    "counts" Counts { session, counts }
    "groups" Groups { session, gpu, groups, lacks }
    "slice_refused" SliceRefused { job, status }
    "terms" Terms { job, terms }
    "channels_changed" ChannelsChanged { session, gpu, channels, grown }
    "disabled" Disabled { order, entered, returned }
    "disable_failed" DisableFailed { order, status }
    "enabled" Enabled { order }
    "enable_failed" EnableFailed { order, status }
    "enable_skipped" EnableSkipped { order }
    "issue_stalled" IssueStalled { gpu }
    "pause" Pause { job }
    "resume" Resume { job }
    "reissue" Reissue { job }
    "drain" Drain { drained }
    "absent" Absent { lasted }
    "ungate" Ungate { until }
    "tick" Tick {}
    // Their rows are in `memory` and `lease`.
    else Event::Memory(_) | Event::Lease(_)
}

/// The name of an event, whose numbers are handed to `put`.
pub(super) fn write(event: &Event<'_>, put: &mut impl FnMut(u64)) -> Option<&'static str> {
    write_row(event, put)
}

/// The event of that name, where there is one.
pub(super) fn read(name: &str, fields: &[u64]) -> Option<Event<'static>> {
    read_row(name, &mut crate::fields::Fields(fields))
}
