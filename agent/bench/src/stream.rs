//! One answer of the server, as it arrives: server-sent events, and the times of its tokens. No IO, no clock.
//!
//! The form is that of OpenAI's streamed completions and chat completions: lines `data: {...}`, an empty line behind
//! each, `data: [DONE]` at the end; with `stream_options.include_usage` one more object has the number of tokens
//! (<https://platform.openai.com/docs/api-reference/completions/create>, and `chat/create`).

use serde_json::Value;

/// Longest line that is kept; a longer one is no server-sent event of a token.
const LONGEST_LINE: usize = 1 << 20;

/// What has arrived of one answer.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    line: Vec<u8>,
    tokens_at_ns: Vec<u64>,
    output_tokens: Option<u64>,
    input_tokens: Option<u64>,
    complete: bool,
    error: Option<String>,
}

impl Stream {
    /// Takes in what arrived at `now_ns`.
    pub fn feed(&mut self, bytes: &[u8], now_ns: u64) {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.take(&line, now_ns);
            } else if self.line.len() < LONGEST_LINE {
                self.line.push(byte);
            }
        }
    }

    fn take(&mut self, line: &[u8], now_ns: u64) {
        let text = String::from_utf8_lossy(line);
        let Some(data) = text.trim_end().strip_prefix("data:") else {
            return;
        };
        let data = data.trim_start();
        if data == "[DONE]" {
            self.complete = true;
            return;
        }
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            self.error = Some(format!("an event that is no JSON: {:?}", excerpt(data)));
            return;
        };
        if !event["error"].is_null() {
            let said = event["error"]["message"].as_str().map(str::to_owned);
            self.error = Some(excerpt(&said.unwrap_or_else(|| event["error"].to_string())));
        }
        let count = |name: &str| event["usage"][name].as_u64();
        self.output_tokens = count("completion_tokens").or(self.output_tokens);
        self.input_tokens = count("prompt_tokens").or(self.input_tokens);
        let Some(choice) = event["choices"].get(0) else {
            return;
        };
        if says_something(choice) {
            self.tokens_at_ns.push(now_ns);
        }
        if choice["finish_reason"].is_string() {
            self.complete = true;
        }
    }

    /// Whether the server said that this is all.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// What the server said went wrong within the stream.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// When each piece of text arrived.
    #[must_use]
    pub fn tokens_at_ns(&self) -> &[u64] {
        &self.tokens_at_ns
    }

    /// Tokens of the answer: by the server's count, else the pieces of text.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        self.output_tokens.unwrap_or(self.tokens_at_ns.len() as u64)
    }

    /// Tokens of the prompt, if the server counts them.
    #[must_use]
    pub const fn input_tokens(&self) -> Option<u64> {
        self.input_tokens
    }
}

/// A piece of text of any kind. The first event of a chat has a role and no text: that is no token.
fn says_something(choice: &Value) -> bool {
    let some = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let delta = &choice["delta"];
    // A completion's token may decode to nothing yet; the last event of one has a reason and no token.
    let bare = choice["text"].is_string() && !choice["finish_reason"].is_string();
    bare || some(&choice["text"])
        || ["content", "reasoning_content", "reasoning"]
            .iter()
            .any(|key| some(&delta[*key]))
        || delta["tool_calls"].is_array()
}

/// The beginning of a text that somebody else wrote.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(160).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fed(text: &str) -> Stream {
        let mut stream = Stream::default();
        stream.feed(text.as_bytes(), 5);
        stream
    }

    #[test]
    fn a_completion_and_a_chat_are_read() {
        let completion = fed(
            "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: a comment\r\n\r\n\
             data: {\"choices\":[{\"text\":\"\"}]}\r\n\r\n\
             data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n\
             data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
        );
        assert_eq!(completion.tokens_at_ns(), [5, 5]);
        assert_eq!(
            (completion.output_tokens(), completion.input_tokens()),
            (2, Some(9))
        );
        assert!(completion.is_complete() && completion.error().is_none());
        let chat = fed(
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
             data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n\
             data: {\"choices\":[{\"delta\":{\"content\":\"yes\"}}]}\n\n\
             data:{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        );
        assert_eq!((chat.tokens_at_ns().len(), chat.output_tokens()), (2, 2));
        assert!(chat.is_complete());
        let cut = fed("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choi");
        assert!(!cut.is_complete() && cut.tokens_at_ns().len() == 1);
        let broken = fed("data: {\"error\":{\"message\":\"engine\\u001bdead\"}}\n\n");
        assert_eq!(broken.error(), Some("engine dead"));
    }

    proptest! {
        /// However the network cuts an answer, the same tokens are read of it; no bytes break the reader.
        #[test]
        fn pieces_of_any_size_give_the_same(cuts in prop::collection::vec(0usize..400, 0..12), noise in any::<Vec<u8>>()) {
            let text = b"data: {\"choices\":[{\"text\":\"\xc3\xa4\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n\
                data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\ndata: [DONE]\n\n";
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut stream = Stream::default();
            for pair in cuts.windows(2) {
                stream.feed(&text[pair[0]..pair[1]], 1);
            }
            prop_assert_eq!(stream.tokens_at_ns().len(), 2);
            prop_assert_eq!(stream.output_tokens(), 7);
            prop_assert!(stream.is_complete());
            stream.feed(&noise, 2);
        }
    }
}
