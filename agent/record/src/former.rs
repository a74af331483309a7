//! Recordings of format 2. They say *take*, *give back* and *prepare* for what the agent and the library call *reclaim*,
//! *restore* and *check*.

/// The words of format 2, and those of format 3.
const WORDS: [(&str, &str); 4] = [
    ("Prepare {", "Check {"),
    ("direction: Take", "direction: Reclaim"),
    ("direction: GiveBack", "direction: Restore"),
    ("phase: Preparing", "phase: Checking"),
];

/// An effect of format 2, in the words of format 3.
pub(super) fn effect(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (former, now)| {
        text.replace(former, now)
    })
}

/// The name of an event about memory, in the words of format 3.
pub(super) fn memory_event(name: &str) -> &str {
    match name {
        "prepared" => "checked",
        name => name,
    }
}
