//! Files that are whole or absent: written beside their place, made durable, renamed.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// What could not be done to which file.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FileError {
    /// The file or folder.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl FileError {
    /// Adds the path to an error of the system.
    pub fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { path, source }
    }
}

/// Puts `bytes` in place as a whole. A reader, also one after a power failure, finds the old file or the new one.
///
/// # Errors
/// When the disk is full, or the folder cannot be written. The old file then still stands.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let beside = with_end(path, ".new");
    let put = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        path.parent().map_or(Ok(()), |dir| {
            let dir = if dir.as_os_str().is_empty() {
                Path::new(".")
            } else {
                dir
            };
            File::open(dir)?.sync_all()
        })
    };
    put().map_err(|source| {
        let _ = fs::remove_file(&beside);
        FileError {
            path: path.to_owned(),
            source,
        }
    })
}

/// Puts a value in place as JSON.
///
/// # Errors
/// As [`write()`].
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let bytes = serde_json::to_vec_pretty(value)
        .map_err(io::Error::from)
        .map_err(FileError::at(path))?;
    write(path, &bytes)
}

/// Reads a value that [`write_json`] wrote; none if there is no such file.
///
/// # Errors
/// When the file cannot be read, or is not such a value.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::at(path)(error)),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(io::Error::from)
        .map_err(FileError::at(path))
}

/// Removes a folder with all that is in it; nothing if there is none.
///
/// # Errors
/// When something in it cannot be removed.
pub fn remove_folder(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::at(path)(error)),
        _ => Ok(()),
    }
}

/// Makes a folder, and those above it.
///
/// # Errors
/// When the system refuses.
pub fn make_folder(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(FileError::at(path))
}

/// The path with `end` added to its last name.
#[must_use]
pub fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
