//! The socket of an engine's training service.
//!
//! A message is a `u32`, little endian, and that many bytes of UTF-8 JSON. The client numbers its requests; answers may
//! come in another order. The commands of one adapter run in the order in which one connection sent them.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

/// Largest message in bytes, by the protocol.
pub const LARGEST: usize = 64 << 20;

/// Why the engine did not do something.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Nobody listens there.
    #[error("cannot reach the engine at {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The connection ended, or ends before the answer.
    #[error("the engine is gone")]
    Gone,
    /// The engine said no.
    #[error("the engine refuses {method}: {message}")]
    Refused {
        /// What it was asked.
        method: &'static str,
        /// The kind of error, by the protocol.
        kind: String,
        /// The engine's words.
        message: String,
    },
    /// The engine answered something else than the protocol says.
    #[error("cannot understand the engine's answer to {method}: {detail}")]
    Answer {
        /// What it was asked.
        method: &'static str,
        /// What was wrong.
        detail: String,
    },
    /// The request does not fit into a message.
    #[error(
        "a request of {bytes} bytes exceeds the engine's limit of {LARGEST}; use a smaller batch"
    )]
    Large {
        /// Its size.
        bytes: usize,
    },
}

impl EngineError {
    /// Whether the engine can no longer be reached, so that trying again later makes sense.
    #[must_use]
    pub fn gone(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Gone => true,
            Self::Refused { kind, .. } => kind == "engine_gone",
            Self::Answer { .. } | Self::Large { .. } => false,
        }
    }

    /// Whether the engine refused with this kind of error.
    #[must_use]
    pub fn is(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { kind, .. } if kind == wanted)
    }
}

/// What an engine says about itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Hello {
    /// Version of the protocol.
    pub version: u32,
    /// The name under which the engine serves its base model.
    pub model: String,
    /// Longest sequence in tokens.
    pub max_model_len: usize,
    /// Largest rank of an adapter.
    pub max_rank: u32,
    /// Adapters at a time.
    pub slots: u32,
    /// Adapters that can still be opened.
    pub slots_free: u32,
    /// The matrices that an adapter may change.
    pub targets: Vec<String>,
    /// Names of the adapters that are open.
    #[serde(default)]
    pub adapters: Vec<String>,
}

/// The version of the protocol that this client speaks.
const VERSION: u32 = 1;

/// Who waits for which answer; none once the connection has ended.
type Waiting = Mutex<Option<HashMap<u64, oneshot::Sender<Value>>>>;

/// A connection to an engine. Clones share it.
#[derive(Clone, Debug)]
pub struct Engine {
    next: Arc<AtomicU64>,
    waiting: Arc<Waiting>,
    messages: mpsc::UnboundedSender<Vec<u8>>,
}

impl Engine {
    /// Connects, and asks the engine what it is.
    ///
    /// # Errors
    /// When nobody listens at `path`, or whoever does speaks another version of the protocol.
    pub async fn connect(path: &Path) -> Result<(Self, Hello), EngineError> {
        let failed = |source| EngineError::Connect {
            path: path.to_owned(),
            source,
        };
        let stream = UnixStream::connect(path).await.map_err(failed)?;
        let (reader, writer) = stream.into_split();
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (messages, queue) = mpsc::unbounded_channel();
        tokio::spawn(listen(reader, Arc::clone(&waiting)));
        tokio::spawn(speak(writer, queue));
        let engine = Self {
            next: Arc::default(),
            waiting,
            messages,
        };
        let hello: Hello = engine.call("hello", Value::Null).await?;
        if hello.version != VERSION {
            let detail = format!(
                "it speaks version {}, and this program {VERSION}",
                hello.version
            );
            return Err(EngineError::Answer {
                method: "hello",
                detail,
            });
        }
        Ok((engine, hello))
    }

    /// Asks for one thing, and waits for the answer. `fields` is an object, or null for none. The order of the calls
    /// is that in which they are first polled.
    ///
    /// # Errors
    /// When the engine refuses, is gone, or answers something that is not a `T`.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        fields: Value,
    ) -> Result<T, EngineError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let message = framed(id, method, fields)?;
        let (sender, answer) = oneshot::channel();
        match lock(&self.waiting).as_mut() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(EngineError::Gone),
        };
        self.messages.send(message).map_err(|_| EngineError::Gone)?;
        let answer = answer.await.map_err(|_| EngineError::Gone)?;
        understood(method, answer)
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        lock(&self.waiting).is_none()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request as it goes over the socket.
fn framed(id: u64, method: &'static str, fields: Value) -> Result<Vec<u8>, EngineError> {
    let mut object = match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    object.insert("id".into(), id.into());
    object.insert("method".into(), method.into());
    let text = Value::Object(object).to_string();
    let length = u32::try_from(text.len())
        .ok()
        .filter(|_| text.len() <= LARGEST);
    let length = length.ok_or(EngineError::Large { bytes: text.len() })?;
    Ok([&length.to_le_bytes(), text.as_bytes()].concat())
}

/// What an answer says.
fn understood<T: DeserializeOwned>(
    method: &'static str,
    mut answer: Value,
) -> Result<T, EngineError> {
    if let Some(error) = answer.get("error") {
        let word = |name: &str| {
            error
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        return Err(EngineError::Refused {
            method,
            kind: word("kind"),
            message: word("message"),
        });
    }
    let ok = answer.get_mut("ok").map(Value::take).unwrap_or_default();
    serde_json::from_value(ok).map_err(|error| EngineError::Answer {
        method,
        detail: error.to_string(),
    })
}

/// Writes messages until the last sender is dropped or the engine closes the connection.
async fn speak(mut writer: OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(message) = queue.recv().await {
        if writer.write_all(&message).await.is_err() {
            return;
        }
    }
}

/// Hands each answer to who waits for it. At the end of the connection nobody waits any longer.
async fn listen(mut reader: OwnedReadHalf, waiting: Arc<Waiting>) {
    while let Ok(answer) = heard(&mut reader).await {
        let id = answer.get("id").and_then(Value::as_u64);
        let asked = id.and_then(|id| lock(&waiting).as_mut()?.remove(&id));
        if let Some(asked) = asked {
            // Whoever asked may have gone.
            let _ = asked.send(answer);
        }
    }
    lock(&waiting).take();
}

/// One message.
async fn heard(reader: &mut OwnedReadHalf) -> io::Result<Value> {
    let length = reader.read_u32_le().await?;
    let length = usize::try_from(length).map_err(io::Error::other)?;
    if length > LARGEST {
        return Err(io::Error::other("a message beyond the limit"));
    }
    let mut text = vec![0; length];
    reader.read_exact(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}
