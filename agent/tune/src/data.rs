//! A file of samples: JSON objects, one a line, each with `messages` or `text`.
//!
//! A line that is no sample is refused with its number and its field, before anything is trained.

use serde_json::Value;

/// Who may speak in a conversation.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Which tokens of a sample are learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learn {
    /// Those of the assistant's turns. In a sample with `text`, all.
    Assistant,
    /// All.
    All,
}

impl Learn {
    /// As the engine's protocol says it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Assistant => "assistant",
            Self::All => "all",
        }
    }
}

/// What a line contains.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A conversation: a list of objects, as a chat template takes it.
    Messages(Value),
    /// Text as it is.
    Text(String),
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its number; the first is 1.
    pub number: usize,
    /// The sample.
    pub content: Content,
}

/// Which line of which file is no sample, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {}{problem}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
pub struct DataError {
    /// The file.
    pub file: String,
    /// Its line; the first is 1. 0: the whole file.
    pub line: usize,
    /// The field, such as `messages[1].role`. Empty: the line as a whole.
    pub field: String,
    /// What is wrong, and what is expected.
    pub problem: String,
}

/// The samples of a file, with the numbers of their lines. Empty lines are skipped.
///
/// # Errors
/// At the first line that is no sample, and for a file without samples. `file` is its name in the error.
pub fn lines(file: &str, bytes: &[u8], learn: Learn) -> Result<Vec<Line>, DataError> {
    let mut found = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let number = index + 1;
        let content = content(line, learn).map_err(|(field, problem)| DataError {
            file: file.to_owned(),
            line: number,
            field,
            problem,
        })?;
        found.push(Line { number, content });
    }
    if found.is_empty() {
        let problem =
            "there is no sample; write one JSON object per line, with \"messages\" or \"text\""
                .to_owned();
        return Err(DataError {
            file: file.to_owned(),
            line: 0,
            field: String::new(),
            problem,
        });
    }
    Ok(found)
}

/// A field and what is wrong with it.
type Wrong = (String, String);

fn wrong<T>(field: impl Into<String>, problem: impl Into<String>) -> Result<T, Wrong> {
    Err((field.into(), problem.into()))
}

fn content(line: &[u8], learn: Learn) -> Result<Content, Wrong> {
    let Ok(text) = std::str::from_utf8(line) else {
        return wrong("", "the line is not UTF-8");
    };
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        // The parser counts lines itself, and knows only this one.
        Err(error) => return wrong("", format!("no JSON at column {}", error.column())),
    };
    let Value::Object(mut object) = value else {
        return wrong("", "expected an object with \"messages\" or \"text\"");
    };
    match (object.remove("messages"), object.remove("text")) {
        (Some(_), Some(_)) => wrong("text", "the line has \"messages\" too; give one of them"),
        (None, None) => wrong("", "expected \"messages\" or \"text\""),
        (None, Some(Value::String(text))) if text.is_empty() => wrong("text", "it is empty"),
        (None, Some(Value::String(text))) => Ok(Content::Text(text)),
        (None, Some(_)) => wrong("text", "expected a string"),
        (Some(messages), None) => conversation(messages, learn),
    }
}

fn conversation(messages: Value, learn: Learn) -> Result<Content, Wrong> {
    let Some(list) = messages.as_array() else {
        return wrong("messages", "expected a list");
    };
    if list.is_empty() {
        return wrong("messages", "the list is empty");
    }
    let mut answers = false;
    for (index, message) in list.iter().enumerate() {
        let field = |name: &str| format!("messages[{index}]{name}");
        let Some(object) = message.as_object() else {
            return wrong(
                field(""),
                "expected an object with \"role\" and \"content\"",
            );
        };
        let role = object.get("role").and_then(Value::as_str);
        let Some(role) = role.filter(|role| ROLES.contains(role)) else {
            return wrong(
                field(".role"),
                format!("expected one of {}", ROLES.join(", ")),
            );
        };
        answers |= role == "assistant";
        let calls = role == "assistant" && object.get("tool_calls").is_some_and(Value::is_array);
        match object.get("content") {
            Some(Value::String(_)) => {}
            None | Some(Value::Null) if calls => {}
            _ => return wrong(field(".content"), "expected a string"),
        }
    }
    if learn == Learn::Assistant && !answers {
        return wrong(
            "messages",
            "no message is the assistant's, so there is nothing to learn; or learn all tokens",
        );
    }
    Ok(Content::Messages(messages))
}

#[cfg(test)]
mod tests;
