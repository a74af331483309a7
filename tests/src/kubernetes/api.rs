//! What is said to an API server, by curl: its programs' own library is Go's.

use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Longest that one call may take, s: a server that was killed answers nothing, and says so at once.
const PATIENCE: &str = "5";
/// What the server takes its callers for: one token, which may do everything.
pub const TOKEN: &str = "tidegate-tests";

/// An API server.
#[derive(Clone, Debug)]
pub struct Api {
    url: String,
}

/// A body, by its kind.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// None.
    None,
    /// A manifest as users write it.
    Yaml(&'a str),
    /// A JSON object.
    Json(&'a Value),
    /// What is to be changed of an object; null takes away.
    Merge(&'a Value),
}

impl Api {
    /// The one that listens on this port of loopback.
    #[must_use]
    pub fn new(port: u16) -> Self {
        Self {
            url: format!("https://127.0.0.1:{port}"),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// One call.
    ///
    /// # Errors
    /// No answer, or one that is no success, in a line.
    ///
    /// # Panics
    /// When curl is not installed.
    pub fn call(&self, method: &str, path: &str, body: Body<'_>) -> Result<Value, String> {
        let (kind, text) = match body {
            Body::None => ("application/json", String::new()),
            Body::Yaml(text) => ("application/yaml", text.to_owned()),
            Body::Json(value) => ("application/json", value.to_string()),
            Body::Merge(value) => ("application/merge-patch+json", value.to_string()),
        };
        let mut command = Command::new("curl");
        command.args(["-sSk", "--max-time", PATIENCE, "-X", method]);
        command.args(["-H", &format!("Authorization: Bearer {TOKEN}")]);
        command.args([
            "-H",
            &format!("Content-Type: {kind}"),
            "-w",
            "\n%{http_code}",
        ]);
        if !matches!(body, Body::None) {
            command.args(["--data-binary", "@-"]);
        }
        let mut child = command
            .arg(format!("{}{path}", self.url))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("curl is installed");
        let mut input = child.stdin.take().expect("stdin is piped");
        // A server that is gone reads nothing of it.
        let _ = input.write_all(text.as_bytes());
        drop(input);
        let output = child.wait_with_output().expect("a child can be waited for");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (said, code) = text.rsplit_once('\n').unwrap_or((&text, ""));
        if !code.starts_with('2') {
            return Err(format!("{method} {path}: {code} {said}"));
        }
        Ok(serde_json::from_str(said).unwrap_or(json!(said)))
    }

    /// What is at `path`.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn get(&self, path: &str) -> Result<Value, String> {
        self.call("GET", path, Body::None)
    }

    /// The members of a list.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn list(&self, path: &str) -> Result<Vec<Value>, String> {
        let all = self.get(path)?;
        Ok(all["items"].as_array().cloned().unwrap_or_default())
    }

    /// Changes an object.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn merge(&self, path: &str, change: &Value) -> Result<Value, String> {
        self.call("PATCH", path, Body::Merge(change))
    }

    /// Asks for a pod to be evicted, as a descheduler or a drain does.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn evict(&self, pod: &str) -> Result<(), String> {
        let path = format!("/api/v1/namespaces/default/pods/{pod}");
        let eviction = json!({
            "apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"},
        });
        self.call("POST", &format!("{path}/eviction"), Body::Json(&eviction))
            .map(drop)
    }
}
