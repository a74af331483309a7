//! An OpenAI-compatible server whose latencies are known: it sleeps as told, and writes down what it did.
//!
//! Only the standard library: what judges the generator shares no code with it. A thread a connection, HTTP/1.1 with
//! chunked server-sent events, connections kept.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_agent::clock::now_ns;

/// What a server does with every request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behaviour {
    pub ttft: Duration,
    pub tpot: Duration,
    /// One request in so many gets this fault.
    pub fault: Option<(usize, Fault)>,
    /// As vLLM does: priorities are refused, or each request of a low one makes the others wait so much longer.
    pub priorities: Option<Duration>,
}

/// How many requests of a low priority it had, and the most at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Low {
    pub tokens: u64,
    pub now: u32,
    pub most: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Status(u16),
    /// Closes in the middle of the answer.
    Cut,
    /// Ends the answer without `[DONE]`.
    Short,
    /// Says within the stream that it failed.
    Error,
    /// Closes all connections and listens no more.
    Die,
}

/// What it did: from the whole request read to the first token written, and by further token; ms.
#[derive(Clone, Copy, Debug)]
pub struct Did {
    pub ttft_ms: f64,
    pub tpot_ms: f64,
}

#[derive(Debug)]
struct State {
    behaviour: Behaviour,
    requests: AtomicUsize,
    dead: AtomicBool,
    did: Mutex<Vec<Did>>,
    prompts: Mutex<Vec<String>>,
    keys: Mutex<Vec<String>>,
    low: Mutex<Low>,
}

#[derive(Debug)]
pub struct Fake {
    pub url: String,
    state: Arc<State>,
}

impl Fake {
    pub fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let state = Arc::new(State {
            behaviour,
            requests: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            did: Mutex::default(),
            prompts: Mutex::default(),
            keys: Mutex::default(),
            low: Mutex::default(),
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                if shared.dead.load(Ordering::SeqCst) {
                    // Drops the listener: from now on connections are refused.
                    return;
                }
                let state = shared.clone();
                let connection = connection.expect("a connection");
                std::thread::spawn(move || state.serve(connection));
            }
        });
        Self { url, state }
    }

    pub fn did(&self) -> Vec<Did> {
        self.state.did.lock().expect("unpoisoned").clone()
    }

    /// What each request had for authorization.
    pub fn keys(&self) -> Vec<String> {
        self.state.keys.lock().expect("unpoisoned").clone()
    }

    pub fn low(&self) -> Low {
        *self.state.low.lock().expect("unpoisoned")
    }

    pub fn prompts(&self) -> Vec<String> {
        self.state.prompts.lock().expect("unpoisoned").clone()
    }
}

/// Sleeps to a moment, the last of it awake: a sleep alone may be late by a millisecond.
fn until(at_ns: u64) {
    while let left @ 1.. = at_ns.saturating_sub(now_ns()) {
        if left > 300_000 {
            std::thread::sleep(Duration::from_nanos(left - 200_000));
        } else {
            std::hint::spin_loop();
        }
    }
}

impl State {
    fn serve(&self, connection: TcpStream) {
        let address = connection.local_addr().expect("bound");
        connection.set_nodelay(true).expect("a socket");
        let mut reader = BufReader::new(connection.try_clone().expect("a socket"));
        let mut out = connection;
        while let Some((path, key, body)) = request(&mut reader) {
            self.keys.lock().expect("unpoisoned").push(key);
            let read_ns = now_ns();
            let whole = |status: &str, text: &str| {
                format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{text}",
                    text.len()
                )
            };
            let done = match path.as_str() {
                "/v1/models" => {
                    out.write_all(whole("200 OK", r#"{"data":[{"id":"fake"}]}"#).as_bytes())
                }
                "/version" => {
                    out.write_all(whole("200 OK", r#"{"version":"0.0-fake"}"#).as_bytes())
                }
                "/v1/completions" | "/v1/chat/completions" => {
                    match self.complete(&mut out, &body, read_ns) {
                        Ok(true) => Ok(()),
                        _ => {
                            if self.dead.load(Ordering::SeqCst) {
                                // Wakes the listener, which sees that it is dead.
                                let _ = TcpStream::connect(address);
                            }
                            return;
                        }
                    }
                }
                _ => out.write_all(whole("404 Not Found", "").as_bytes()),
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Whether the connection goes on.
    fn complete(&self, out: &mut TcpStream, body: &str, read_ns: u64) -> std::io::Result<bool> {
        let asked: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(
            (&asked["model"], &asked["stream"]),
            (&"fake".into(), &true.into()),
            "{asked}"
        );
        let chat = asked["messages"][0]["content"].as_str();
        let prompt = asked["prompt"]
            .as_str()
            .or(chat)
            .expect("a prompt")
            .to_owned();
        self.prompts.lock().expect("unpoisoned").push(prompt);
        let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let faulty = self
            .behaviour
            .fault
            .filter(|(every, _)| number.is_multiple_of(*every));
        let fault = faulty.map(|(_, fault)| fault);
        if let Some(Fault::Status(status)) = fault {
            let text = r#"{"error":{"message":"no room"}}"#;
            write!(
                out,
                "HTTP/1.1 {status} No\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            )?;
            return Ok(true);
        }
        let is_low = asked["priority"].as_i64().unwrap_or(0) > 0;
        if is_low && self.behaviour.priorities.is_none() {
            // vLLM 0.24, vllm/v1/engine/processor.py.
            let text =
                r#"{"error":{"message":"Got priority 1 but Priority scheduling is not enabled."}}"#;
            let length = text.len();
            write!(
                out,
                "HTTP/1.1 400 Bad Request\r\ncontent-length: {length}\r\n\r\n{text}"
            )?;
            return Ok(true);
        }
        if is_low {
            let mut low = self.low.lock().expect("unpoisoned");
            low.now += 1;
            low.most = low.most.max(low.now);
        }
        let answered = self.answer(out, &asked, (read_ns, is_low), (chat.is_some(), fault));
        if is_low {
            self.low.lock().expect("unpoisoned").now -= 1;
        }
        answered
    }

    fn answer(
        &self,
        out: &mut TcpStream,
        asked: &serde_json::Value,
        (read_ns, is_low): (u64, bool),
        (chat, fault): (bool, Option<Fault>),
    ) -> std::io::Result<bool> {
        out.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
        let tokens = asked["max_tokens"].as_u64().expect("a length");
        let Behaviour {
            mut ttft,
            tpot,
            priorities,
            ..
        } = self.behaviour;
        let now = self.low.lock().expect("unpoisoned").now;
        if !is_low {
            ttft += priorities.unwrap_or_default() * now;
        }
        let (mut first, mut last) = (0, 0);
        for token in 0..tokens {
            if self.dead.load(Ordering::SeqCst) {
                return Ok(false);
            }
            until(read_ns + (ttft + tpot * u32::try_from(token).expect("short")).as_nanos() as u64);
            let piece = if chat {
                r#"{"choices":[{"delta":{"content":"x"}}]}"#
            } else {
                r#"{"choices":[{"text":"x"}]}"#
            };
            event(out, piece)?;
            if is_low {
                self.low.lock().expect("unpoisoned").tokens += 1;
            }
            last = now_ns();
            if token == 0 {
                first = last;
            }
            match fault {
                Some(Fault::Cut) if token == tokens / 2 => return Ok(false),
                Some(Fault::Die) => {
                    self.dead.store(true, Ordering::SeqCst);
                    return Ok(false);
                }
                _ => {}
            }
        }
        // Written down before the answer's end, which a client may count at once.
        if fault.is_none() && !is_low {
            let ms = |from: u64, to: u64| (to - from) as f64 / 1e6;
            let did = Did {
                ttft_ms: ms(read_ns, first),
                tpot_ms: ms(first, last) / (tokens.max(2) - 1) as f64,
            };
            self.did.lock().expect("unpoisoned").push(did);
        }
        if fault == Some(Fault::Error) {
            event(out, r#"{"error":{"message":"engine dead"}}"#)?;
        } else {
            let usage = format!(r#"{{"choices":[],"usage":{{"completion_tokens":{tokens}}}}}"#);
            event(out, &usage)?;
            if fault != Some(Fault::Short) {
                event(out, "[DONE]")?;
            }
        }
        out.write_all(b"0\r\n\r\n")?;
        Ok(true)
    }
}

fn event(out: &mut TcpStream, data: &str) -> std::io::Result<()> {
    let event = format!("data: {data}\n\n");
    out.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())
}

/// Path, authorization and body of the next request.
fn request(reader: &mut impl BufRead) -> Option<(String, String, String)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let (mut length, mut key) = (0, String::new());
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let header = line.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if header.starts_with("authorization:") {
            line.trim()["authorization:".len()..]
                .trim()
                .clone_into(&mut key);
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, key, String::from_utf8(body).ok()?))
}
