//! What a run keeps on the disk.

use super::error::RunError;
use super::plan::{Material, Plan};
use crate::files::{self, FileError};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Where a run writes.
#[derive(Clone, Debug)]
pub struct Place {
    /// The finished adapter. An absolute path: the engine has another working directory.
    pub out: PathBuf,
    /// The folder of the run.
    pub folder: PathBuf,
}

/// The step with the smallest loss of the validation file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// After how many steps.
    pub step: u64,
    /// Mean loss of a learnt token, in nats.
    pub loss: f64,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`Plan::digest`].
    pub plan: u32,
    /// [`Material::digest`].
    pub material: u32,
    /// The base model, by the engine's name for it.
    pub model: String,
    /// Steps done.
    pub step: u64,
    /// Tokens learnt.
    pub tokens: f64,
    /// After which step the newest checkpoint was written.
    pub checkpoint: Option<u64>,
    /// The best step.
    pub best: Option<Best>,
    /// Whether the adapter is about to be put into its place, or was.
    pub finished: bool,
}

impl State {
    /// Of a run that begins.
    #[must_use]
    pub fn new(plan: &Plan, material: &Material, model: &str) -> Self {
        let (plan, material, model) = (plan.digest(), material.digest(), model.to_owned());
        Self {
            plan,
            material,
            model,
            step: 0,
            tokens: 0.0,
            checkpoint: None,
            best: None,
            finished: false,
        }
    }

    pub(super) fn write(&self, place: &Place) -> Result<(), FileError> {
        files::write_json(&place.state(), self)
    }
}

impl Place {
    /// The output directory, and a folder beside it.
    #[must_use]
    pub fn beside(out: &Path) -> Self {
        Self {
            out: out.to_owned(),
            folder: files::with_end(out, ".tune"),
        }
    }

    /// Where the checkpoint of a step is.
    #[must_use]
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step:06}"))
    }

    fn state(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    /// Keeps other processes out of the folder until what is returned is dropped, or this process ends.
    pub(super) fn hold(&self) -> Result<Flock<File>, RunError> {
        files::make_folder(&self.folder)?;
        let path = self.folder.join("lock");
        let file = File::create(&path).map_err(FileError::at(&path))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|_| RunError::Busy(self.folder.clone()))
    }

    /// The state of a run that was killed or paused here.
    pub(super) fn begun(
        &self,
        plan: &Plan,
        material: &Material,
        model: &str,
    ) -> Result<Option<State>, RunError> {
        let Some(state) = files::read_json::<State>(&self.state())? else {
            if self.out.exists() {
                // The folder was made for the lock.
                self.forget()?;
                return Err(RunError::Exists(self.out.clone()));
            }
            return Ok(None);
        };
        let differs = [
            ("base model", state.model != model),
            ("set of samples", state.material != material.digest()),
            ("set of options", state.plan != plan.digest()),
        ];
        if let Some((what, _)) = differs.into_iter().find(|(_, differs)| *differs) {
            return Err(RunError::Changed {
                folder: self.folder.clone(),
                what,
            });
        }
        Ok(Some(state))
    }

    /// Removes the checkpoints that nobody needs.
    pub(super) fn keep(&self, state: &State) -> Result<(), FileError> {
        let needed = [state.checkpoint, state.best.map(|best| best.step)]
            .map(|step| step.map(|step| self.checkpoint(step)));
        for entry in fs::read_dir(&self.folder).map_err(FileError::at(&self.folder))? {
            let path = entry.map_err(FileError::at(&self.folder))?.path();
            let checkpoint = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("step-"));
            if checkpoint && !needed.contains(&Some(path.clone())) {
                files::remove_folder(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the folder of the run.
    pub(super) fn forget(&self) -> Result<(), FileError> {
        files::remove_folder(&self.folder)
    }
}
