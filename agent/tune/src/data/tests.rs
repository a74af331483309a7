use super::*;
use proptest::prelude::*;
use serde_json::json;

fn refused(line: &str) -> String {
    let good = r#"{"text": "fine"}"#;
    let file = format!("{good}\n\n{line}\n{good}\n");
    lines("train.jsonl", file.as_bytes(), Learn::Assistant)
        .unwrap_err()
        .to_string()
}

/// P-TUNE-1: a bad line is refused with its number and its field.
#[test]
fn a_bad_line_is_refused_with_its_number_and_field() {
    let cases = [
        ("{", "train.jsonl:3: no JSON at column 1"),
        (
            "[]",
            "train.jsonl:3: expected an object with \"messages\" or \"text\"",
        ),
        (
            "{\"txt\": \"a\"}",
            "train.jsonl:3: expected \"messages\" or \"text\"",
        ),
        ("{\"text\": 5}", "train.jsonl:3: text: expected a string"),
        ("{\"text\": \"\"}", "train.jsonl:3: text: it is empty"),
        (
            "{\"text\": \"a\", \"messages\": []}",
            "train.jsonl:3: text: the line has \"messages\" too; give one of them",
        ),
        (
            "{\"messages\": {}}",
            "train.jsonl:3: messages: expected a list",
        ),
        (
            "{\"messages\": []}",
            "train.jsonl:3: messages: the list is empty",
        ),
        (
            "{\"messages\": [1]}",
            "train.jsonl:3: messages[0]: expected an object with \"role\" and \"content\"",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"bot\", \"content\": \"b\"}]}",
            "train.jsonl:3: messages[1].role: expected one of system, developer, user, assistant, tool",
        ),
        (
            "{\"messages\": [{\"role\": \"assistant\"}]}",
            "train.jsonl:3: messages[0].content: expected a string",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            "train.jsonl:3: messages: no message is the assistant's, so there is nothing to learn; or learn all tokens",
        ),
    ];
    for (line, told) in cases {
        assert_eq!(refused(line), told, "{line}");
    }
    let none = lines("train.jsonl", b"\n \n", Learn::All).unwrap_err();
    assert!(
        none.to_string()
            .starts_with("train.jsonl:0: there is no sample"),
        "{none}"
    );
}

#[test]
fn good_lines_keep_their_numbers_and_what_they_say() {
    let talk = json!([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [], "content": null}]);
    let file = format!(
        "{}\r\n\n{}",
        json!({"text": "one", "id": 7}),
        json!({"messages": talk})
    );
    let found = lines("f", file.as_bytes(), Learn::Assistant).unwrap();
    let wanted = [
        (1, Content::Text("one".into())),
        (3, Content::Messages(talk)),
    ];
    assert_eq!(
        found,
        wanted.map(|(number, content)| Line { number, content })
    );
}

proptest! {
    /// Whatever a file contains, it is read or refused, and an error names a line that the file has.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let count = bytes.split(|byte| *byte == b'\n').count();
        if let Err(error) = lines("f", &bytes, Learn::All) {
            prop_assert!(error.line <= count);
        }
    }
}
