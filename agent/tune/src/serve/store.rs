//! Uploaded files.

use super::shared::{lock, newest};
use crate::files::{self, FileError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// An uploaded file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stored {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub owner: String,
    /// Its name at the client.
    pub filename: String,
    /// What it is for.
    pub purpose: String,
    /// Its size.
    pub bytes: u64,
    /// When it came, in seconds since 1970.
    pub created_at: u64,
}

impl Stored {
    /// As OpenAI's protocol has it.
    pub fn object(&self) -> Value {
        json!({"id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at,
            "filename": self.filename, "purpose": self.purpose, "status": "processed"})
    }
}

/// All files.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    files: Mutex<BTreeMap<String, Stored>>,
}

impl Store {
    /// What a server before this one stored. An upload that it did not end is removed.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        files::make_folder(folder)?;
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(FileError::at(folder))? {
            let path = entry.map_err(FileError::at(folder))?.path();
            match files::read_json::<Stored>(&path.join("file.json"))? {
                Some(stored) => drop(found.insert(stored.id.clone(), stored)),
                None => files::remove_folder(&path)?,
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            files: Mutex::new(found),
        })
    }

    /// Keeps a file.
    pub fn add(&self, stored: Stored, content: &[u8]) -> Result<Value, FileError> {
        let folder = self.folder.join(&stored.id);
        files::make_folder(&folder)?;
        let kept = files::write(&folder.join("content"), content)
            .and_then(|()| files::write_json(&folder.join("file.json"), &stored));
        if let Err(error) = kept {
            // A disk that is full gets its room back.
            let _ = files::remove_folder(&folder);
            return Err(error);
        }
        let object = stored.object();
        lock(&self.files).insert(stored.id.clone(), stored);
        Ok(object)
    }

    /// A file of this owner.
    pub fn of(&self, owner: &str, id: &str) -> Option<Stored> {
        lock(&self.files)
            .get(id)
            .filter(|stored| stored.owner == owner)
            .cloned()
    }

    /// All of this owner, newest first.
    pub fn all(&self, owner: &str) -> Vec<Stored> {
        let files = lock(&self.files);
        let own = files.values().filter(|stored| stored.owner == owner);
        newest(own, |stored| (stored.created_at, &stored.id))
    }

    /// What a file contains.
    pub fn content(&self, id: &str) -> Result<Vec<u8>, FileError> {
        let path = self.folder.join(id).join("content");
        std::fs::read(&path).map_err(FileError::at(&path))
    }

    /// Forgets a file.
    pub fn remove(&self, id: &str) -> Result<(), FileError> {
        // Without its description it is an upload that did not end.
        let described = self.folder.join(id).join("file.json");
        std::fs::remove_file(&described).map_err(FileError::at(&described))?;
        lock(&self.files).remove(id);
        files::remove_folder(&self.folder.join(id))
    }
}
