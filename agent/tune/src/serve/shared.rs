//! What the parts of the server share.

use crate::files::FileError;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; what a thread left that panicked is taken as it is.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the operator of a file that could not be written where no client waits who could be told.
pub fn complain(written: Result<(), FileError>) {
    if let Err(error) = written {
        eprintln!("tidegate tune serve: {error}");
    }
}

/// A name that nobody can guess: `prefix` and 24 hexadecimal digits.
pub fn fresh(prefix: &str) -> Result<String, FileError> {
    use std::fmt::Write as _;
    use std::io::Read as _;
    let mut bytes = [0; 12];
    let path = Path::new("/dev/urandom");
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(FileError::at(path))?;
    let mut name = prefix.to_owned();
    for byte in bytes {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(name)
}

/// These things, newest first: `age` is when one was made, and its id.
pub fn newest<'a, T: Clone + 'a>(
    all: impl Iterator<Item = &'a T>,
    age: fn(&T) -> (u64, &String),
) -> Vec<T> {
    let mut all: Vec<T> = all.cloned().collect();
    all.sort_by(|a, b| age(b).cmp(&age(a)));
    all
}
