//! What a command line that cannot be read probably meant.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// The error with a tip, where there is one.
pub(super) fn explained(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    if let Some(tip) = tip(&error, words) {
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

fn tip(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let command = words.get(1)?.to_str()?;
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::MissingRequiredArgument if command == "replay" => {
            Some("without a trace of your own, try 'tidegate replay --synthetic caller'".to_owned())
        }
        ErrorKind::UnknownArgument => (named(ContextKind::InvalidArg)? == "--json")
            .then(|| "'--output json' prints JSON".to_owned()),
        ErrorKind::InvalidSubcommand if command == "explain" => {
            let pid = named(ContextKind::InvalidSubcommand)?.parse::<u32>().ok()?;
            Some(format!("'tidegate explain pid {pid}' explains a process"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-OPERATE-16: a command line that is nearly right is answered with the right one.
    #[test]
    fn what_is_nearly_a_command_is_answered_with_the_command() {
        for (line, tip) in [
            (
                "replay",
                Some("tip: without a trace of your own, try 'tidegate replay --synthetic caller'"),
            ),
            (
                "explain 17197",
                Some("tip: 'tidegate explain pid 17197' explains a process"),
            ),
            ("status --json", Some("tip: '--output json' prints JSON")),
            ("explain job", None),
            ("status --jason", None),
            ("explain pid abc", None),
        ] {
            let words: Vec<OsString> = ["tidegate"]
                .into_iter()
                .chain(line.split(' '))
                .map(OsString::from)
                .collect();
            let error = crate::command()
                .try_get_matches_from(&words)
                .expect_err(line);
            let told = explained(error, &words).to_string();
            match tip {
                Some(tip) => assert!(told.contains(tip), "{told}"),
                None => assert!(!told.contains("tip: '"), "{told}"),
            }
        }
    }
}
