//! Stream capture: which streams record instead of run, and which calls break that.
//!
//! A *capture* begins in its origin stream; other streams join it by waiting for an event that was
//! recorded in it. Each stream of a capture has a *frontier*: the nodes its next node depends on.
//! A call that may not happen now is refused, and every capture it would have disturbed becomes
//! *invalidated*: its streams refuse everything until the capture is ended.
//!
//! ```text
//!   none --begin--> active --end--> none, a graph
//!   none --wait for a captured event--> active (joined)
//!   active --a forbidden call--> invalidated --end--> none, no graph
//! ```
//!
//! Pure: streams, events, threads, contexts and nodes are numbers, and the caller holds the lock.

use std::collections::BTreeMap;

use tidegate_abi::cuda::CUresult;

use crate::result::CudaResult;

/// Number of a stream.
pub type StreamId = u64;
/// Number of an event.
pub type EventId = usize;
/// Number of a node in the graph that is being captured.
pub type NodeId = usize;

/// `CUstreamCaptureMode`: which potentially unsafe calls a capture forbids, and in a thread, which
/// captures' wishes it heeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Forbidden in every thread.
    #[default]
    Global,
    /// Forbidden in the thread that captures.
    ThreadLocal,
    /// Forbidden nowhere.
    Relaxed,
}

impl Mode {
    /// The mode of a C value.
    pub fn of(value: i32) -> CudaResult<Self> {
        match value {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

/// A stream as captures see it.
#[derive(Clone, Copy, Debug)]
pub struct StreamInfo {
    /// Its number.
    pub id: StreamId,
    /// Number of its context.
    pub context: u64,
    /// Whether it synchronises with the legacy stream.
    pub blocking: bool,
    /// Whether it is the legacy stream.
    pub legacy: bool,
}

/// One capture. `G` is the graph it fills.
#[derive(Debug)]
pub struct Capture<G> {
    /// Number of the capture, unique in the process.
    pub id: u64,
    /// The graph.
    pub graph: G,
    /// Whether a forbidden call broke it.
    pub invalidated: bool,
    mode: Mode,
    thread: u64,
    origin: StreamId,
    streams: BTreeMap<StreamId, Member>,
    /// Nodes this capture made that no other node depends on yet.
    leaves: Vec<NodeId>,
}

#[derive(Debug)]
struct Member {
    info: StreamInfo,
    frontier: Vec<NodeId>,
}

/// An event that was last recorded in a capture.
#[derive(Clone, Debug)]
struct Captured {
    capture: u64,
    frontier: Vec<NodeId>,
}

/// All captures of the process.
#[derive(Debug)]
pub struct Captures<G> {
    captures: Vec<Capture<G>>,
    events: BTreeMap<EventId, Captured>,
    next_id: u64,
}

/// What a stream does with work.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs.
    Run,
    /// It is recorded, depending on these nodes.
    Record(Vec<NodeId>),
}

/// What waiting for an event comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Wait {
    /// A wait on the device.
    Real,
    /// Dependencies in a capture; nothing else is to be done.
    Captured,
}

impl<G> Captures<G> {
    /// No captures.
    pub const fn new() -> Self {
        Self {
            captures: Vec::new(),
            events: BTreeMap::new(),
            next_id: 1,
        }
    }

    /// Captures that have begun and not ended.
    pub fn count(&self) -> usize {
        self.captures.len()
    }

    /// The capture that `stream` is in.
    pub fn of_stream(&self, stream: StreamId) -> Option<&Capture<G>> {
        self.captures
            .iter()
            .find(|capture| capture.streams.contains_key(&stream))
    }

    fn of_stream_mut(&mut self, stream: StreamId) -> Option<&mut Capture<G>> {
        self.captures
            .iter_mut()
            .find(|capture| capture.streams.contains_key(&stream))
    }

    fn invalidate(&mut self, which: impl Fn(&Capture<G>) -> bool, error: CUresult) -> CudaResult {
        let mut hit = false;
        for capture in self.captures.iter_mut().filter(|capture| which(capture)) {
            capture.invalidated = true;
            hit = true;
        }
        if hit { Err(error) } else { Ok(()) }
    }

    /// Begins a capture in `stream`; further nodes depend on `frontier`.
    pub fn begin(
        &mut self,
        stream: StreamInfo,
        mode: Mode,
        thread: u64,
        graph: G,
        frontier: Vec<NodeId>,
    ) -> CudaResult {
        if stream.legacy {
            return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.of_stream(stream.id).is_some() {
            return Err(CUresult::ILLEGAL_STATE);
        }
        let id = self.next_id;
        self.next_id += 1;
        let member = Member {
            info: stream,
            frontier,
        };
        self.captures.push(Capture {
            id,
            graph,
            invalidated: false,
            mode,
            thread,
            origin: stream.id,
            streams: BTreeMap::from([(stream.id, member)]),
            leaves: Vec::new(),
        });
        Ok(())
    }

    /// Ends the capture that began in `stream`: its graph, if nothing went wrong.
    pub fn end(&mut self, stream: StreamId, thread: u64) -> Result<G, (CUresult, Option<G>)> {
        let at = self
            .captures
            .iter()
            .position(|c| c.streams.contains_key(&stream));
        let Some(at) = at else {
            return Err((CUresult::ILLEGAL_STATE, None));
        };
        let capture = &mut self.captures[at];
        if capture.origin != stream {
            capture.invalidated = true;
            return Err((CUresult::STREAM_CAPTURE_UNMATCHED, None));
        }
        if capture.mode != Mode::Relaxed && capture.thread != thread {
            return Err((CUresult::STREAM_CAPTURE_WRONG_THREAD, None));
        }
        let capture = self.captures.remove(at);
        let frontier = &capture.streams[&stream].frontier;
        if capture.invalidated {
            Err((CUresult::STREAM_CAPTURE_INVALIDATED, Some(capture.graph)))
        } else if capture.leaves.iter().all(|leaf| frontier.contains(leaf)) {
            Ok(capture.graph)
        } else {
            Err((CUresult::STREAM_CAPTURE_UNJOINED, Some(capture.graph)))
        }
    }

    /// What becomes of work for `stream`. Work for the legacy stream would wait for streams that
    /// only record.
    pub fn fate(&mut self, stream: StreamInfo) -> CudaResult<Fate> {
        if stream.legacy {
            self.use_legacy(stream.context)?;
            return Ok(Fate::Run);
        }
        match self.of_stream(stream.id) {
            None => Ok(Fate::Run),
            Some(capture) if capture.invalidated => Err(CUresult::STREAM_CAPTURE_INVALIDATED),
            Some(capture) => Ok(Fate::Record(capture.streams[&stream.id].frontier.clone())),
        }
    }

    /// Notes that `node`, made in `stream` from the nodes of its [`Fate::Record`], is the newest.
    pub fn recorded(&mut self, stream: StreamId, node: NodeId) {
        let Some(capture) = self.of_stream_mut(stream) else {
            return;
        };
        if let Some(member) = capture.streams.get_mut(&stream) {
            let before = std::mem::replace(&mut member.frontier, Vec::from([node]));
            capture.leaves.retain(|leaf| !before.contains(leaf));
            capture.leaves.push(node);
        }
    }

    /// The nodes that the next node of `stream` depends on.
    pub fn frontier(&self, stream: StreamId) -> Option<&[NodeId]> {
        Some(&self.of_stream(stream)?.streams[&stream].frontier)
    }

    /// Replaces or extends the frontier of `stream`.
    pub fn set_frontier(&mut self, stream: StreamId, nodes: &[NodeId], extend: bool) -> CudaResult {
        let capture = self.of_stream_mut(stream).ok_or(CUresult::ILLEGAL_STATE)?;
        if capture.invalidated {
            return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
        }
        if let Some(member) = capture.streams.get_mut(&stream) {
            if !extend {
                // Nodes that the application takes over are its own to join.
                capture
                    .leaves
                    .retain(|leaf| !member.frontier.contains(leaf));
                member.frontier.clear();
            }
            join(&mut member.frontier, nodes);
        }
        Ok(())
    }

    /// An event is recorded in `stream`. True: in a capture, and nothing is to be run.
    pub fn record_event(&mut self, stream: StreamInfo, event: EventId) -> CudaResult<bool> {
        match self.fate(stream)? {
            Fate::Run => {
                self.events.remove(&event);
                Ok(false)
            }
            Fate::Record(frontier) => {
                let capture = self.of_stream(stream.id).map_or(0, |capture| capture.id);
                self.events.insert(event, Captured { capture, frontier });
                Ok(true)
            }
        }
    }

    /// An event is destroyed, or recorded where no capture is.
    pub fn forget_event(&mut self, event: EventId) {
        self.events.remove(&event);
    }

    /// `stream` waits for an event, which has `ever` been recorded outside of captures.
    pub fn wait_event(
        &mut self,
        stream: StreamInfo,
        event: EventId,
        ever: bool,
    ) -> CudaResult<Wait> {
        let fate = self.fate(stream)?;
        let Some(captured) = self.events.get(&event).cloned() else {
            return match fate {
                Fate::Run => Ok(Wait::Real),
                Fate::Record(_) if !ever => Ok(Wait::Captured),
                Fate::Record(_) => {
                    let here = |c: &Capture<G>| c.streams.contains_key(&stream.id);
                    self.invalidate(here, CUresult::STREAM_CAPTURE_ISOLATION)?;
                    Ok(Wait::Captured)
                }
            };
        };
        let theirs = self.captures.iter().position(|c| c.id == captured.capture);
        let Some(theirs) = theirs else {
            return Err(CUresult::CAPTURED_EVENT);
        };
        if self.captures[theirs].invalidated {
            return Err(CUresult::STREAM_CAPTURE_INVALIDATED);
        }
        if stream.legacy {
            let here = |c: &Capture<G>| c.id == captured.capture;
            self.invalidate(here, CUresult::STREAM_CAPTURE_IMPLICIT)?;
        }
        let own = self.of_stream(stream.id).map(|capture| capture.id);
        if own.is_some_and(|own| own != captured.capture) {
            let both = |c: &Capture<G>| Some(c.id) == own || c.id == captured.capture;
            self.invalidate(both, CUresult::STREAM_CAPTURE_MERGE)?;
        }
        let members = &mut self.captures[theirs].streams;
        let member = members.entry(stream.id).or_insert(Member {
            info: stream,
            frontier: Vec::new(),
        });
        join(&mut member.frontier, &captured.frontier);
        Ok(Wait::Captured)
    }

    /// Somebody asks about or waits for an event itself.
    pub fn ask_event(&mut self, event: EventId) -> CudaResult {
        let Some(captured) = self.events.get(&event).map(|captured| captured.capture) else {
            return Ok(());
        };
        self.invalidate(|c| c.id == captured, CUresult::CAPTURED_EVENT)?;
        Err(CUresult::CAPTURED_EVENT)
    }

    /// Somebody asks about or waits for `stream`.
    pub fn ask_stream(&mut self, stream: StreamInfo) -> CudaResult {
        if stream.legacy {
            return self.use_legacy(stream.context);
        }
        let here = |c: &Capture<G>| c.streams.contains_key(&stream.id);
        self.invalidate(here, CUresult::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Somebody waits for a whole context.
    pub fn ask_context(&mut self, context: u64) -> CudaResult {
        let inside = |c: &Capture<G>| c.streams.values().any(|m| m.info.context == context);
        self.invalidate(inside, CUresult::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Somebody uses the legacy stream of `context`.
    pub fn use_legacy(&mut self, context: u64) -> CudaResult {
        let clash = |c: &Capture<G>| c.waits_with_legacy(context);
        self.invalidate(clash, CUresult::STREAM_CAPTURE_IMPLICIT)
    }

    /// Whether using the legacy stream of `context` now would break a capture.
    pub fn legacy_would_break(&self, context: u64) -> bool {
        self.captures.iter().any(|c| c.waits_with_legacy(context))
    }

    /// A potentially unsafe call by `thread`, which heeds captures as its `mode` says.
    pub fn unsafe_call(&mut self, thread: u64, mode: Mode) -> CudaResult {
        let forbids = |c: &Capture<G>| match mode {
            Mode::Relaxed => false,
            Mode::ThreadLocal => c.thread == thread && c.mode != Mode::Relaxed,
            Mode::Global => {
                c.mode == Mode::Global || c.thread == thread && c.mode == Mode::ThreadLocal
            }
        };
        self.invalidate(forbids, CUresult::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// A stream is destroyed: a capture it is in cannot be ended well.
    pub fn destroy_stream(&mut self, stream: StreamId) {
        if let Some(at) = self.captures.iter().position(|c| c.origin == stream) {
            self.captures.remove(at);
        } else if let Some(capture) = self.of_stream_mut(stream) {
            capture.invalidated = true;
            capture.streams.remove(&stream);
        }
    }
}

impl<G> Capture<G> {
    fn waits_with_legacy(&self, context: u64) -> bool {
        self.streams
            .values()
            .any(|m| m.info.blocking && m.info.context == context)
    }
}

fn join(frontier: &mut Vec<NodeId>, nodes: &[NodeId]) {
    for node in nodes {
        if !frontier.contains(node) {
            frontier.push(*node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u64 = 1;
    const OTHER: u64 = 2;

    fn stream(id: StreamId) -> StreamInfo {
        StreamInfo {
            id,
            context: 1,
            blocking: true,
            legacy: false,
        }
    }

    const LEGACY: StreamInfo = StreamInfo {
        id: 0,
        context: 1,
        blocking: false,
        legacy: true,
    };

    fn begun(mode: Mode) -> Captures<()> {
        let mut captures = Captures::new();
        captures
            .begin(stream(1), mode, ME, (), Vec::new())
            .expect("begins");
        captures
    }

    fn launch(captures: &mut Captures<()>, id: StreamId, node: NodeId) -> Vec<NodeId> {
        let Fate::Record(after) = captures.fate(stream(id)).expect("allowed") else {
            panic!("stream {id} does not capture");
        };
        captures.recorded(id, node);
        after
    }

    fn fork(captures: &mut Captures<()>, event: EventId, from: StreamId, to: StreamId) {
        assert!(captures.record_event(stream(from), event).expect("allowed"));
        assert_eq!(
            captures.wait_event(stream(to), event, false),
            Ok(Wait::Captured)
        );
    }

    #[test]
    fn nodes_of_a_stream_depend_on_the_one_before() {
        let mut captures = begun(Mode::Global);
        assert_eq!(launch(&mut captures, 1, 10), []);
        assert_eq!(launch(&mut captures, 1, 11), [10]);
        assert_eq!(captures.fate(stream(2)), Ok(Fate::Run));
        assert_eq!(captures.end(1, ME), Ok(()));
        assert_eq!(captures.fate(stream(1)), Ok(Fate::Run));
    }

    #[test]
    fn a_stream_joins_by_an_event_and_must_join_back() {
        let mut captures = begun(Mode::Global);
        launch(&mut captures, 1, 10);
        fork(&mut captures, 7, 1, 2);
        assert_eq!(launch(&mut captures, 2, 11), [10]);
        assert_eq!(launch(&mut captures, 1, 12), [10]);
        fork(&mut captures, 8, 2, 1);
        assert_eq!(launch(&mut captures, 1, 13), [12, 11]);
        assert_eq!(captures.end(1, ME), Ok(()));
    }

    #[test]
    fn work_that_did_not_join_back_spoils_the_end() {
        let mut captures = begun(Mode::Global);
        launch(&mut captures, 1, 10);
        fork(&mut captures, 7, 1, 2);
        launch(&mut captures, 2, 11);
        let error = CUresult::STREAM_CAPTURE_UNJOINED;
        assert_eq!(captures.end(1, ME), Err((error, Some(()))));
        assert_eq!(captures.count(), 0);
    }

    #[test]
    fn only_the_origin_ends_a_capture_and_only_its_thread_unless_relaxed() {
        let mut captures = begun(Mode::ThreadLocal);
        fork(&mut captures, 7, 1, 2);
        let wrong = (CUresult::STREAM_CAPTURE_WRONG_THREAD, None);
        assert_eq!(captures.end(1, OTHER), Err(wrong));
        assert_eq!(captures.end(3, ME), Err((CUresult::ILLEGAL_STATE, None)));
        assert_eq!(
            captures.end(2, ME),
            Err((CUresult::STREAM_CAPTURE_UNMATCHED, None))
        );
        let invalidated = (CUresult::STREAM_CAPTURE_INVALIDATED, Some(()));
        assert_eq!(captures.end(1, ME), Err(invalidated));
        assert_eq!(begun(Mode::Relaxed).end(1, OTHER), Ok(()));
    }

    #[test]
    fn asking_a_capturing_stream_invalidates_its_capture() {
        let mut captures = begun(Mode::Relaxed);
        let unsupported = Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        assert_eq!(captures.ask_stream(stream(2)), Ok(()));
        assert_eq!(captures.ask_stream(stream(1)), unsupported);
        assert_eq!(
            captures.fate(stream(1)),
            Err(CUresult::STREAM_CAPTURE_INVALIDATED)
        );
        assert_eq!(begun(Mode::Relaxed).ask_context(1), unsupported);
        assert_eq!(begun(Mode::Relaxed).ask_context(2), Ok(()));
    }

    #[test]
    fn the_legacy_stream_cannot_be_used_beside_a_blocking_capturing_stream() {
        let implicit = CUresult::STREAM_CAPTURE_IMPLICIT;
        assert_eq!(begun(Mode::Relaxed).ask_stream(LEGACY), Err(implicit));
        assert_eq!(begun(Mode::ThreadLocal).fate(LEGACY), Err(implicit));
        assert!(begun(Mode::Global).legacy_would_break(1));
        let mut captures = Captures::new();
        let free = StreamInfo {
            blocking: false,
            ..stream(1)
        };
        captures
            .begin(free, Mode::Global, ME, (), Vec::new())
            .expect("begins");
        assert_eq!(captures.fate(LEGACY), Ok(Fate::Run));
        assert!(!captures.legacy_would_break(1));
    }

    #[test]
    fn unsafe_calls_are_forbidden_as_both_modes_say() {
        let forbidden = |capture, thread, heeds| begun(capture).unsafe_call(thread, heeds).is_err();
        for (capture, by_me, by_other) in [
            (Mode::Global, true, true),
            (Mode::ThreadLocal, true, false),
            (Mode::Relaxed, false, false),
        ] {
            assert_eq!(forbidden(capture, ME, Mode::Global), by_me, "{capture:?}");
            assert_eq!(
                forbidden(capture, OTHER, Mode::Global),
                by_other,
                "{capture:?}"
            );
            assert_eq!(
                forbidden(capture, ME, Mode::ThreadLocal),
                by_me,
                "{capture:?}"
            );
            assert!(!forbidden(capture, OTHER, Mode::ThreadLocal), "{capture:?}");
            assert!(!forbidden(capture, ME, Mode::Relaxed), "{capture:?}");
        }
    }

    #[test]
    fn a_captured_event_cannot_be_asked() {
        let mut captures = begun(Mode::Global);
        captures.record_event(stream(1), 7).expect("allowed");
        assert_eq!(captures.ask_event(8), Ok(()));
        assert_eq!(captures.ask_event(7), Err(CUresult::CAPTURED_EVENT));
        assert_eq!(
            captures.fate(stream(1)),
            Err(CUresult::STREAM_CAPTURE_INVALIDATED)
        );
        assert!(captures.end(1, ME).is_err());
        assert_eq!(
            captures.wait_event(stream(2), 7, true),
            Err(CUresult::CAPTURED_EVENT)
        );
        assert_eq!(captures.record_event(stream(2), 7), Ok(false));
        assert_eq!(captures.ask_event(7), Ok(()));
    }

    #[test]
    fn waiting_for_work_outside_or_in_another_capture_invalidates() {
        let mut captures = begun(Mode::Global);
        assert_eq!(captures.wait_event(stream(1), 7, false), Ok(Wait::Captured));
        let isolation = CUresult::STREAM_CAPTURE_ISOLATION;
        assert_eq!(captures.wait_event(stream(1), 7, true), Err(isolation));

        let mut captures = begun(Mode::Global);
        captures
            .begin(stream(2), Mode::Global, ME, (), Vec::new())
            .expect("begins");
        captures.record_event(stream(1), 7).expect("allowed");
        let merge = CUresult::STREAM_CAPTURE_MERGE;
        assert_eq!(captures.wait_event(stream(2), 7, false), Err(merge));
        assert!(captures.captures.iter().all(|capture| capture.invalidated));
    }

    #[test]
    fn the_legacy_stream_cannot_capture_and_a_capturing_one_not_twice() {
        let mut captures = begun(Mode::Global);
        let begin = captures.begin(LEGACY, Mode::Global, ME, (), Vec::new());
        assert_eq!(begin, Err(CUresult::STREAM_CAPTURE_UNSUPPORTED));
        let begin = captures.begin(stream(1), Mode::Global, ME, (), Vec::new());
        assert_eq!(begin, Err(CUresult::ILLEGAL_STATE));
    }
}
