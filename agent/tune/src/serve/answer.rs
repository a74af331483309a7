//! Answers over HTTP, and the two shapes of an error: OpenAI's object, and the `detail` that Tinker's clients show.

use crate::engine::EngineError;
use crate::files::FileError;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

/// An answer with a whole body.
pub type Answer = Response<Full<Bytes>>;

/// Seconds after which a client should ask again for an engine that is gone.
pub const ENGINE_AGAIN: u64 = 5;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status code.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`: for programs.
    pub code: &'static str,
    /// The parameter that is wrong.
    pub param: Option<String>,
    /// For people: what is wrong, and what to do.
    pub message: String,
    /// Seconds after which the same request may be asked again.
    pub again: Option<u64>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            _ if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        Self {
            status,
            kind,
            code,
            param: None,
            message: message.into(),
            again: None,
        }
    }

    /// The request is wrong in this parameter.
    #[must_use]
    pub fn wrong(param: &str, message: impl Into<String>) -> Self {
        let refusal = Self::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        Self {
            param: Some(param.to_owned()),
            ..refusal
        }
    }

    /// The key is none of the keys file.
    #[must_use]
    pub fn no_key() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "invalid_api_key",
            "the API key is not one of this server's keys file",
        )
    }

    /// There is no such thing, or it is another owner's.
    #[must_use]
    pub fn absent(what: &str, id: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no {what} {id}"),
        )
    }

    /// The call is none of this server's.
    #[must_use]
    pub fn unknown_call(call: &str, known: &[&str]) -> Self {
        let message = format!("there is no call {call}; known calls: {}", known.join(", "));
        Self::new(StatusCode::NOT_FOUND, "unknown_call", message)
    }

    /// Not in the state in which it is.
    #[must_use]
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    /// The body is larger than the server takes.
    #[must_use]
    pub fn large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the body exceeds {limit} bytes"),
        )
    }

    /// A quota is used up, for so many seconds.
    #[must_use]
    pub fn quota(owner: &str, seconds: u64) -> Self {
        let message =
            format!("the tokens a day of {owner} are used up; the next day begins in {seconds} s");
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "quota_exceeded", message);
        Self {
            again: Some(seconds),
            ..refusal
        }
    }

    /// All places for adapters are taken.
    #[must_use]
    pub fn no_place(message: impl Into<String>) -> Self {
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "no_place", message);
        Self {
            again: Some(ENGINE_AGAIN),
            ..refusal
        }
    }

    /// The engine does not answer.
    #[must_use]
    pub fn no_engine() -> Self {
        let message = format!("the engine is gone; ask again in {ENGINE_AGAIN} s. Jobs wait");
        let refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "engine_gone", message);
        Self {
            again: Some(ENGINE_AGAIN),
            ..refusal
        }
    }

    /// The answer in both shapes.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let error = json!({"message": self.message, "type": self.kind, "param": self.param, "code": self.code});
        let mut answer = json(
            self.status,
            &json!({"error": error, "detail": self.message}),
        );
        if let Some(seconds) = self.again {
            answer
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        answer
    }
}

impl From<FileError> for Refusal {
    /// Which file it was is the operator's business.
    fn from(error: FileError) -> Self {
        let full = error.source.kind() == std::io::ErrorKind::StorageFull;
        let status = if full {
            StatusCode::INSUFFICIENT_STORAGE
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        };
        let again = "nothing was changed by this request; tell the operator of this server";
        Self::new(
            status,
            "storage",
            format!(
                "the server cannot write its state ({}); {again}",
                error.source
            ),
        )
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        if error.gone() {
            return Self::no_engine();
        }
        match error {
            EngineError::Refused { ref kind, .. } if kind == "no_slot" => {
                Self::no_place(error.to_string())
            }
            EngineError::Refused { .. } | EngineError::Large { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "engine_refuses", error.to_string())
            }
            _ => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "engine",
                error.to_string(),
            ),
        }
    }
}

/// JSON.
#[must_use]
pub fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    // What this crate answers has no map whose keys are not strings, which is all that could fail.
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut answer = Response::new(Full::new(Bytes::from(bytes)));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// A part of a list, as OpenAI pages it: `after` names the last object of the part before.
#[must_use]
pub fn page(objects: Vec<Value>, after: Option<&str>, limit: usize) -> Value {
    let of = |object: &Value| object.get("id").and_then(Value::as_str).map(str::to_owned);
    let from = match after {
        Some(after) => objects
            .iter()
            .position(|object| of(object).as_deref() == Some(after))
            .map_or(objects.len(), |at| at + 1),
        None => 0,
    };
    let more = objects.len() > from + limit;
    let data: Vec<Value> = objects.into_iter().skip(from).take(limit).collect();
    let (first, last) = (data.first().and_then(of), data.last().and_then(of));
    json!({"object": "list", "data": data, "has_more": more, "first_id": first, "last_id": last})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_together_are_the_list() {
        let all: Vec<Value> = (0..7).map(|n| json!({"id": format!("x{n}")})).collect();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = page(all.clone(), after.as_deref(), 3);
            seen.extend(page["data"].as_array().unwrap().clone());
            after = page["last_id"].as_str().map(str::to_owned);
            if page["has_more"] == json!(false) {
                break;
            }
        }
        assert_eq!(seen, all);
    }
}
