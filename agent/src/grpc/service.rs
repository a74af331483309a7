//! The Node and Control services.
//!
//! Nothing is decided here. A request becomes a question to the control thread or to the configuration in force, and
//! its answer a message. Each change of the node is an event that names the user who made it.
//! [`crate::grpc::authority`] has decided before who may call.

use crate::clock::{nanos, unix_ms};
use crate::config::Change;
use crate::grpc::authority::Operators;
use crate::grpc::explained::explained;
use crate::grpc::follow;
use crate::grpc::peers::Peer;
use crate::grpc::readers::Readers;
use crate::grpc::reload::{InForce, SetError, change};
use crate::grpc::sessions::HookReports;
use crate::grpc::standing::Standing;
use crate::grpc::ungated::{self, Block, Stream};
use crate::host::logs::LogLevel;
use crate::host::orders::Order;
use crate::identity::{self, Credentials};
use crate::inbox::{Answer, Ask, Asker, Mailbox};
use crate::watch::events::EventLog;
use crate::watch::gauge::Gauge;
use crate::watch::metrics::serve::Configured;
use crate::watch::refusals::Refusals;
use crate::watch::reports::Reports;
use crate::wire::role_said;
use std::sync::Arc;
use std::time::Duration;
use tidegate_node::spans::Span;
use tidegate_node::text::Text;
use tidegate_proto::v1;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

/// How long the control thread may take for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// It did not answer in that time.
const NO_ANSWER: &str = "the control thread does not answer";
/// It ends, or has more questions before it than are kept.
const CROWDED: &str = "the control thread takes no more questions at this moment";

/// The Node and Control services.
#[derive(Clone, Debug)]
pub struct Service {
    mailbox: Mailbox,
    events: Arc<EventLog>,
    hooks: Arc<HookReports>,
    log_level: LogLevel,
    in_force: Arc<InForce>,
    refusals: Arc<Refusals>,
    gauge: Gauge,
    orders: Arc<Standing>,
    reports: Arc<Reports>,
    readers: Arc<Readers>,
    operators: Operators,
    asker: Asker,
}

/// What the services are made of.
#[derive(Debug)]
pub struct Made {
    /// Where the control thread is asked.
    pub mailbox: Mailbox,
    /// What happened.
    pub events: Arc<EventLog>,
    /// What processes say of their hooks.
    pub hooks: Arc<HookReports>,
    /// The level of the log.
    pub log_level: LogLevel,
    /// The configuration.
    pub in_force: Arc<InForce>,
    /// Who was refused something.
    pub refusals: Arc<Refusals>,
    /// What the driver says of its GPUs.
    pub gauge: Gauge,
    /// The orders of operators that stand.
    pub orders: Arc<Standing>,
    /// The report that readers share.
    pub reports: Arc<Reports>,
}

/// Who asks, for the record.
fn who<T>(request: &Request<T>) -> String {
    let peer = request.extensions().get::<Peer>();
    peer.map_or_else(
        || "somebody".to_owned(),
        |peer| peer.credentials.to_string(),
    )
}

impl Service {
    /// The services for operators: each question goes before those of readers.
    #[must_use]
    pub fn new(made: Made) -> Self {
        let Made {
            mailbox,
            events,
            hooks,
            log_level,
            in_force,
            refusals,
            gauge,
            orders,
            reports,
        } = made;
        Self {
            readers: Arc::new(Readers::new(Arc::clone(&refusals))),
            mailbox,
            events,
            hooks,
            log_level,
            in_force,
            refusals,
            gauge,
            orders,
            reports,
            operators: Operators::of_this_machine(),
            asker: Asker::Operator,
        }
    }

    /// The same for anybody: readers share a report, and those of each tenant are answered at a rate.
    #[must_use]
    pub fn for_readers(&self) -> Self {
        Self {
            asker: Asker::Reader,
            ..self.clone()
        }
    }

    /// Waits until the caller may be answered.
    async fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let caller = request.extensions().get::<Peer>();
        let (Some(caller), Asker::Reader) = (caller, self.asker) else {
            return Ok(());
        };
        let admitted = self.readers.admit(&caller.credentials.tenant).await;
        admitted.map_err(Status::resource_exhausted)
    }

    /// Whether `caller` may read about a process. Operators may read about each, others about their own.
    fn may_ask_of(&self, caller: &Credentials, process: &Credentials) -> bool {
        let own = (caller.uid, &caller.tenant) == (process.uid, &process.tenant);
        own || self.operators.include(caller)
    }

    /// The report: as it is at this moment, or as it just was.
    async fn report(&self) -> Result<v1::GetStatusResponse, Status> {
        if self.asker == Asker::Operator {
            return Ok(*self.ask(Ask::Report).await?);
        }
        let report = self.reports.latest().await;
        let report = report.ok_or_else(|| Status::deadline_exceeded(NO_ANSWER))?;
        Ok(v1::GetStatusResponse::clone(&report))
    }

    /// Jobs that begin from here on obey what was said of their names.
    fn steer_by_name(&self) {
        let ask = Ask::Steered(self.orders.by_name());
        if !self.mailbox.ask(self.asker, ask) {
            tracing::warn!(
                "jobs that start later ignore this order until the agent restarts: too many questions wait"
            );
        }
    }

    async fn ask<T>(&self, question: impl FnOnce(Answer<T>) -> Ask) -> Result<T, Status> {
        let (answer_tx, answer_rx) = oneshot::channel();
        if !self.mailbox.ask(self.asker, question(answer_tx)) {
            return Err(Status::unavailable(CROWDED));
        }
        match tokio::time::timeout(ANSWER_LIMIT, answer_rx).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Status::unavailable("the agent is ending")),
            Err(_) => Err(Status::deadline_exceeded(NO_ANSWER)),
        }
    }

    async fn jobs(
        &self,
        job: String,
        question: impl FnOnce(Option<String>, Answer<Vec<String>>) -> Ask,
    ) -> Result<Vec<String>, Status> {
        let named = Some(job.clone()).filter(|job| !job.is_empty());
        let jobs = self.ask(|answer| question(named, answer)).await?;
        if jobs.is_empty() && !job.is_empty() {
            return Err(Status::not_found(format!("there is no job `{job}`")));
        }
        Ok(jobs)
    }
}

const fn busy_span(span: &Span) -> v1::BusySpan {
    v1::BusySpan {
        begin_ns: span.begin,
        end_ns: match span.end {
            Some(end) => end,
            None => 0,
        },
    }
}

#[tonic::async_trait]
impl v1::node_server::Node for Service {
    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        self.admit(&request).await?;
        let mut report = self.report().await?;
        let since = request.get_ref().busy_since_ns;
        if since != 0 {
            let busy = self.ask(|answer| Ask::Busy(since, answer)).await?;
            for (gpu, (spans, from)) in report.gpus.iter_mut().zip(busy) {
                gpu.busy_spans = spans.iter().map(busy_span).collect();
                gpu.busy_from_ns = from;
            }
        }
        if let Some(order) = self.orders.drained().filter(|_| report.drained) {
            (report.drained_since_unix_ms, report.drained_by) = (order.since_unix_ms, order.by);
        }
        report.counters.push(self.events.lost());
        (report.config_error, report.config_pending) = self.in_force.standing();
        report.config_file = self.in_force.file();
        let loaded = self.in_force.loaded();
        report.config_overridden = loaded.overridden();
        report.ungated_longest_ns = nanos(loaded.config.ungated);
        report.refusals = self.refusals.rows();
        for (gpu, figures) in report.gpus.iter_mut().zip(self.gauge.read().await) {
            gpu.model = figures.model;
            gpu.memory_total_bytes = figures.total;
            gpu.memory_used_bytes = figures.used;
        }
        if request.get_ref().hooks {
            for process in &mut report.processes {
                if let Some(hooks) = self.hooks.get(process.session) {
                    (process.hooks, process.unhooked) = hooks.shown();
                }
            }
        }
        Ok(Response::new(report))
    }

    async fn get_config(
        &self,
        request: Request<v1::GetConfigRequest>,
    ) -> Result<Response<v1::GetConfigResponse>, Status> {
        self.admit(&request).await?;
        Ok(Response::new(self.in_force.settings()))
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainResponse>, Status> {
        self.admit(&request).await?;
        let caller = request.extensions().get::<Peer>();
        let pid = match request.get_ref().pid {
            0 => caller.map_or(0, |peer| peer.credentials.pid),
            pid => pid,
        };
        let supposed = role_said(request.get_ref().asked_role());
        let gone = || Status::not_found(format!("there is no process {pid}"));
        if pid <= 0 {
            return Err(gone());
        }
        let peer = identity::of_process(pid).map_err(|_| gone())?;
        if !caller.is_some_and(|caller| self.may_ask_of(&caller.credentials, &peer)) {
            return Err(Status::permission_denied(format!(
                "process {pid} is another user's: only root and group {} may ask of it",
                crate::host::rundir::GROUP
            )));
        }
        let standing = *self.ask(|answer| Ask::Explain(pid, answer)).await?;
        let loaded = self.in_force.loaded();
        let rules = &loaded.config.identity;
        Ok(Response::new(explained(&peer, rules, supposed, standing)))
    }

    async fn explain_handle(
        &self,
        request: Request<v1::ExplainHandleRequest>,
    ) -> Result<Response<v1::ExplainHandleResponse>, Status> {
        self.admit(&request).await?;
        let v1::ExplainHandleRequest { handle, job } = request.into_inner();
        let named = Some(job).filter(|job| !job.is_empty());
        let handles = self
            .ask(|answer| Ask::Handle(handle, named, answer))
            .await?;
        if handles.is_empty() {
            let none = format!("no attached job has a KV cache with a handle {handle}");
            return Err(Status::not_found(none));
        }
        Ok(Response::new(v1::ExplainHandleResponse { handles }))
    }

    async fn explain_lease(
        &self,
        request: Request<v1::ExplainLeaseRequest>,
    ) -> Result<Response<v1::ExplainLeaseResponse>, Status> {
        self.admit(&request).await?;
        let job = request.into_inner().job;
        let named = Some(job.clone()).filter(|job| !job.is_empty());
        let gpus = self.ask(|answer| Ask::Leases(named, answer)).await?;
        let gpus = gpus.ok_or_else(|| Status::not_found(format!("there is no job `{job}`")))?;
        Ok(Response::new(v1::ExplainLeaseResponse { gpus }))
    }

    type WatchEventsStream = follow::Stream;

    async fn watch_events(
        &self,
        request: Request<v1::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        self.admit(&request).await?;
        let v1::WatchEventsRequest {
            since_seq,
            no_follow,
        } = request.into_inner();
        let stream = follow::stream(&self.events, since_seq, no_follow)?;
        Ok(Response::new(stream))
    }
}

fn changes(changes: &[Change]) -> Vec<v1::SettingChange> {
    changes.iter().map(change).collect()
}

/// An order that is given now.
fn by(who: String) -> Order {
    Order {
        since_unix_ms: unix_ms(),
        by: who,
    }
}

/// One job, or None for all.
fn one(job: &str) -> Option<&str> {
    Some(job).filter(|job| !job.is_empty())
}

/// "every job", or which.
fn which(job: &str) -> String {
    if job.is_empty() {
        "every job".to_owned()
    } else {
        format!("job `{}`", Text::name(job))
    }
}

#[tonic::async_trait]
impl v1::control_server::Control for Service {
    async fn pause(
        &self,
        request: Request<v1::PauseRequest>,
    ) -> Result<Response<v1::PauseResponse>, Status> {
        let who = who(&request);
        let job = request.into_inner().job;
        let said = format!("pause {}: by {who}", which(&job));
        let _turn = self.orders.turn().await;
        let jobs = self.jobs(job.clone(), Ask::Pause).await?;
        let not_kept = self
            .orders
            .change(|orders| orders.pause(one(&job), by(who)));
        let not_kept = not_kept.await;
        self.steer_by_name();
        self.in_force.audit("operator", said);
        Ok(Response::new(v1::PauseResponse { jobs, not_kept }))
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeRequest>,
    ) -> Result<Response<v1::ResumeResponse>, Status> {
        let who = who(&request);
        let job = request.into_inner().job;
        let said = format!("resume {}: by {who}", which(&job));
        let _turn = self.orders.turn().await;
        let jobs = match self.jobs(job.clone(), Ask::Resume).await {
            // It has no process at this moment, and was paused when it had one.
            Err(_) if self.orders.is_paused(&job) => vec![job.clone()],
            other => other?,
        };
        let not_kept = self
            .orders
            .change(|orders| orders.resume(one(&job), by(who)));
        let not_kept = not_kept.await;
        self.steer_by_name();
        self.in_force.audit("operator", said);
        Ok(Response::new(v1::ResumeResponse { jobs, not_kept }))
    }

    async fn set_log_level(
        &self,
        request: Request<v1::SetLogLevelRequest>,
    ) -> Result<Response<v1::SetLogLevelResponse>, Status> {
        let who = who(&request);
        let changed = self
            .log_level
            .set(&request.into_inner().filter)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        tracing::warn!(before = changed.before, now = changed.now, "log level set");
        let text = format!("log level {}: by {who}", changed.now);
        self.in_force.audit("operator", text);
        Ok(Response::new(v1::SetLogLevelResponse {
            before: changed.before,
            filter: changed.now,
        }))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        let order = by(who(&request));
        let text = format!("by {}", order.by);
        let _turn = self.orders.turn().await;
        let jobs = self.ask(|answer| Ask::Drain(true, answer)).await?;
        let not_kept = self.orders.change(|orders| orders.drained = Some(order));
        let not_kept = not_kept.await;
        self.in_force.audit("drained", text);
        Ok(Response::new(v1::DrainResponse { jobs, not_kept }))
    }

    async fn undrain(
        &self,
        request: Request<v1::UndrainRequest>,
    ) -> Result<Response<v1::UndrainResponse>, Status> {
        let _turn = self.orders.turn().await;
        let jobs = self.ask(|answer| Ask::Drain(false, answer)).await?;
        let not_kept = self.orders.change(|orders| orders.drained = None).await;
        let text = format!("by {}", who(&request));
        self.in_force.audit("undrained", text);
        Ok(Response::new(v1::UndrainResponse { jobs, not_kept }))
    }

    type UngateStream = Stream;

    async fn ungate(
        &self,
        request: Request<v1::UngateRequest>,
    ) -> Result<Response<Self::UngateStream>, Status> {
        let who = who(&request);
        let length = Duration::from_nanos(request.into_inner().length_ns);
        let running = self.in_force.running();
        let longest = running.borrow().config.ungated;
        ungated::permitted(length, longest).map_err(Status::failed_precondition)?;
        // Ends the block however this call ends.
        let block = Block::new(self.mailbox.clone());
        let order = block.order(nanos(length), who);
        let jobs = self.ask(|answer| Ask::Ungate(order, answer)).await?;
        let jobs = jobs.map_err(Status::failed_precondition)?;
        Ok(Response::new(block.stream(jobs, length, running)))
    }

    async fn set(
        &self,
        request: Request<v1::SetRequest>,
    ) -> Result<Response<v1::SetResponse>, Status> {
        let who = who(&request);
        let v1::SetRequest { path, value, unset } = request.into_inner();
        let value = Some(value.as_str()).filter(|_| !unset);
        let changed = self.in_force.set(&path, value, &who);
        let changed = changed.map_err(|error| match error {
            SetError::Refused(why) => Status::invalid_argument(why),
            SetError::NotAtRunTime(why) => Status::failed_precondition(why),
        })?;
        Ok(Response::new(v1::SetResponse {
            changes: changes(&changed),
        }))
    }

    async fn reload(
        &self,
        request: Request<v1::ReloadRequest>,
    ) -> Result<Response<v1::ReloadResponse>, Status> {
        let changed = self.in_force.reload(&who(&request));
        let changed = changed.map_err(|why| {
            let old = "the configuration is refused and the old one stays in force";
            Status::failed_precondition(format!("{old}: {why}"))
        })?;
        Ok(Response::new(v1::ReloadResponse {
            changes: changes(&changed),
        }))
    }
}
