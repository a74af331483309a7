//! Files that a target makes, and messages that name one.

/// Where this process' files are, in memory.
pub fn own_directory() -> std::path::PathBuf {
    let name = format!("tidegate-fuzz-{}", std::process::id());
    std::path::Path::new("/dev/shm").join(name)
}

/// A directory of this process in memory.
pub fn directory(name: &str) -> std::path::PathBuf {
    let directory = own_directory().join(name);
    std::fs::create_dir_all(&directory).expect("/dev/shm is writable");
    directory
}

/// Whether `text` says `FILE:LINE` with a line that a file of `lines` lines has, or the one behind it.
pub fn names_line(text: &str, file: &str, lines: usize) -> bool {
    let file = format!("{file}:");
    let mut numbers = text.match_indices(&file).filter_map(|(at, found)| {
        let rest = &text[at + found.len()..];
        let end = rest.find(|c: char| !c.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse::<usize>().ok()
    });
    numbers.any(|line| (1..=lines + 1).contains(&line))
}
