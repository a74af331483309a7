//! A training run: steps, checkpoints, validation, and how it goes on after it was killed.
//!
//! A run has a folder beside its output. `state.json` there says what was asked for, how many steps are done, and which
//! checkpoint has them. A checkpoint is written first, and named by `state.json` afterwards, so that whatever is killed
//! when, the file names a checkpoint that is whole. A run that is started again loads that checkpoint and repeats the
//! steps after it. As the samples of a step follow from the seed, the result has the same bytes.
//!
//! ```text
//!   out.tune/lock           held by the process that runs
//!   out.tune/state.json     State
//!   out.tune/step-000050/   PEFT directory with the optimizer: the newest, and the best by the validation file
//!   out/                    the finished adapter
//! ```

mod error;
mod plan;
mod state;
#[cfg(test)]
mod tests;

pub use error::RunError;
pub use plan::{Material, Plan, Publish};
pub use state::{Best, Place, State};

use crate::engine::{Engine, EngineError, Hello};
use crate::files::{self, FileError};
use crate::order;
use crate::sample::Sample;
use serde::Deserialize;
use serde_json::{Value, json};

/// Most tokens of one request to the engine. A token takes about 40 bytes in a request and its answer, so that both stay
/// far below [`crate::engine::LARGEST`].
const TOKENS_A_REQUEST: usize = 1 << 16;

/// What whoever watches a run wants of it. It is asked between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Another step.
    Go,
    /// A checkpoint, and an end from which the run can go on.
    Pause,
    /// An end.
    Cancel,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum News {
    /// It begins, with `done` of `steps` done before.
    Begun {
        /// Steps done.
        done: u64,
        /// Steps in all.
        steps: u64,
    },
    /// A step is done.
    Step(Step),
    /// The validation file was run through.
    Validated {
        /// After how many steps.
        step: u64,
        /// Mean loss of a learnt token, in nats.
        loss: f64,
    },
    /// A checkpoint is whole.
    Saved {
        /// After how many steps.
        step: u64,
    },
    /// New requests for the adapter's name are answered with these weights.
    Published {
        /// After how many steps.
        step: u64,
    },
}

/// A step as it went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// How many are done with it.
    pub step: u64,
    /// Mean loss of a learnt token, in nats.
    pub loss: f64,
    /// Learnt tokens.
    pub tokens: f64,
    /// The learning rate.
    pub rate: f64,
    /// Norm of the gradient before it was clipped.
    pub gradient_norm: f64,
}

/// Who watches a run.
pub trait Watch {
    /// Whether to go on.
    fn wants(&self) -> Wants;
    /// What happened.
    fn saw(&mut self, news: News);
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// The adapter is in its output directory, and open in the engine.
    Finished {
        /// Which step's weights it has: the last, or the best by the validation file.
        step: u64,
    },
    /// It goes on from a checkpoint when it is started again. The adapter is closed.
    Paused,
    /// The adapter is closed.
    Cancelled,
}

#[derive(Deserialize)]
struct Forwarded {
    loss: f64,
}

#[derive(Deserialize)]
struct Optimized {
    gradient_norm: f64,
}

struct Run<'a, W> {
    engine: &'a Engine,
    plan: &'a Plan,
    material: &'a Material,
    place: &'a Place,
    state: State,
    watch: &'a mut W,
}

/// Trains until the last step, or until the watch wants an end.
///
/// # Errors
/// When the plan does not fit the engine, the place is not free, or engine or disk fail. The run can be started again
/// with the same arguments, and goes on from its newest checkpoint.
pub async fn train(
    engine: &Engine,
    hello: &Hello,
    plan: &Plan,
    material: &Material,
    place: &Place,
    watch: &mut impl Watch,
) -> Result<End, RunError> {
    let plan = &Plan {
        lora: plan.lora.clone().fitted(hello).map_err(RunError::Unfit)?,
        ..plan.clone()
    };
    let _held = place.hold()?;
    let found = place.begun(plan, material, &hello.model)?;
    let resumed = found.is_some();
    if !resumed && hello.adapters.contains(&plan.name) {
        place.forget()?;
        return Err(RunError::Taken(plan.name.clone()));
    }
    let state = found.unwrap_or_else(|| State::new(plan, material, &hello.model));
    let mut run = Run {
        engine,
        plan,
        material,
        place,
        state,
        watch,
    };
    run.open(resumed).await?;
    let end = run.all().await;
    let stays = match &end {
        Ok(end) => matches!(end, End::Finished { .. }),
        // Nobody hears it.
        Err(RunError::Engine(error)) => error.gone(),
        Err(_) => false,
    };
    if !stays {
        run.command("close", json!({})).await?;
    }
    end
}

impl<W: Watch> Run<'_, W> {
    /// A command of this adapter.
    async fn command(&self, method: &'static str, mut fields: Value) -> Result<Value, EngineError> {
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("adapter".into(), self.plan.name.clone().into());
        }
        self.engine.call(method, fields).await
    }

    /// All steps that are left, and the end.
    async fn all(&mut self) -> Result<End, RunError> {
        let steps = self.plan.steps(self.material.samples.len());
        self.watch.saw(News::Begun {
            done: self.state.step,
            steps,
        });
        while self.state.step < steps {
            match self.watch.wants() {
                Wants::Go => self.step(steps).await?,
                Wants::Pause => {
                    self.save().await?;
                    return Ok(End::Paused);
                }
                Wants::Cancel => return Ok(End::Cancelled),
            }
        }
        self.finish().await
    }

    /// Opens the adapter with the weights of the newest checkpoint.
    async fn open(&mut self, resumed: bool) -> Result<(), RunError> {
        // From here on an adapter of this name is this run's, also for the process that goes on after this one.
        self.state.write(self.place)?;
        let fields = self
            .plan
            .lora
            .open(&self.plan.name, self.plan.seed, self.plan.weight);
        match self.command("open", fields.clone()).await {
            Err(error) if error.is("exists") && resumed => {
                self.command("close", json!({})).await?;
                self.command("open", fields).await?;
            }
            Err(error) if error.is("exists") => {
                self.place.forget()?;
                return Err(RunError::Taken(self.plan.name.clone()));
            }
            other => drop(other?),
        }
        if let Some(step) = self.state.checkpoint {
            let path = self.place.checkpoint(step);
            self.command("load", json!({"path": path, "optimizer": true}))
                .await?;
        }
        Ok(())
    }

    async fn step(&mut self, steps: u64) -> Result<(), RunError> {
        let plan = self.plan;
        let done = self.state.step;
        let places = order::of_step(plan.seed, self.material.samples.len(), plan.batch, done);
        let samples: Vec<&Sample> = places
            .into_iter()
            .map(|place| &self.material.samples[place])
            .collect();
        let tokens: f64 = samples.iter().map(|sample| sample.learnt()).sum();
        let step = done + 1;
        let loss = self
            .forward(&samples, 1.0 / tokens, true)
            .await
            .map_err(not_finite(step))?;
        let rate = plan.schedule.at(done, steps);
        let adam = json!({"lr": rate, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
            "weight_decay": plan.weight_decay, "clip": plan.clip});
        let stepped = self.command("step", adam).await.map_err(not_finite(step))?;
        let gradient_norm = answer::<Optimized>("step", stepped)?.gradient_norm;
        self.state.step = step;
        self.state.tokens += tokens;
        self.watch.saw(News::Step(Step {
            step,
            loss,
            tokens,
            rate,
            gradient_norm,
        }));
        if plan.publish.due(step) {
            self.publish().await?;
        }
        let validated = !self.material.validation.is_empty()
            && (step.is_multiple_of(plan.validate_every) || step == steps);
        if validated {
            self.validate().await?;
        }
        if validated || step.is_multiple_of(plan.save_every) || step == steps {
            self.save().await?;
        }
        Ok(())
    }

    /// Runs samples through the model; the sum of their losses, each token's counted `scale` times.
    async fn forward(
        &self,
        samples: &[&Sample],
        scale: f64,
        backward: bool,
    ) -> Result<f64, EngineError> {
        let mut loss = 0.0;
        let mut from = 0;
        while from < samples.len() {
            let mut tokens = 0;
            let fits = |sample: &&&Sample| {
                tokens += sample.tokens.len();
                tokens <= TOKENS_A_REQUEST
            };
            let count = samples[from..].iter().take_while(fits).count().max(1);
            let data: Vec<Value> = samples[from..from + count]
                .iter()
                .map(|sample| sample.datum(scale))
                .collect();
            let fields = json!({"data": data, "loss": "cross_entropy", "backward": backward});
            loss += answer::<Forwarded>("forward", self.command("forward", fields).await?)?.loss;
            from += count;
        }
        Ok(loss)
    }

    async fn publish(&mut self) -> Result<(), RunError> {
        self.command("publish", json!({})).await?;
        self.watch.saw(News::Published {
            step: self.state.step,
        });
        Ok(())
    }

    async fn validate(&mut self) -> Result<(), RunError> {
        let samples: Vec<&Sample> = self.material.validation.iter().collect();
        let tokens: f64 = samples.iter().map(|sample| sample.learnt()).sum();
        let loss = self.forward(&samples, 1.0 / tokens, false).await?;
        let step = self.state.step;
        if self.state.best.is_none_or(|best| loss < best.loss) {
            self.state.best = Some(Best { step, loss });
        }
        self.watch.saw(News::Validated { step, loss });
        Ok(())
    }

    /// Writes a checkpoint, and then the name of it.
    async fn save(&mut self) -> Result<(), RunError> {
        let step = self.state.step;
        if self.state.checkpoint == Some(step) {
            return Ok(());
        }
        let path = self.place.checkpoint(step);
        // Left by a process that was killed before it wrote the name.
        files::remove_folder(&path)?;
        self.command("save", json!({"path": path, "optimizer": true}))
            .await?;
        self.state.checkpoint = Some(step);
        self.state.write(self.place)?;
        self.place.keep(&self.state)?;
        self.watch.saw(News::Saved { step });
        Ok(())
    }

    /// Writes the adapter. All steps are done, and the newest checkpoint has them.
    async fn finish(&mut self) -> Result<End, RunError> {
        let last = self.state.step;
        let step = self.state.best.map_or(last, |best| best.step);
        if step != last {
            self.command(
                "load",
                json!({"path": self.place.checkpoint(step), "optimizer": true}),
            )
            .await?;
        }
        if self.plan.publish.at_end() {
            self.publish().await?;
        }
        // An output that is there was put there by this run, before it was killed, or by somebody else.
        if !(self.state.finished && self.place.out.exists()) {
            let beside = self.place.folder.join("adapter");
            files::remove_folder(&beside)?;
            self.command("save", json!({"path": beside, "optimizer": false}))
                .await?;
            if self.place.out.exists() {
                return Err(RunError::Exists(self.place.out.clone()));
            }
            self.state.finished = true;
            self.state.write(self.place)?;
            std::fs::rename(&beside, &self.place.out).map_err(FileError::at(&self.place.out))?;
        }
        self.place.forget()?;
        Ok(End::Finished { step })
    }
}

fn answer<T: serde::de::DeserializeOwned>(
    method: &'static str,
    value: Value,
) -> Result<T, EngineError> {
    serde_json::from_value(value).map_err(|error| EngineError::Answer {
        method,
        detail: error.to_string(),
    })
}

fn not_finite(step: u64) -> impl Fn(EngineError) -> RunError {
    move |error| match error {
        EngineError::Refused { kind, message, .. } if kind == "not_finite" => {
            RunError::NotFinite { step, message }
        }
        other => other.into(),
    }
}
