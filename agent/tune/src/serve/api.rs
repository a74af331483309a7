//! The calls of OpenAI's files and fine-tuning jobs.

use super::answer::{Answer, Refusal, json, page};
use super::call::Call;
use super::create::create;
use super::jobs::Job;
use super::keys::Owner;
use super::service::Service;
use super::shared::fresh;
use super::status::Ask;
use super::store::Stored;
use crate::clock::unix_seconds;
use crate::data::{self, Learn};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;

/// All calls, as the answer to an unknown one lists them.
const CALLS: [&str; 12] = [
    "POST /v1/files",
    "GET /v1/files",
    "GET /v1/files/ID",
    "DELETE /v1/files/ID",
    "GET /v1/files/ID/content",
    "POST /v1/fine_tuning/jobs",
    "GET /v1/fine_tuning/jobs",
    "GET /v1/fine_tuning/jobs/ID",
    "POST /v1/fine_tuning/jobs/ID/{cancel,pause,resume}",
    "GET /v1/fine_tuning/jobs/ID/{events,checkpoints}",
    "GET /v1/models",
    "DELETE /v1/models/NAME",
];

/// Answers a call of an owner.
pub async fn call(service: &Arc<Service>, owner: &Owner, call: Call) -> Result<Answer, Refusal> {
    let path: Vec<&str> = call.path.iter().map(String::as_str).collect();
    let name = owner.name.as_str();
    match path.get(1).copied() {
        Some("files") => files(service, name, &call, &path).await,
        Some("fine_tuning") => jobs(service, owner, &call, &path).await,
        _ => models(service, name, &call, &path).await,
    }
}

fn unknown(call: &Call, path: &[&str]) -> Refusal {
    Refusal::unknown_call(&format!("{} /{}", call.method, path.join("/")), &CALLS)
}

async fn files(
    service: &Service,
    name: &str,
    call: &Call,
    path: &[&str],
) -> Result<Answer, Refusal> {
    match (&call.method, path) {
        (&Method::POST, ["v1", "files"]) => upload(service, name, call).await,
        (&Method::GET, ["v1", "files"]) => {
            let purpose = query(&call.query, "purpose");
            let wanted = |stored: &Stored| {
                purpose
                    .as_ref()
                    .is_none_or(|purpose| *purpose == stored.purpose)
            };
            let files = service
                .store
                .all(name)
                .iter()
                .filter(|stored| wanted(stored))
                .map(Stored::object)
                .collect();
            Ok(list(call, files, 10_000))
        }
        (&Method::GET, ["v1", "files", id]) => {
            Ok(json(StatusCode::OK, &file(service, name, id)?.object()))
        }
        (&Method::GET, ["v1", "files", id, "content"]) => {
            let stored = file(service, name, id)?;
            Ok(Response::new(Full::new(Bytes::from(
                service.store.content(&stored.id)?,
            ))))
        }
        (&Method::DELETE, ["v1", "files", id]) => {
            let stored = file(service, name, id)?;
            let uses = |job: &Job| {
                let asked = &job.asked;
                !job.status.ended()
                    && (asked.training_file == stored.id
                        || asked.validation_file.as_ref() == Some(&stored.id))
            };
            if let Some(job) = service.jobs.all(name).iter().find(|job| uses(job)) {
                return Err(Refusal::conflict(format!(
                    "job {} uses the file; cancel it first",
                    job.id
                )));
            }
            service.store.remove(&stored.id)?;
            Ok(json(
                StatusCode::OK,
                &json!({"id": id, "object": "file", "deleted": true}),
            ))
        }
        _ => Err(unknown(call, path)),
    }
}

async fn jobs(
    service: &Arc<Service>,
    owner: &Owner,
    call: &Call,
    path: &[&str],
) -> Result<Answer, Refusal> {
    let name = owner.name.as_str();
    match (&call.method, path) {
        (&Method::POST, ["v1", "fine_tuning", "jobs"]) => create(service, owner, call).await,
        (&Method::GET, ["v1", "fine_tuning", "jobs"]) => Ok(list(
            call,
            service.jobs.all(name).iter().map(Job::object).collect(),
            20,
        )),
        (&Method::GET, ["v1", "fine_tuning", "jobs", id]) => {
            Ok(json(StatusCode::OK, &job(service, name, id)?.object()))
        }
        (&Method::GET, ["v1", "fine_tuning", "jobs", id, "events"]) => {
            let job = job(service, name, id)?;
            Ok(list(call, service.jobs.events(&job.id), 20))
        }
        (&Method::GET, ["v1", "fine_tuning", "jobs", id, "checkpoints"]) => Ok(list(
            call,
            checkpoints(service, &job(service, name, id)?),
            10,
        )),
        (&Method::POST, ["v1", "fine_tuning", "jobs", id, "cancel"]) => {
            ask(service, name, id, Ask::Cancel)
        }
        (&Method::POST, ["v1", "fine_tuning", "jobs", id, "pause"]) => {
            ask(service, name, id, Ask::Pause)
        }
        (&Method::POST, ["v1", "fine_tuning", "jobs", id, "resume"]) => {
            ask(service, name, id, Ask::Resume)
        }
        _ => Err(unknown(call, path)),
    }
}

async fn models(
    service: &Service,
    name: &str,
    call: &Call,
    path: &[&str],
) -> Result<Answer, Refusal> {
    match (&call.method, path) {
        (&Method::GET, ["v1", "models"]) => served(service, name).await,
        (&Method::DELETE, ["v1", "models", rest @ ..]) => {
            delete(service, name, &decoded(&rest.join("/"))).await
        }
        _ => Err(unknown(call, path)),
    }
}

fn file(service: &Service, owner: &str, id: &str) -> Result<Stored, Refusal> {
    service
        .store
        .of(owner, id)
        .ok_or_else(|| Refusal::absent("file", id))
}

fn job(service: &Service, owner: &str, id: &str) -> Result<Job, Refusal> {
    service
        .jobs
        .of(owner, id)
        .ok_or_else(|| Refusal::absent("job", id))
}

fn ask(service: &Service, owner: &str, id: &str, ask: Ask) -> Result<Answer, Refusal> {
    let job = job(service, owner, id)?;
    let asked = service.jobs.ask(&job.id, ask);
    let now = || {
        service
            .jobs
            .get(id)
            .map_or("absent", |job| job.status.word())
    };
    let asked =
        asked.ok_or_else(|| Refusal::conflict(format!("job {id} has ended: it is {}", now())))?;
    Ok(json(StatusCode::OK, &asked.object()))
}

/// A part of a list of objects, by the query's `after` and `limit`.
fn list(call: &Call, objects: Vec<Value>, usual: usize) -> Answer {
    let limit = query(&call.query, "limit")
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(usual);
    let after = query(&call.query, "after");
    json(
        StatusCode::OK,
        &page(objects, after.as_deref(), limit.clamp(1, 10_000)),
    )
}

/// A parameter of a query.
fn query(text: &str, name: &str) -> Option<String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .into_iter()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| decoded(value))
}

/// Text in which `%` and two hexadecimal digits stand for a byte.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match code
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .filter(|_| byte == b'%')
        {
            Some(code) => {
                bytes.push(code);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Takes a file in.
async fn upload(service: &Service, owner: &str, call: &Call) -> Result<Answer, Refusal> {
    let wrong = |error: multer::Error| {
        Refusal::wrong("body", format!("expected multipart/form-data: {error}"))
    };
    let boundary = multer::parse_boundary(&call.kind).map_err(wrong)?;
    let mut parts =
        multer::Multipart::with_reader(std::io::Cursor::new(call.body.clone()), boundary);
    let (mut content, mut purpose) = (None, None);
    while let Some(part) = parts.next_field().await.map_err(wrong)? {
        match part.name() {
            Some("file") => {
                let name = part.file_name().unwrap_or("file").to_owned();
                content = Some((name, part.bytes().await.map_err(wrong)?));
            }
            Some("purpose") => purpose = Some(part.text().await.map_err(wrong)?),
            // A client from the future.
            _ => {}
        }
    }
    let (filename, content) =
        content.ok_or_else(|| Refusal::wrong("file", "the file is missing"))?;
    if purpose.as_deref() != Some("fine-tune") {
        return Err(Refusal::wrong(
            "purpose",
            "this server takes files with the purpose fine-tune",
        ));
    }
    data::lines(&filename, &content, Learn::All)
        .map_err(|error| Refusal::wrong("file", error.to_string()))?;
    let id = fresh("file-")?;
    let stored = Stored {
        id,
        owner: owner.to_owned(),
        filename,
        purpose: "fine-tune".to_owned(),
        bytes: content.len() as u64,
        created_at: unix_seconds(),
    };
    Ok(json(StatusCode::OK, &service.store.add(stored, &content)?))
}

/// A job's checkpoints, newest first, with the losses that were measured at their steps.
fn checkpoints(service: &Service, job: &Job) -> Vec<Value> {
    let events = service.jobs.events(&job.id);
    let metrics = |step: &Value| {
        let mut metrics = json!({"step": step});
        let of_step = events
            .iter()
            .filter_map(|event| event.get("data"))
            .filter(|data| data.get("step") == Some(step));
        for (name, loss) in of_step
            .filter_map(Value::as_object)
            .flatten()
            .filter(|(name, _)| name.ends_with("_loss"))
        {
            metrics[name] = loss.clone();
        }
        metrics
    };
    let found = events
        .iter()
        .filter_map(|event| event.pointer("/data/checkpoint").cloned());
    let with = |mut checkpoint: Value| {
        let step = checkpoint["step_number"].clone();
        checkpoint["metrics"] = metrics(&step);
        checkpoint["fine_tuned_model_checkpoint"] =
            format!("{}:ckpt-step-{step}", job.name()).into();
        checkpoint
    };
    found.map(with).collect()
}

/// The base, and the owner's adapters that the engine serves.
async fn served(service: &Service, owner: &str) -> Result<Answer, Refusal> {
    let (_, hello) = service.link.engine().await?;
    let model = |id: String, owner: &str, created: u64| json!({"id": id, "object": "model", "created": created, "owned_by": owner});
    let served = service.jobs.all(owner).into_iter().filter(|job| job.served);
    let mut data = vec![model(hello.model, "engine", 0)];
    data.extend(
        served.map(|job| model(job.name(), owner, job.finished_at.unwrap_or(job.created_at))),
    );
    Ok(json(
        StatusCode::OK,
        &json!({"object": "list", "data": data}),
    ))
}

/// Closes an adapter.
async fn delete(service: &Service, owner: &str, name: &str) -> Result<Answer, Refusal> {
    let job = service
        .jobs
        .all(owner)
        .into_iter()
        .find(|job| job.served && job.name() == name);
    let job = job.ok_or_else(|| Refusal::absent("model", name))?;
    let (engine, _) = service.link.engine().await?;
    match engine
        .call::<Value>("close", json!({"adapter": name}))
        .await
    {
        // An engine that was restarted has forgotten it.
        Err(error) if !error.is("unknown_adapter") => return Err(error.into()),
        _ => {}
    }
    service.jobs.change(&job.id, |job| job.served = false);
    Ok(json(
        StatusCode::OK,
        &json!({"id": name, "object": "model", "deleted": true}),
    ))
}
