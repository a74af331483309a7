//! Has jobs trained: one task for each job that has not ended.

use super::jobs::{Job, Progress};
use super::service::Service;
use super::shared::{complain, fresh};
use super::status::Status;

use crate::clock::unix_seconds;
use crate::data::{self, DataError, Learn};
use crate::engine::{Engine, EngineError, Hello};
use crate::files;
use crate::lora::Lora;
use crate::order;
use crate::rate::{Schedule, Shape};
use crate::run::{self, End, Material, News, Place, Plan, Publish, RunError, Wants, Watch};
use crate::sample::{Sample, SampleError, encode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

/// Learning rate of a job whose multiplier is 1.
const RATE: f64 = 2e-4;
/// How long a job waits before it looks again whether the engine is back or has a slot.
const AGAIN: Duration = Duration::from_secs(5);

/// Why an attempt to train did not end the job.
enum Wait {
    /// Something may have changed after this long.
    For(Duration, String),
    /// Only a change of a job helps.
    Change(String),
}

/// Why a job fails: code, parameter, message.
type Failure = (String, Option<String>, String);

/// Trains a job until it has ended.
pub async fn drive(service: Arc<Service>, id: String) {
    let mut changes = service.jobs.changes();
    let mut said = String::new();
    while let Some(job) = service.jobs.get(&id).filter(|job| !job.status.ended()) {
        changes.mark_unchanged();
        let wait = match job.status {
            Status::Paused => Wait::Change(String::new()),
            _ => match attempt(&service, &job).await {
                Ok(None) => continue,
                Ok(Some(wait)) => wait,
                Err(failure) => {
                    failed(&service, &id, failure);
                    continue;
                }
            },
        };
        let (limit, why) = match wait {
            Wait::For(limit, why) => (Some(limit), why),
            Wait::Change(why) => (None, why),
        };
        if why != said && !why.is_empty() {
            service.jobs.event(&id, "warn", &why, None);
        }
        said = why;
        pause(&mut changes, limit).await;
    }
    clear(&service, &id).await;
}

/// Waits for a change, no longer than the limit.
async fn pause(changes: &mut Receiver<u64>, limit: Option<Duration>) {
    // The sender lives as long as the service, so neither can fail.
    match limit {
        Some(limit) => drop(timeout(limit, changes.changed()).await),
        None => drop(changes.changed().await),
    }
}

fn failed(service: &Service, id: &str, failure: Failure) {
    service.jobs.event(id, "error", &failure.2, None);
    service.jobs.change(id, |job| {
        if !job.status.ended() {
            job.error = Some(failure);
            job.status = Status::Failed;
        }
    });
}

/// Removes what a job that ended without an adapter left, here and in the engine.
async fn clear(service: &Service, id: &str) {
    let Some(job) = service
        .jobs
        .get(id)
        .filter(|job| job.status != Status::Succeeded)
    else {
        return;
    };
    let folder = service.jobs.folder(id);
    if folder.join("adapter.tune").exists() {
        if let Ok((engine, _)) = service.link.engine().await {
            // It is closed already, unless the connection ended before the job did.
            let _ = engine
                .call::<Value>("close", json!({"adapter": job.name()}))
                .await;
        }
        complain(files::remove_folder(&folder.join("adapter.tune")));
    }
}

/// Tries to train: none if the job's state has changed.
async fn attempt(service: &Arc<Service>, job: &Job) -> Result<Option<Wait>, Failure> {
    let id = &job.id;
    if let Err(over) = service.quota(&job.owner) {
        let seconds = over.until.saturating_sub(unix_seconds()).max(1);
        let why =
            "the owner's tokens a day are used up; the job goes on when the next day begins (UTC)"
                .to_owned();
        return Ok(Some(Wait::For(Duration::from_secs(seconds), why)));
    }
    let gone = || {
        let why = "the engine is gone; the job waits until it is back".to_owned();
        Some(Wait::For(AGAIN, why))
    };
    let Ok((engine, hello)) = service.link.hello().await else {
        return Ok(gone());
    };
    let material = match material(service, &engine, &hello, job).await {
        Ok(material) => material,
        Err(Unread::Engine(error)) if error.gone() => return Ok(gone()),
        Err(Unread::Engine(error)) => return Err(("engine".into(), None, error.to_string())),
        Err(Unread::File(failure)) => return Err(failure),
    };
    service
        .jobs
        .turn(id, &[Status::ValidatingFiles], Status::Queued);
    let limit = service
        .keys
        .named(&job.owner)
        .and_then(|owner| owner.adapters);
    let most = limit.unwrap_or(hello.slots).min(hello.slots) as usize;
    if service.jobs.places(&job.owner) >= most {
        let why = format!(
            "{most} adapters of the owner are open; delete a model that is no longer needed"
        );
        return Ok(Some(Wait::Change(why)));
    }
    if !service.jobs.turn(id, &[Status::Queued], Status::Running) {
        return Ok(None);
    }
    service.jobs.event(id, "info", "the training runs", None);
    let mut watch = Following {
        service,
        id,
        owner: &job.owner,
        begun: (unix_seconds(), 0),
    };
    let folder = service.jobs.folder(id);
    let place = Place {
        out: folder.join("adapter"),
        folder: folder.join("adapter.tune"),
    };
    let plan = plan(service, job, material.samples.len())?;
    let end = run::train(&engine, &hello, &plan, &material, &place, &mut watch).await;
    ended(service, id, end)
}

/// What the end of a run means for its job.
fn ended(service: &Service, id: &str, end: Result<End, RunError>) -> Result<Option<Wait>, Failure> {
    let back = |why: String| {
        service.jobs.turn(id, &[Status::Running], Status::Queued);
        service.jobs.turn(id, &[Status::Pausing], Status::Paused);
        Ok(Some(Wait::For(AGAIN, why)))
    };
    match end {
        Ok(End::Finished { step }) => {
            service.jobs.event(
                id,
                "info",
                &format!("the adapter has the weights of step {step}"),
                None,
            );
            service.jobs.change(id, |job| {
                job.served = true;
                if !job.status.ended() {
                    job.status = Status::Succeeded;
                }
            });
            Ok(None)
        }
        Ok(End::Paused | End::Cancelled) => {
            service.jobs.turn(id, &[Status::Pausing], Status::Paused);
            service.jobs.turn(id, &[Status::Running], Status::Queued);
            Ok(None)
        }
        Err(RunError::Engine(error)) if error.gone() => {
            back("the engine is gone; the job waits until it is back".into())
        }
        Err(RunError::Engine(error)) if error.is("no_slot") => {
            back("the engine has no free slot; the job waits".into())
        }
        Err(error @ RunError::Unfit(_)) => Err((
            "invalid_lora".into(),
            Some("lora".into()),
            error.to_string(),
        )),
        Err(error) => Err(("training".into(), None, error.to_string())),
    }
}

fn plan(service: &Service, job: &Job, samples: usize) -> Result<Plan, Failure> {
    let asked = &job.asked;
    let lora = Lora::parse(&asked.lora)
        .map_err(|error| ("invalid_lora".to_owned(), Some("lora".to_owned()), error))?;
    let weight = service
        .keys
        .named(&job.owner)
        .map_or(1.0, |owner| owner.weight);
    Ok(Plan {
        name: job.name(),
        lora,
        weight,
        seed: asked.seed,
        epochs: asked.epochs,
        batch: asked.batch,
        schedule: Schedule {
            peak: RATE * asked.multiplier,
            warmup: 0,
            shape: Shape::Linear,
        },
        weight_decay: 0.0,
        clip: 1.0,
        publish: Publish::Every(1),
        save_every: 50,
        validate_every: order::steps_of_epoch(samples, asked.batch).max(1),
    })
}

enum Unread {
    Engine(EngineError),
    File(Failure),
}

/// The samples of a job's files.
async fn material(
    service: &Service,
    engine: &Engine,
    hello: &Hello,
    job: &Job,
) -> Result<Material, Unread> {
    let training = samples(
        service,
        engine,
        hello,
        job,
        ("training_file", &job.asked.training_file),
    )
    .await?;
    let validation = match &job.asked.validation_file {
        Some(id) => samples(service, engine, hello, job, ("validation_file", id)).await?,
        None => Vec::new(),
    };
    Ok(Material {
        samples: training,
        validation,
    })
}

async fn samples(
    service: &Service,
    engine: &Engine,
    hello: &Hello,
    job: &Job,
    (param, id): (&str, &str),
) -> Result<Vec<Sample>, Unread> {
    let failure = |code: &str, message: String| {
        Unread::File((code.to_owned(), Some(param.to_owned()), message))
    };
    let invalid = |error: DataError| failure("invalid_training_file", error.to_string());
    let stored = service.store.of(&job.owner, id);
    let stored =
        stored.ok_or_else(|| failure("file_not_found", format!("there is no file {id}")))?;
    let bytes = service
        .store
        .content(id)
        .map_err(|error| failure("file_unreadable", error.source.to_string()))?;
    let lines = data::lines(&stored.filename, &bytes, Learn::Assistant).map_err(invalid)?;
    encode(engine, hello, &stored.filename, &lines, Learn::Assistant)
        .await
        .map_err(|error| match error {
            SampleError::Data(error) => invalid(error),
            SampleError::Engine(error) => Unread::Engine(error),
        })
}

/// Follows the training of a job.
struct Following<'a> {
    service: &'a Service,
    id: &'a str,
    owner: &'a str,
    /// When it began, and after which step.
    begun: (u64, u64),
}

impl Watch for Following<'_> {
    fn wants(&self) -> Wants {
        match self.service.jobs.get(self.id).map(|job| job.status) {
            Some(Status::Running) if self.service.quota(self.owner).is_ok() => Wants::Go,
            Some(Status::Running | Status::Pausing) => Wants::Pause,
            _ => Wants::Cancel,
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of tokens"
    )]
    fn saw(&mut self, news: News) {
        let (jobs, id) = (&self.service.jobs, self.id);
        match news {
            News::Begun { done, steps } => {
                self.begun = (unix_seconds(), done);
                jobs.change(id, |job| {
                    job.progress = Progress {
                        step: done,
                        steps,
                        ..job.progress
                    }
                });
            }
            News::Step(step) => {
                let tokens = step.tokens as u64;
                self.service.spend(self.owner, tokens);
                let (began, before) = self.begun;
                let now = unix_seconds();
                jobs.change(id, |job| {
                    let left = job.progress.steps - step.step;
                    job.progress.step = step.step;
                    job.progress.tokens += tokens;
                    job.progress.finish =
                        Some(now + (now - began) * left / (step.step - before).max(1));
                });
                let data = json!({"step": step.step, "train_loss": step.loss, "tokens": step.tokens,
                    "learning_rate": step.rate, "gradient_norm": step.gradient_norm});
                jobs.event(
                    id,
                    "info",
                    &format!("step {}: loss {:.4}", step.step, step.loss),
                    Some(data),
                );
            }
            News::Validated { step, loss } => {
                let data = json!({"step": step, "valid_loss": loss});
                jobs.event(
                    id,
                    "info",
                    &format!("step {step}: validation loss {loss:.4}"),
                    Some(data),
                );
            }
            News::Saved { step } => {
                let object = fresh("ftckpt-").map(|name| {
                    json!({"id": name, "object": "fine_tuning.job.checkpoint", "created_at": unix_seconds(),
                        "fine_tuning_job_id": id, "step_number": step})
                });
                if let Ok(object) = object {
                    jobs.event(
                        id,
                        "info",
                        &format!("step {step}: checkpoint"),
                        Some(json!({"checkpoint": object})),
                    );
                }
            }
            News::Published { .. } => {}
        }
    }
}
