//! Which server: its address, its paths, and what it says of itself.

use serde_json::Value;

/// Why a target cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The URL is of another form.
    #[error("--target {url}: {why}; give for example http://127.0.0.1:8000")]
    Url {
        /// As given.
        url: String,
        /// What is wrong.
        why: &'static str,
    },
    /// Nobody answers, or not in HTTP.
    #[error("--target {url} does not answer: {why}")]
    Silent {
        /// What was asked.
        url: String,
        /// What happened instead.
        why: String,
    },
    /// What answers says something else than such a server.
    #[error("--target {url} is no OpenAI-compatible server: {why}")]
    NotOpenAi {
        /// What was asked.
        url: String,
        /// What came instead.
        why: String,
    },
    /// There is no TLS with it.
    #[error("--target {url} cannot be measured: {why}")]
    Tls {
        /// What was asked.
        url: String,
        /// What stands in the way.
        why: String,
    },
    /// It serves no model of that name.
    #[error("--model {wanted}: the server has {}; give one of these", .has.join(", "))]
    Model {
        /// As given.
        wanted: String,
        /// What there is.
        has: Vec<String>,
    },
}

/// Which of the two calls that generate text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

impl Call {
    /// What it asks for.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Host and port to connect to.
    pub address: String,
    /// The host, as its certificate names it.
    pub host: String,
    /// Whether TLS is spoken.
    pub tls: bool,
    /// As the server is called in requests.
    pub authority: String,
    /// Before `/v1`; empty or with a leading slash.
    pub base: String,
}

impl Target {
    /// Of a URL, with or without `/v1` at its end.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(url: &str) -> Result<Self, TargetError> {
        let wrong = |why| TargetError::Url {
            url: url.to_owned(),
            why,
        };
        let plain = url.strip_prefix("http://").map(|rest| (rest, "80"));
        let tls = url.strip_prefix("https://").map(|rest| (rest, "443"));
        let (rest, usual_port) = plain
            .or(tls)
            .ok_or_else(|| wrong("it does not begin with http:// or https://"))?;
        if rest.contains(['?', '#', '@', ' ']) || rest.chars().any(char::is_control) {
            return Err(wrong("a host, a port and a path are all that is taken"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let after_host = authority
            .rsplit_once(']')
            .map_or(authority, |(_, after)| after);
        let (host, port) = match after_host.rsplit_once(':') {
            Some((_, port)) => (&authority[..authority.len() - port.len() - 1], port),
            None => (authority, usual_port),
        };
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err(wrong("its port is not a number from 1 to 65535"));
        }
        let path = path.trim_end_matches('/');
        let base = path
            .strip_suffix("v1")
            .map_or(path, |base| base.trim_end_matches('/'));
        Ok(Self {
            address: format!("{host}:{port}"),
            host: host.trim_matches(['[', ']']).to_owned(),
            tls: tls.is_some(),
            authority: authority.to_owned(),
            base: if base.is_empty() {
                String::new()
            } else {
                format!("/{base}")
            },
        })
    }

    /// The URL of a path such as `/v1/models`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}{path}", self.authority, self.base)
    }

    /// What is asked of a path, in a request.
    #[must_use]
    pub fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

/// The model to ask for, of the answer to `/v1/models`, which has status `status`.
///
/// # Errors
/// When the answer is not that of such a server, or does not have `wanted`.
pub fn model(
    target: &Target,
    status: u16,
    answer: &[u8],
    wanted: Option<&str>,
) -> Result<String, TargetError> {
    let no = |why: String| TargetError::NotOpenAi {
        url: target.url("/v1/models"),
        why,
    };
    if status == 401 || status == 403 {
        return Err(no(format!(
            "it answers {status}; set OPENAI_API_KEY to a key that it takes, or name another variable by --api-key-env"
        )));
    }
    if status != 200 {
        return Err(no(format!(
            "it answers {status} instead of a list of models"
        )));
    }
    let list: Value =
        serde_json::from_slice(answer).map_err(|_| no("its answer is no JSON".to_owned()))?;
    let models = list["data"]
        .as_array()
        .ok_or_else(|| no("its answer has no list `data`".to_owned()))?;
    let has: Vec<String> = models
        .iter()
        .filter_map(|model| model["id"].as_str().map(str::to_owned))
        .collect();
    match wanted {
        Some(wanted) if has.iter().any(|name| name == wanted) => Ok(wanted.to_owned()),
        Some(wanted) if !has.is_empty() => Err(TargetError::Model {
            wanted: wanted.to_owned(),
            has,
        }),
        _ => has
            .into_iter()
            .next()
            .ok_or_else(|| no("it serves no model".to_owned())),
    }
}

/// The body of a request for `output_tokens` tokens, streamed and counted by the server.
///
/// `ignore_eos` is of vLLM and SGLang: the answer has as many tokens as asked, whatever the model thinks. Others ignore
/// it or refuse it: then `exact` leaves it out. So is `priority`; those without one have 0. vLLM serves the lowest first, and
/// refuses any other than 0 unless it was started with `--scheduling-policy priority`.
#[must_use]
pub fn body(
    call: Call,
    model: &str,
    prompt: &str,
    output_tokens: u32,
    (exact, priority): (bool, i32),
) -> Value {
    let mut body = serde_json::json!({
        "model": model,
        "stream": true,
        "stream_options": { "include_usage": true },
        "max_tokens": output_tokens,
        "temperature": 0,
    });
    match call {
        Call::Completions => body["prompt"] = prompt.into(),
        Call::Chat => body["messages"] = serde_json::json!([{ "role": "user", "content": prompt }]),
    }
    if exact {
        body["ignore_eos"] = true.into();
    }
    if priority != 0 {
        body["priority"] = priority.into();
    }
    body
}

/// Tokens that an offline engine has made since its start, of its Prometheus metrics.
///
/// vLLM counts `vllm:generation_tokens_total` (<https://docs.vllm.ai/en/stable/design/metrics/>), SGLang
/// `sglang:generation_tokens_total` (<https://docs.sglang.ai/references/production_metrics.html>).
#[must_use]
pub fn tokens_made(metrics: &str) -> Option<u64> {
    let names = [
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
    ];
    let values = metrics.lines().filter_map(|line| {
        let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
        if !rest.starts_with(['{', ' ']) {
            return None;
        }
        rest.rsplit_once(' ')?.1.parse::<f64>().ok()
    });
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_with_and_without_its_end() {
        let parsed = |url| Target::parse(url).expect("a target");
        assert_eq!(
            parsed("http://h:8000").url("/v1/models"),
            "http://h:8000/v1/models"
        );
        assert_eq!(
            parsed("http://h:8000/v1/").url("/v1/models"),
            "http://h:8000/v1/models"
        );
        assert_eq!(parsed("http://h/gw/v1").path("/v1/models"), "/gw/v1/models");
        assert_eq!(parsed("http://h").address, "h:80");
        assert_eq!(parsed("http://[::1]:81/").address, "[::1]:81");
        assert_eq!(parsed("http://[::1]").address, "[::1]:80");
        let tls = parsed("https://h/gw");
        assert_eq!((tls.address.as_str(), tls.tls), ("h:443", true));
        assert_eq!(tls.url("/v1/models"), "https://h/gw/v1/models");
        assert_eq!(parsed("https://[::1]:8443").host, "::1");
        assert_eq!(parsed("https://h:8443").address, "h:8443");
        for (url, why) in [
            ("https://:443", "no host"),
            ("htps://h", "http:// or https://"),
            ("h:8000", "http://"),
            ("http://:80", "no host"),
            ("http://h:0", "its port"),
            ("http://h:eight", "its port"),
            ("http://u@h", "a host, a port"),
        ] {
            let said = Target::parse(url).expect_err(url).to_string();
            assert!(said.contains(why) && said.contains(url), "{said}");
        }
    }

    #[test]
    fn a_model_is_found_or_it_is_said_why_not() {
        let target = Target::parse("http://h").expect("a target");
        let list = br#"{"data":[{"id":"a"},{"id":"b"}]}"#;
        assert_eq!(model(&target, 200, list, None).expect("the first"), "a");
        assert_eq!(model(&target, 200, list, Some("b")).expect("named"), "b");
        for (status, answer, wanted, why) in [
            (200, &list[..], Some("c"), "has a, b"),
            (404, b"", None, "answers 404"),
            (401, b"", None, "OPENAI_API_KEY"),
            (200, b"<html>", None, "no JSON"),
            (200, b"{}", None, "no list"),
            (200, br#"{"data":[]}"#, None, "no model"),
        ] {
            let said = model(&target, status, answer, wanted)
                .expect_err(why)
                .to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn tokens_are_summed_over_engines() {
        let metrics = "# TYPE vllm:generation_tokens_total counter\n\
            vllm:generation_tokens_total{engine=\"0\"} 10.0\nvllm:generation_tokens_total{engine=\"1\"} 5\n\
            vllm:generation_tokens_total_created{engine=\"0\"} 1.7e9\n";
        assert_eq!(tokens_made(metrics), Some(15));
        assert_eq!(tokens_made("up 1\n"), None);
    }
}
