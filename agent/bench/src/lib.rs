//! What sharing a GPU costs the users of a live server, measured on that server.
//!
//! `tidegate bench` sends the same requests to an OpenAI-compatible server in blocks, while the agent changes from block
//! to block what the offline jobs may do, and compares. In the order in which it is done:
//!
//! * [`plan`]: which requests a block has, and which mode each block has;
//! * [`tls`]: whose certificates are taken;
//! * [`target`]: the server, and what is asked of it;
//! * [`wire`]: sends a block; the only file that touches the network, and it is handed its clock;
//! * [`stream`]: one answer as it arrives, and the times of its tokens;
//! * [`record`]: what a client saw of a request, and of many;
//! * [`stats`]: means and their intervals;
//! * [`block`]: a block's figures, and two modes compared;
//! * [`import`]: blocks that other tools measured;
//! * [`slo`]: what is promised, and whether it was kept;
//! * [`report`]: the table, JSON and HTML.
//!
//! Words: *TTFT*, from sending a request to its first token. *TPOT*, time by further token: from first to last token,
//! over all tokens but the first. *ITL*, from one piece of text to the next. *Goodput*, requests that kept given times.
#![forbid(unsafe_code)]

pub mod batch;
pub mod block;
pub mod import;
pub mod plan;
pub mod record;
pub mod report;
pub mod slo;
pub mod stats;
pub mod stream;
pub mod target;
pub mod tls;
pub mod wire;
