//! `/etc/tidegate/profiles.d/NAME.toml`: what a kind of offline job needs.
//!
//! ```toml
//! unit = "tokens"     # what its progress is counted in
//! gpus = 1            # of one job
//! rate = 2400         # units a second with the GPUs to itself
//! full = "24GiB"      # memory of each GPU that it had then
//! half = "6GiB"       # memory at which it would have half of the rate it tends to; or a curve of points
//! least = "2GiB"      # with less it does nothing
//! lost = 30000        # units computed again when online has taken as much as the whole pool
//! again = "420us"     # what computing one of them again takes
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tidegate_agent::config::{duration, size};
use tidegate_policy::placement::{Draft, Profile};
use toml::de::{DeTable, DeValue};

/// Where profiles are unless `--profiles` says otherwise.
pub const DIR: &str = "/etc/tidegate/profiles.d";

/// Longest file that is read: of the size of a thousand profiles.
const LONGEST: u64 = 1 << 20;

const FIELDS: &str = "unit, gpus, rate, full, half, curve, least, lost, again";

/// Why a file is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {field}: {told}", .file.display())]
pub struct Refused {
    /// The file.
    pub file: PathBuf,
    /// From 1.
    pub line: usize,
    /// The field.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub told: String,
}

/// Every profile of `dir`, by name, and what was refused.
///
/// # Errors
/// When the directory cannot be read; one that is not there is empty.
pub fn read(dir: &Path) -> io::Result<(Vec<Profile>, Vec<Refused>)> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(<_>::default()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            files.push(path);
        }
    }
    files.sort();
    let (mut profiles, mut refused) = (Vec::new(), Vec::new());
    for file in files {
        match one(&file) {
            Ok(profile) => profiles.push(profile),
            Err(why) => refused.push(why),
        }
    }
    Ok((profiles, refused))
}

/// The profile in `file`.
///
/// # Errors
/// With the file's line and field.
pub fn one(file: &Path) -> Result<Profile, Refused> {
    let wrong = |told: String| Refused {
        file: file.to_owned(),
        line: 1,
        field: "file".to_owned(),
        told,
    };
    let about = fs::metadata(file).map_err(|error| wrong(error.to_string()))?;
    if !about.is_file() || about.len() > LONGEST {
        return Err(wrong("no regular file of at most 1 MiB".to_owned()));
    }
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    parse(file, &text)
}

/// The profile in `text`, which stands in `file`; its name is the file's.
///
/// # Errors
/// As [`one`].
pub fn parse(file: &Path, text: &str) -> Result<Profile, Refused> {
    let line = |at: usize| {
        1 + text.as_bytes()[..at.min(text.len())]
            .iter()
            .filter(|&&b| b == b'\n')
            .count()
    };
    let refuse = |at: usize, field: &str, told: String| Refused {
        file: file.to_owned(),
        line: line(at),
        field: field.to_owned(),
        told,
    };
    let name = file
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned());
    let syntax = |error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        refuse(
            at,
            "file",
            format!("no TOML: {}", error.message().replace('\n', " ")),
        )
    };
    let document = DeTable::parse(text).map_err(syntax)?;
    let mut draft = Draft {
        name: name.unwrap_or_default(),
        ..Draft::default()
    };
    let mut places = Vec::new();
    for (key, value) in document.get_ref() {
        let (field, at) = (key.get_ref().as_ref(), key.span().start);
        take(&mut draft, field, value.get_ref()).map_err(|told| refuse(at, field, told))?;
        places.push((field, at));
    }
    draft.check().map_err(|wrong| {
        let place = places.iter().find(|(field, _)| *field == wrong.field);
        refuse(place.map_or(0, |(_, at)| *at), wrong.field, wrong.told)
    })
}

fn take(draft: &mut Draft, field: &str, value: &DeValue<'_>) -> Result<(), String> {
    match field {
        "unit" => draft.unit = Some(text(value, "what progress is counted in, as \"tokens\"")?),
        "gpus" => draft.gpus = Some(number(value)?),
        "rate" => draft.rate = Some(number(value)?),
        "lost" => draft.lost = Some(number(value)?),
        "full" => draft.full = Some(gib(value)?),
        "half" => draft.half = Some(gib(value)?),
        "least" => draft.least = Some(gib(value)?),
        "again" => {
            let said = text(value, "a time with its unit, as \"420us\"")?;
            let time = duration(&said).ok_or_else(|| {
                format!("{said:?} is no time: a whole number and one of ns, us, ms, s, min, h")
            })?;
            draft.again = Some(time.as_secs_f64());
        }
        "curve" => draft.curve = Some(points(value)?),
        _ => return Err(format!("no such field; there are {FIELDS}")),
    }
    Ok(())
}

fn text(value: &DeValue<'_>, expected: &str) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        _ => Err(format!("expected {expected}, in quotes")),
    }
}

fn number(value: &DeValue<'_>) -> Result<f64, String> {
    let said = match value {
        DeValue::Integer(number) => number.as_str(),
        DeValue::Float(number) => number.as_str(),
        _ => return Err("expected a number".to_owned()),
    };
    said.parse()
        .map_err(|_| format!("{said} is no decimal number"))
}

/// A size, in GiB.
fn gib(value: &DeValue<'_>) -> Result<f64, String> {
    let said = text(value, "a size with its unit, as \"24GiB\"")?;
    let bytes = size(&said).ok_or_else(|| {
        format!("{said:?} is no size: a whole number and one of B, KiB, MiB, GiB, TiB")
    })?;
    #[expect(clippy::cast_precision_loss, reason = "bytes of a GPU")]
    let gib = bytes as f64 / f64::from(1u32 << 30);
    Ok(gib)
}

fn points(value: &DeValue<'_>) -> Result<Vec<(f64, f64)>, String> {
    const EXPECTED: &str =
        "expected points of memory and share, as [[\"4GiB\", 0.5], [\"24GiB\", 1]]";
    let DeValue::Array(list) = value else {
        return Err(EXPECTED.to_owned());
    };
    let point = |value: &DeValue<'_>| match value {
        DeValue::Array(pair) if pair.len() == 2 => {
            Ok((gib(pair[0].get_ref())?, number(pair[1].get_ref())?))
        }
        _ => Err(EXPECTED.to_owned()),
    };
    list.iter().map(|value| point(value.get_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "unit = \"tokens\"\nrate = 2400\nfull = \"24GiB\"\nhalf = \"6GiB\"\n";

    fn said(text: &str) -> String {
        parse(Path::new("/p/summarise.toml"), text)
            .expect_err("wrong")
            .to_string()
    }

    /// P-CLUSTER-3: a profile that is wrong is refused by file, line and field.
    #[test]
    fn what_is_wrong_is_named_by_line_and_field() {
        let with = |line: &str| said(&format!("{GOOD}{line}\n"));
        for (line, expected) in [
            (
                "rates = 3",
                "/p/summarise.toml:5: rates: no such field; there are unit,",
            ),
            (
                "least = -1",
                "/p/summarise.toml:5: least: expected a size with its unit",
            ),
            (
                "least = \"2\"",
                "/p/summarise.toml:5: least: \"2\" is no size",
            ),
            ("least = \"999TiB\"", "/p/summarise.toml:5: least: "),
            ("lost = nan", "/p/summarise.toml:5: lost: NaN is not from 0"),
            ("lost = -1", "/p/summarise.toml:5: lost: -1 is not from 0"),
            ("lost = 5", "/p/summarise.toml:1: again: missing"),
            (
                "again = \"3\"",
                "/p/summarise.toml:5: again: \"3\" is no time",
            ),
            (
                "gpus = 1.5",
                "/p/summarise.toml:5: gpus: 1.5 is not a whole number",
            ),
            (
                "curve = [[\"4GiB\", 1]]",
                "/p/summarise.toml:5: curve: given beside half",
            ),
            ("= 3", "/p/summarise.toml:5: file: no TOML:"),
        ] {
            let told = with(line);
            assert!(
                told.starts_with(expected) && !told.contains('\n'),
                "{line}: {told}"
            );
        }
        let curve = GOOD.replace(
            "half = \"6GiB\"",
            "curve = [[\"4GiB\", 0.9], [\"24GiB\", 0.5]]",
        );
        assert!(
            said(&curve).starts_with("/p/summarise.toml:4: curve: point 2: falls"),
            "{}",
            said(&curve)
        );
        let unit = GOOD.replace("unit = \"tokens\"\n", "");
        assert!(said(&unit).contains(": unit: missing"), "{}", said(&unit));
        let name = parse(Path::new("/p/Not A Name.toml"), GOOD).expect_err("no name");
        assert_eq!(name.field, "name");
    }

    /// P-CLUSTER-3: one profile that is refused does not hide the others.
    #[test]
    fn the_others_are_read() {
        let dir = std::env::temp_dir().join(format!("tg-profiles-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("writable");
        fs::write(dir.join("good.toml"), GOOD).expect("writable");
        fs::write(dir.join("bad.toml"), "rate = 1\n").expect("writable");
        fs::write(dir.join("notes.txt"), "no profile").expect("writable");
        let (profiles, refused) = read(&dir).expect("readable");
        fs::remove_dir_all(&dir).expect("there");
        assert_eq!(
            profiles.iter().map(Profile::name).collect::<Vec<_>>(),
            ["good"]
        );
        assert_eq!(refused.len(), 1);
        assert!(
            read(Path::new("/no/such/place"))
                .expect("none")
                .0
                .is_empty()
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_or_say_two_lines(text in "[a-z=\\[\\]\"0-9. \n-]{0,80}") {
            if let Err(why) = parse(Path::new("x.toml"), &text) {
                prop_assert!(!why.to_string().contains('\n'));
            }
        }
    }
}
