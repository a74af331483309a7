//! The last report of the node, which all readers share.
//!
//! A report walks all that is attached. However many ask, the control thread makes one in [`FRESH`] for them.

use crate::clock::now_ns;
use crate::inbox::{Ask, Asker, Mailbox};
use std::sync::Arc;
use std::time::Duration;
use tidegate_proto::v1;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

/// A report this young is given again.
pub const FRESH: Duration = Duration::from_millis(100);
/// How long the control thread may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The last report.
#[derive(Debug)]
pub struct Reports {
    mailbox: Mailbox,
    last: Mutex<Option<(u64, Arc<v1::GetStatusResponse>)>>,
}

impl Reports {
    /// None yet; they are asked of the control thread behind `mailbox`.
    #[must_use]
    pub fn new(mailbox: Mailbox) -> Self {
        Self {
            mailbox,
            last: Mutex::default(),
        }
    }

    /// A report that is no older than [`FRESH`]. None: the control thread does not answer.
    pub async fn latest(&self) -> Option<Arc<v1::GetStatusResponse>> {
        timeout(ANSWER_LIMIT, self.fresh()).await.ok()?
    }

    async fn fresh(&self) -> Option<Arc<v1::GetStatusResponse>> {
        // Those who come meanwhile wait here, and get what this one brings.
        let mut last = self.last.lock().await;
        if let Some((at, report)) = &*last
            && now_ns() < at + crate::clock::nanos(FRESH)
        {
            return Some(Arc::clone(report));
        }
        let (answer_tx, answer_rx) = oneshot::channel();
        if !self.mailbox.ask(Asker::Reader, Ask::Report(answer_tx)) {
            return None;
        }
        let report: Arc<v1::GetStatusResponse> = Arc::from(answer_rx.await.ok()?);
        *last = Some((now_ns(), Arc::clone(&report)));
        Some(report)
    }
}
