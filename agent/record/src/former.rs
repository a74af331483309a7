//! Recordings of format 2, which said *take*, *give back* and *prepare* where agent and library now say *reclaim*,
//! *restore* and *check*.

/// What format 2 said, and what format 3 says.
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
