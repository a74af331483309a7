//! What is known of jobs, in memory and on the disk.

use super::shared::{complain, fresh, lock, newest};
use super::status::{Ask, Status};

use crate::clock::unix_seconds;
use crate::files::{self, FileError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tokio::sync::watch;

/// What a client asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Asked {
    /// The base model.
    pub model: String,
    /// Id of the file to learn from.
    pub training_file: String,
    /// Id of the file to judge by.
    pub validation_file: Option<String>,
    /// A part of the adapter's name.
    pub suffix: Option<String>,
    /// The seed.
    pub seed: u64,
    /// Whatever the client wants to find again.
    pub metadata: Value,
    /// The adapter, as the command line takes it.
    pub lora: String,
    /// Times that each sample is learnt from.
    pub epochs: u64,
    /// Samples of a step.
    pub batch: usize,
    /// Scale of the learning rate.
    pub multiplier: f64,
}

/// How far a job is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// Tokens learnt.
    pub tokens: u64,
    /// When it ends, if it goes on as it does, in seconds since 1970.
    pub finish: Option<u64>,
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub owner: String,
    /// When it was created, in seconds since 1970.
    pub created_at: u64,
    /// When it ended.
    pub finished_at: Option<u64>,
    /// Its state.
    pub status: Status,
    /// What was asked for.
    pub asked: Asked,
    /// The header by which a client that repeats itself is known.
    pub idempotency: Option<String>,
    /// How far it is.
    pub progress: Progress,
    /// Why it failed: code, parameter, message.
    pub error: Option<(String, Option<String>, String)>,
    /// Whether the engine answers with its adapter.
    pub served: bool,
}

impl Job {
    /// Name of its adapter, and of the model that the engine serves.
    pub fn name(&self) -> String {
        let short = self
            .id
            .rsplit('-')
            .next()
            .unwrap_or_default()
            .get(..8)
            .unwrap_or_default();
        let suffix = self.asked.suffix.as_deref().unwrap_or_default();
        format!("ft:{}:{}:{suffix}:{short}", self.asked.model, self.owner)
    }

    /// As OpenAI's protocol has it.
    pub fn object(&self) -> Value {
        let asked = &self.asked;
        let hyper = json!({"n_epochs": asked.epochs, "batch_size": asked.batch,
            "learning_rate_multiplier": asked.multiplier});
        let error = self.error.as_ref();
        let error = error.map(
            |(code, param, message)| json!({"code": code, "param": param, "message": message}),
        );
        let done = self.status == Status::Succeeded;
        json!({"id": self.id, "object": "fine_tuning.job", "created_at": self.created_at,
            "finished_at": self.finished_at, "status": self.status, "model": asked.model,
            "fine_tuned_model": done.then(|| self.name()), "organization_id": self.owner, "result_files": [],
            "hyperparameters": hyper, "method": {"type": "supervised", "supervised": {"hyperparameters": hyper}},
            "seed": asked.seed, "training_file": asked.training_file, "validation_file": asked.validation_file,
            "trained_tokens": self.progress.tokens, "error": error, "metadata": asked.metadata, "integrations": [],
            "estimated_finish": self.progress.finish.filter(|_| !self.status.ended()),
            "step": self.progress.step, "steps": self.progress.steps})
    }
}

/// All jobs.
#[derive(Debug)]
pub struct Jobs {
    folder: PathBuf,
    jobs: Mutex<BTreeMap<String, Job>>,
    changes: watch::Sender<u64>,
}

impl Jobs {
    /// What a server before this one knew.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        files::make_folder(folder)?;
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(FileError::at(folder))? {
            let path = entry.map_err(FileError::at(folder))?.path();
            match files::read_json::<Job>(&path.join("job.json"))? {
                Some(mut job) => {
                    job.status = job.status.found();
                    found.insert(job.id.clone(), job);
                }
                // Its client was never told of it.
                None => files::remove_folder(&path)?,
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            jobs: Mutex::new(found),
            changes: watch::Sender::new(0),
        })
    }

    /// Where a job keeps its files.
    pub fn folder(&self, id: &str) -> PathBuf {
        self.folder.join(id)
    }

    /// Those that a server has to go on with.
    pub fn unfinished(&self) -> Vec<String> {
        lock(&self.jobs)
            .values()
            .filter(|job| !job.status.ended())
            .map(|job| job.id.clone())
            .collect()
    }

    /// Hears of every change from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A job as it stands.
    pub fn get(&self, id: &str) -> Option<Job> {
        lock(&self.jobs).get(id).cloned()
    }

    /// A job of this owner.
    pub fn of(&self, owner: &str, id: &str) -> Option<Job> {
        self.get(id).filter(|job| job.owner == owner)
    }

    /// All of this owner, newest first.
    pub fn all(&self, owner: &str) -> Vec<Job> {
        let jobs = lock(&self.jobs);
        let own = jobs.values().filter(|job| job.owner == owner);
        newest(own, |job| (job.created_at, &job.id))
    }

    /// Keeps a new job, or finds the one that the same request made before.
    pub fn add(&self, job: Job) -> Result<(Job, bool), FileError> {
        let mut jobs = lock(&self.jobs);
        let again = |known: &&Job| {
            known.owner == job.owner
                && job.idempotency.is_some()
                && known.idempotency == job.idempotency
        };
        if let Some(known) = jobs.values().find(again) {
            return Ok((known.clone(), false));
        }
        let folder = self.folder(&job.id);
        files::make_folder(&folder)?;
        files::write_json(&folder.join("job.json"), &job)?;
        jobs.insert(job.id.clone(), job.clone());
        Ok((job, true))
    }

    /// Changes a job, and keeps it as it stands then.
    pub fn change<T>(&self, id: &str, change: impl FnOnce(&mut Job) -> T) -> Option<T> {
        let mut jobs = lock(&self.jobs);
        let job = jobs.get_mut(id)?;
        let before = job.status;
        let answer = change(job);
        if job.status.ended() && !before.ended() {
            job.finished_at = Some(unix_seconds());
        }
        complain(files::write_json(&self.folder(id).join("job.json"), job));
        self.changes.send_modify(|count| *count += 1);
        Some(answer)
    }

    /// Moves a job from one of these states to another, if it is there.
    pub fn turn(&self, id: &str, from: &[Status], to: Status) -> bool {
        let turned = self.change(id, |job| {
            let there = from.contains(&job.status);
            if there {
                job.status = to;
            }
            there
        });
        turned == Some(true)
    }

    /// What a user asks of a job; the job as it stands then, or none if that is impossible.
    pub fn ask(&self, id: &str, ask: Ask) -> Option<Job> {
        self.change(id, |job| {
            job.status = job.status.asked(ask)?;
            Some(job.clone())
        })
        .flatten()
    }

    /// How many adapters of an owner are open.
    pub fn places(&self, owner: &str) -> usize {
        let open = |job: &&Job| {
            job.owner == owner
                && (job.served || matches!(job.status, Status::Running | Status::Pausing))
        };
        lock(&self.jobs).values().filter(open).count()
    }

    /// Adds an event to a job's list.
    pub fn event(&self, id: &str, level: &str, message: &str, data: Option<Value>) {
        let kind = if data.is_some() { "metrics" } else { "message" };
        let path = self.folder(id).join("events.jsonl");
        let put = || -> Result<(), FileError> {
            let event = json!({"id": fresh("ftevent-")?, "object": "fine_tuning.job.event",
                "created_at": unix_seconds(), "level": level, "message": message, "type": kind, "data": data});
            let file = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path);
            // One call: a server that is killed leaves a whole line, or none.
            let line = format!("{event}\n");
            file.and_then(|mut file| file.write_all(line.as_bytes()))
                .map_err(FileError::at(&path))
        };
        complain(put());
    }

    /// A job's events, newest first.
    pub fn events(&self, id: &str) -> Vec<Value> {
        let text = std::fs::read(self.folder(id).join("events.jsonl")).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').rev();
        lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }
}
