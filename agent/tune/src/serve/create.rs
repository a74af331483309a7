//! A new job: what its body asks for.

use super::answer::{Answer, Refusal, json};
use super::call::Call;
use super::jobs::{Asked, Job, Progress};
use super::keys::Owner;
use super::service::Service;
use super::shared::fresh;
use super::status::Status;
use super::work;
use crate::clock::unix_seconds;
use crate::lora::Lora;
use hyper::StatusCode;
use serde_json::Value;
use std::sync::Arc;

/// Most bytes of an adapter's name, by the engine.
const LONGEST_NAME: usize = 128;

/// Creates a job.
pub async fn create(service: &Arc<Service>, owner: &Owner, call: &Call) -> Result<Answer, Refusal> {
    let body: Value = serde_json::from_slice(&call.body)
        .map_err(|error| Refusal::wrong("body", format!("no JSON: {error}")))?;
    if let Err(over) = service.quota(&owner.name) {
        return Err(Refusal::quota(
            &owner.name,
            over.until.saturating_sub(unix_seconds()).max(1),
        ));
    }
    let asked = asked(service, owner, &body)?;
    let (_, hello) = service.link.hello().await?;
    if asked.model != hello.model {
        let message = format!(
            "there is no base model {}; this server trains {}",
            asked.model, hello.model
        );
        return Err(Refusal::wrong("model", message));
    }
    let lora = Lora::parse(&asked.lora).and_then(|lora| lora.fitted(&hello));
    lora.map_err(|error| Refusal::wrong("lora", error))?;
    let id = fresh("ftjob-")?;
    let job = Job {
        id,
        owner: owner.name.clone(),
        created_at: unix_seconds(),
        finished_at: None,
        status: Status::ValidatingFiles,
        asked,
        idempotency: call.idempotency.clone(),
        progress: Progress::default(),
        error: None,
        served: false,
    };
    if job.name().len() > LONGEST_NAME {
        let message = format!(
            "the adapter's name {} exceeds {LONGEST_NAME} characters; use a shorter suffix",
            job.name()
        );
        return Err(Refusal::wrong("suffix", message));
    }
    let (job, new) = service.jobs.add(job)?;
    if new {
        service
            .jobs
            .event(&job.id, "info", "the job was created", None);
        tokio::spawn(work::drive(Arc::clone(service), job.id.clone()));
    }
    Ok(json(StatusCode::OK, &job.object()))
}

/// What a body asks for. Fields that this server does not know are ignored, unless they would change what is trained.
fn asked(service: &Service, owner: &Owner, body: &Value) -> Result<Asked, Refusal> {
    let text = |name: &str| match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Refusal::wrong(name, format!("{name}: expected a string"))),
    };
    let needed =
        |name: &str| text(name)?.ok_or_else(|| Refusal::wrong(name, format!("{name} is missing")));
    let method = body.get("method").unwrap_or(&Value::Null);
    only_known(method, body)?;
    let hyper = Hyper(
        method
            .pointer("/supervised/hyperparameters")
            .or_else(|| body.get("hyperparameters")),
    );
    let training_file = needed("training_file")?;
    let validation_file = text("validation_file")?;
    for (param, id) in [
        ("training_file", Some(&training_file)),
        ("validation_file", validation_file.as_ref()),
    ] {
        if let Some(id) = id.filter(|id| service.store.of(&owner.name, id).is_none()) {
            return Err(Refusal::wrong(param, format!("there is no file {id}")));
        }
    }
    let suffix = text("suffix")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if suffix
        .as_ref()
        .is_some_and(|suffix| suffix.len() > 64 || !suffix.bytes().all(plain))
    {
        return Err(Refusal::wrong(
            "suffix",
            "suffix: expected up to 64 letters, digits, '-', '_' and '.'",
        ));
    }
    Ok(Asked {
        model: needed("model")?,
        training_file,
        validation_file,
        suffix,
        seed: body.get("seed").and_then(Value::as_u64).unwrap_or(0),
        metadata: body.get("metadata").cloned().unwrap_or(Value::Null),
        lora: text("lora")?.unwrap_or_default(),
        epochs: hyper.whole("n_epochs", 3.0, 1000.0)?,
        batch: usize::try_from(hyper.whole("batch_size", 8.0, 4096.0)?).unwrap_or(8),
        multiplier: hyper.number("learning_rate_multiplier", 1.0, 1000.0)?,
    })
}

/// Refuses what would change the training, and is not done here.
fn only_known(method: &Value, body: &Value) -> Result<(), Refusal> {
    let kind = method
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or("supervised");
    if kind != "supervised" {
        return Err(Refusal::wrong(
            "method",
            format!("this server has no method {kind}; it has: supervised"),
        ));
    }
    if body
        .get("integrations")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty())
    {
        return Err(Refusal::wrong(
            "integrations",
            "this server has no integrations",
        ));
    }
    Ok(())
}

/// The hyperparameters of a method, if there are any.
struct Hyper<'a>(Option<&'a Value>);

impl Hyper<'_> {
    /// A number above 0, up to `most`; `usual` for "auto".
    fn number(&self, name: &str, usual: f64, most: f64) -> Result<f64, Refusal> {
        match self.0.and_then(|hyper| hyper.get(name)) {
            None | Some(Value::Null) => Ok(usual),
            Some(Value::String(auto)) if auto == "auto" => Ok(usual),
            Some(value) => {
                let number = value
                    .as_f64()
                    .filter(|number| *number > 0.0 && *number <= most);
                let expected =
                    format!("{name}: expected \"auto\" or a number above 0, up to {most}");
                number.ok_or_else(|| Refusal::wrong(name, expected))
            }
        }
    }

    /// The same without a fraction.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number within small bounds"
    )]
    fn whole(&self, name: &str, usual: f64, most: f64) -> Result<u64, Refusal> {
        let number = self.number(name, usual, most)?;
        if number.fract() > 0.0 {
            return Err(Refusal::wrong(
                name,
                format!("{name}: expected a whole number"),
            ));
        }
        Ok(number as u64)
    }
}
