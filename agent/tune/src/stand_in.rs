//! An engine for the tests of this crate: the protocol's other side, with a model of 16 numbers.
//!
//! The model predicts each token by the softmax of the adapter's numbers, whatever came before. It learns by plain
//! gradient descent, so that every command that is done twice or not at all changes the result. What the real engine
//! does is judged by `scripts/tune protocol`.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// Size of the vocabulary.
pub(crate) const WORDS: usize = 16;

#[derive(Clone, Debug, Default)]
struct Adapter {
    numbers: Vec<f64>,
    gradient: Vec<f64>,
    step: u64,
    version: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Inside {
    adapters: BTreeMap<String, Adapter>,
    /// Methods that changed something, with the adapter.
    pub(crate) log: Vec<(String, String)>,
    /// The connection ends instead of this many further answers.
    pub(crate) answers: Option<u32>,
}

/// A running engine, and its folder.
#[derive(Debug)]
pub(crate) struct StandIn {
    pub(crate) inside: Arc<Mutex<Inside>>,
    pub(crate) folder: PathBuf,
}

impl StandIn {
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("engine.sock")
    }

    /// How often a method was called.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.inside
            .lock()
            .unwrap()
            .log
            .iter()
            .filter(|(name, _)| name == method)
            .count()
    }

    /// Listens in a folder of its own.
    pub(crate) fn start(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("tidegate-tune-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let engine = Self {
            inside: Arc::default(),
            folder,
        };
        let listener = UnixListener::bind(engine.socket()).unwrap();
        let inside = Arc::clone(&engine.inside);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&inside)));
            }
        });
        engine
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // It is in the temporary directory; what is left there is no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn serve(mut stream: UnixStream, inside: Arc<Mutex<Inside>>) {
    while let Ok(length) = stream.read_u32_le().await {
        let mut text = vec![0; length as usize];
        stream.read_exact(&mut text).await.unwrap();
        let ask: Value = serde_json::from_slice(&text).unwrap();
        let answer = {
            let mut inside = inside.lock().unwrap();
            let answer = inside.answer(&ask);
            if let Some(left) = inside.answers.as_mut() {
                if *left == 0 {
                    return;
                }
                *left -= 1;
            }
            answer
        };
        let id = &ask["id"];
        let answer = match answer {
            Ok(ok) => json!({"id": id, "ok": ok}),
            Err(kind) => {
                json!({"id": id, "error": {"kind": kind, "message": format!("it is {kind}")}})
            }
        };
        let text = answer.to_string();
        stream
            .write_u32_le(text.len().try_into().unwrap())
            .await
            .unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
    }
}

fn softmax(numbers: &[f64]) -> Vec<f64> {
    let sum: f64 = numbers.iter().map(|x| x.exp()).sum();
    numbers.iter().map(|x| x.exp() / sum).collect()
}

fn floats(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

impl Inside {
    fn answer(&mut self, ask: &Value) -> Result<Value, &'static str> {
        let method = ask["method"].as_str().unwrap();
        match method {
            "hello" => {
                return Ok(
                    json!({"version": 1, "model": "base", "path": "/models/base", "family": "llama", "layers": 1,
                    "hidden": 1, "vocab": WORDS, "max_model_len": 64, "max_rank": 32, "slots": 2,
                    "slots_free": 2 - self.adapters.len(), "targets": ["q_proj", "v_proj", "lm_head"],
                    "adapters": self.adapters.keys().collect::<Vec<_>>()}),
                );
            }
            "encode" => return encode(ask),
            "status" => return Ok(json!({})),
            _ => {}
        }
        let name = ask["adapter"].as_str().unwrap().to_owned();
        self.log.push((method.to_owned(), name.clone()));
        match method {
            "open" if self.adapters.contains_key(&name) => return Err("exists"),
            "open" if self.adapters.len() == 2 => return Err("no_slot"),
            "open" => {
                let seed = ask["seed"].as_u64().unwrap() as f64;
                let adapter = Adapter {
                    numbers: vec![seed / 100.0; WORDS],
                    ..Adapter::default()
                };
                self.adapters.insert(name, adapter);
                return Ok(json!({"slot": 0, "number": 1}));
            }
            "close" => {
                return self
                    .adapters
                    .remove(&name)
                    .map(|_| json!({}))
                    .ok_or("unknown_adapter");
            }
            _ => {}
        }
        self.adapters
            .get_mut(&name)
            .ok_or("unknown_adapter")?
            .command(method, ask)
    }
}

impl Adapter {
    fn command(&mut self, method: &str, ask: &Value) -> Result<Value, &'static str> {
        let path = || Path::new(ask["path"].as_str().unwrap());
        match method {
            "forward" => {
                let answer = self.forward(ask);
                answer["loss"]
                    .is_f64()
                    .then_some(answer)
                    .ok_or("not_finite")
            }
            "backward" => {
                for datum in ask["data"].as_array().unwrap() {
                    let chance = softmax(&self.numbers);
                    for (target, d) in floats(&datum["targets"]).iter().zip(floats(&datum["d"])) {
                        self.learn(&chance, *target as usize, d);
                    }
                }
                Ok(json!({}))
            }
            "step" => {
                let gradient = std::mem::take(&mut self.gradient);
                let lr = ask["lr"].as_f64().unwrap();
                for (number, slope) in self.numbers.iter_mut().zip(&gradient) {
                    *number -= lr * slope;
                }
                if self.numbers.iter().any(|number| !number.is_finite()) {
                    return Err("not_finite");
                }
                self.step += 1;
                let norm = gradient.iter().map(|x| x * x).sum::<f64>().sqrt();
                Ok(json!({"step": self.step, "gradient_norm": norm, "version": self.version}))
            }
            "publish" => {
                self.version += 1;
                Ok(json!({"version": self.version}))
            }
            "save" => {
                std::fs::create_dir(path()).map_err(|_| "io")?;
                // As bits: the parser of floats rounds.
                let bits: Vec<u64> = self.numbers.iter().map(|number| number.to_bits()).collect();
                let kept = json!({"bits": bits, "step": self.step});
                std::fs::write(path().join("adapter.json"), kept.to_string()).map_err(|_| "io")?;
                Ok(json!({"bytes": 1}))
            }
            "load" => {
                let text = std::fs::read(path().join("adapter.json")).map_err(|_| "io")?;
                let kept: Value = serde_json::from_slice(&text).map_err(|_| "io")?;
                let bits = kept["bits"].as_array().unwrap();
                self.numbers = bits
                    .iter()
                    .map(|bits| f64::from_bits(bits.as_u64().unwrap()))
                    .collect();
                self.gradient.clear();
                self.step = kept["step"].as_u64().unwrap();
                Ok(json!({"step": self.step}))
            }
            "zero" => {
                self.gradient.clear();
                Ok(json!({}))
            }
            _ => Err("unknown_method"),
        }
    }

    /// Adds the gradient of `d` times a target's logprob.
    fn learn(&mut self, chance: &[f64], target: usize, d: f64) {
        self.gradient.resize(WORDS, 0.0);
        for (word, chance) in chance.iter().enumerate() {
            self.gradient[word] += d * (f64::from(u8::from(word == target)) - chance);
        }
    }

    fn forward(&mut self, ask: &Value) -> Value {
        let chance = softmax(&self.numbers);
        let (mut loss, mut count, mut all) = (0.0, 0, Vec::new());
        for datum in ask["data"].as_array().unwrap() {
            let mut logprobs = Vec::new();
            for (target, weight) in floats(&datum["targets"])
                .iter()
                .zip(floats(&datum["weights"]))
            {
                let target = *target as usize;
                logprobs.push(chance[target].ln());
                loss -= weight * chance[target].ln();
                count += 1;
                if ask["backward"] == json!(true) {
                    self.learn(&chance, target, -weight);
                }
            }
            all.push(logprobs);
        }
        json!({"logprobs": all, "loss": loss, "tokens": count, "version": self.version})
    }
}

/// A token for each byte.
fn encode(ask: &Value) -> Result<Value, &'static str> {
    let mut tokens: Vec<u8> = Vec::new();
    let mut weights: Vec<u8> = Vec::new();
    let mut add = |text: &str, weight: u8| {
        tokens.extend(text.bytes().map(|byte| byte % 16));
        weights.extend(text.bytes().map(|_| weight));
    };
    if let Some(text) = ask["text"].as_str() {
        add(text, 1);
    }
    for message in ask["messages"].as_array().into_iter().flatten() {
        let learnt = ask["learn"] == "all" || message["role"] == "assistant";
        if message["role"] == "tool" {
            return Err("bad_request");
        }
        add(
            message["content"].as_str().unwrap_or_default(),
            u8::from(learnt),
        );
    }
    Ok(json!({"tokens": tokens, "weights": weights}))
}
