//! The orders of operators that stand: as calls change them, and as they are kept for the next agent.

use crate::host::orders::{Order, Orders, OrdersFile};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_node::text::Text;

/// The orders in force. One call at a time changes them, so that what is kept is what was done last.
#[derive(Debug)]
pub struct Standing {
    orders: Mutex<Orders>,
    file: OrdersFile,
    turn: tokio::sync::Mutex<()>,
}

impl Standing {
    /// `orders`, which `file` holds.
    #[must_use]
    pub fn new(orders: Orders, file: OrdersFile) -> Arc<Self> {
        Arc::new(Self {
            orders: Mutex::new(orders),
            file,
            turn: tokio::sync::Mutex::new(()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other call changes an order.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Changes the orders and keeps them; why they could not be kept, or nothing.
    pub async fn change(&self, change: impl FnOnce(&mut Orders)) -> String {
        let orders = {
            let mut orders = self.lock();
            change(&mut orders);
            orders.clone()
        };
        let file = self.file.clone();
        // A disk may take its time, and others are served meanwhile.
        let written = tokio::task::spawn_blocking(move || file.write(&orders)).await;
        let not_kept = match written {
            Ok(written) => written.err().unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        if !not_kept.is_empty() {
            tracing::error!(
                "the next start of the agent will not know an operator's order: cannot write {not_kept}"
            );
        }
        not_kept
    }

    /// Who drained the node, and when.
    #[must_use]
    pub fn drained(&self) -> Option<Order> {
        self.lock().drained.clone()
    }

    /// Whether a job of this name is paused, be it here or not.
    #[must_use]
    pub fn is_paused(&self, job: &str) -> bool {
        self.lock().jobs.get(job).is_some_and(|known| known.paused)
    }

    /// Which jobs are paused, and which run although all others are, by name.
    #[must_use]
    pub fn by_name(&self) -> Vec<(Text, bool)> {
        self.lock().by_name()
    }
}
