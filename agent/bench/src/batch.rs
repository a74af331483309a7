//! A batch of requests at low priority on online's own engine, so many in flight: what takes no second process.
//!
//! A closed loop, as a batch is one: whoever has its answer sends the next request. vLLM serves requests of a lower
//! priority (a higher number) after all others, if it was started with `--scheduling-policy priority`.

use crate::plan::prompt;
use crate::record::End;
use crate::stream::Stream;
use crate::target::body;
use crate::wire::{Client, Connection, connect, follow, refusal, request};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Behind every request that names no priority.
const LOW: i32 = 1;
/// Places of prompts that no schedule of online's reaches.
const PLACES: u64 = 1 << 31;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Requests in flight.
    pub in_flight: u32,
    /// Tokens of a prompt.
    pub input_tokens: u32,
    /// Tokens of an answer.
    pub output_tokens: u32,
}

/// What has come of it so far.
#[derive(Debug, Default)]
struct Sum {
    sent: AtomicU64,
    tokens: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// A batch under way; it ends when this is dropped.
#[derive(Debug)]
pub struct Running {
    sum: Arc<Sum>,
    _tasks: JoinSet<()>,
}

impl Running {
    /// Begins to send in block number `block`, with prompts of `seed`.
    #[must_use]
    pub fn start(client: &Client, batch: Batch, (seed, block): (u64, usize)) -> Self {
        let sum = Arc::new(Sum::default());
        let mut tasks = JoinSet::new();
        for _ in 0..batch.in_flight {
            let one = One {
                client: client.clone(),
                batch,
                sum: Arc::clone(&sum),
            };
            tasks.spawn(one.run(seed, block));
        }
        Self { sum, _tasks: tasks }
    }

    /// Tokens that were answered.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.sum.tokens.load(Ordering::Relaxed)
    }

    /// Why a request of it was not served; the others go on.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let failure = self.sum.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One of those in flight.
struct One {
    client: Client,
    batch: Batch,
    sum: Arc<Sum>,
}

impl One {
    /// Sends one request after another until one fails.
    async fn run(self, seed: u64, block: usize) {
        let mut connection = None;
        loop {
            let number = PLACES + self.sum.sent.fetch_add(1, Ordering::Relaxed);
            let place = usize::try_from(number).unwrap_or(usize::MAX);
            let text = prompt(seed, block, place, self.batch.input_tokens);
            let end = self.ask(&mut connection, &text).await;
            if end != End::Done {
                let mut failure = self.sum.failure.lock();
                let first = failure.as_mut().map(|first| &mut **first);
                if let Ok(first) = first {
                    first.get_or_insert_with(|| why(&end));
                }
                return;
            }
        }
    }

    async fn ask(&self, kept: &mut Option<Connection>, text: &str) -> End {
        let Client {
            way,
            model,
            call,
            exact,
            silence,
            ..
        } = &self.client;
        let tokens = self.batch.output_tokens;
        let body = body(*call, model, text, tokens, (*exact, LOW)).to_string();
        let request = match request(way, call.path(), Some(body)) {
            Ok(request) => request,
            Err(why) => return End::Other(why),
        };
        let mut connection = match kept.take().filter(Connection::is_ready) {
            Some(connection) => connection,
            None => match connect(way).await {
                Ok(connection) => connection,
                Err(unanswered) => return End::Unreachable(unanswered.why),
            },
        };
        let answer = match timeout(*silence, connection.send_request(request)).await {
            // A batch may wait for as long as online has all of the engine.
            Err(_) => return End::Silent,
            Ok(Err(error)) => return End::Cut(error.to_string()),
            Ok(Ok(answer)) if answer.status() != 200 => return refusal(answer, *silence).await,
            Ok(Ok(answer)) => answer,
        };
        let (mut stream, mut known) = (Stream::default(), 0_u64);
        let made = |all: u64| {
            let more = all.saturating_sub(known);
            known = known.max(all);
            self.sum.tokens.fetch_add(more, Ordering::Relaxed);
        };
        let end = follow(&self.client, answer.into_body(), &mut stream, made).await;
        if end == End::Done && connection.ready().await.is_ok() {
            *kept = Some(connection);
        }
        end
    }
}

/// In words; what is most likely missing is named.
fn why(end: &End) -> String {
    let hint = match end {
        End::Status(400, _) => {
            "; vLLM takes priorities if started with --scheduling-policy priority"
        }
        End::Silent => "; --silence is how long a batch request may wait for online's",
        _ => "",
    };
    format!("a batch request was not served: {}{hint}", end.words())
}
