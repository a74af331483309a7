//! `tidegate trace`: some seconds of a live node, for a trace viewer.
//!
//! Two witnesses are recorded: the agent's events, each with its own time, and its status, asked for
//! every [`SAMPLE`]. Drawing happens afterwards and is pure: [`draw`] walks both in the order of
//! time. What an event says is exact, and so is lane online: the status brings the times of its edges. What only
//! the status says (counters, and lane online of an agent that keeps no edges) is as old as the sample.
//! [`tidegate_replay::timeline`] names the lanes.

use super::agent::{Agent, Unreachable};
use super::print::print;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tidegate_proto::v1;
use tidegate_replay::clock::Time;
use tidegate_replay::timeline::{Drawn, Lane, Shape, Timeline};
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::StreamExt;
use tonic::transport::Channel;

use super::replay::{writable, write_timeline};
use tidegate_agent::clock::now_ns;

/// How often the status is asked for.
const SAMPLE: Duration = Duration::from_millis(100);

/// The status at one time.
#[derive(Clone, Debug)]
struct Sample {
    at_ns: u64,
    status: v1::GetStatusResponse,
}

type Client = v1::node_client::NodeClient<Channel>;

/// Records `seconds` into `file`.
pub(super) async fn run(agent: &Agent, seconds: f64, file: &Path) -> anyhow::Result<()> {
    writable(file)?;
    let mut client = Client::new(agent.reader().await?);
    let begin_ns = now_ns();
    let mut samples = vec![sample(&mut client, begin_ns).await?];
    let request = v1::WatchEventsRequest {
        since_seq: 0,
        no_follow: false,
    };
    let mut stream = client.watch_events(request).await?.into_inner();
    let mut interrupt = signal(SignalKind::interrupt())?;
    print(&format!(
        "recording for {seconds} s; Ctrl-C ends it early\n"
    ))?;
    let bar = ProgressBar::new((seconds * 10.0) as u64);
    bar.set_style(ProgressStyle::with_template(
        "recording {wide_bar} {eta} left",
    )?);
    let mut ticks = tokio::time::interval(SAMPLE);
    let end = tokio::time::sleep(Duration::from_secs_f64(seconds));
    tokio::pin!(end);
    let mut events = Vec::new();
    // An agent that leaves, and a user who has seen enough, end the recording but do not lose it.
    let gone = loop {
        tokio::select! {
            () = &mut end => break None,
            _ = interrupt.recv() => break None,
            message = stream.next() => match message {
                Some(Ok(message)) => events.extend(message.event.filter(|e| e.at_ns >= begin_ns)),
                Some(Err(status)) => break Some(status.message().to_owned()),
                None => break Some("the agent ended".to_owned()),
            },
            _ = ticks.tick() => {
                bar.inc(1);
                let last_ns = samples.last().map_or(begin_ns, |last| last.at_ns);
                match sample(&mut client, last_ns).await {
                    Ok(sample) => samples.push(sample),
                    Err(status) => break Some(status.message().to_owned()),
                }
            }
        }
    };
    if gone.is_none() {
        // The edges since the last sample.
        let last_ns = samples.last().map_or(begin_ns, |last| last.at_ns);
        samples.extend(sample(&mut client, last_ns).await.ok());
    }
    bar.finish_and_clear();
    let end_ns = now_ns();
    let timeline = draw(&samples, &events, begin_ns, end_ns);
    let status = &samples[0].status;
    let about = json!({
        "source": "tidegate trace", "agent": status.version, "driver": status.driver_version,
        "begin_monotonic_ns": begin_ns, "seconds": seconds_of(end_ns - begin_ns),
    });
    write_timeline(file, &timeline, &about)?;
    let preempted = events
        .iter()
        .filter(|event| event.kind == "preempted")
        .count();
    print(&format!(
        "recorded {:.1} s of {} GPU(s): {} events, {preempted} of them preemptions\n\
         written: {}; open it at https://ui.perfetto.dev\n",
        seconds_of(end_ns - begin_ns),
        status.gpus.len(),
        events.len(),
        file.display(),
    ))?;
    match gone {
        None => Ok(()),
        Some(why) => Err(Unreachable::Failed {
            path: agent.run_dir.clone(),
            why: format!("the recording ended early: {why}"),
        }
        .into()),
    }
}

/// The status, with online's busy spans since `since_ns`.
async fn sample(client: &mut Client, since_ns: u64) -> Result<Sample, tonic::Status> {
    // Taken before: an edge behind it is in the next sample at the latest.
    let at_ns = now_ns();
    let mut request = tonic::Request::new(v1::GetStatusRequest {
        busy_since_ns: since_ns,
        ..v1::GetStatusRequest::default()
    });
    request.set_timeout(Duration::from_secs(5));
    let status = client.get_status(request).await?.into_inner();
    Ok(Sample { at_ns, status })
}

fn seconds_of(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

/// What is known of a GPU while its lanes are drawn.
#[derive(Debug, Default)]
struct Gpu {
    open: bool,
    gate_since: Time,
    running: BTreeSet<String>,
    running_since: Time,
    busy_since: Option<Time>,
    counters: BTreeMap<&'static str, f64>,
}

#[derive(Debug)]
struct Artist {
    timeline: Timeline,
    gpus: BTreeMap<u32, Gpu>,
    /// GPUs of each job known.
    jobs: BTreeMap<String, Vec<u32>>,
}

/// Draws what was recorded between `begin_ns` and `end_ns`; `samples` in order, the first at the
/// beginning.
fn draw(samples: &[Sample], events: &[v1::Event], begin_ns: u64, end_ns: u64) -> Timeline {
    let time = |ns: u64| Time(ns.clamp(begin_ns, end_ns) - begin_ns);
    let mut artist = Artist {
        timeline: Timeline::default(),
        gpus: BTreeMap::new(),
        jobs: BTreeMap::new(),
    };
    let mut events: Vec<&v1::Event> = events.iter().collect();
    events.sort_by_key(|event| (event.at_ns, event.seq));
    let mut events = events.into_iter().peekable();
    for sample in samples {
        while let Some(event) = events.next_if(|event| event.at_ns < sample.at_ns) {
            artist.event(event, time(event.at_ns));
        }
        artist.sample(&sample.status, time(sample.at_ns));
    }
    for event in events {
        artist.event(event, time(event.at_ns));
    }
    for (gpu, begin, end) in busy_spans(samples, end_ns) {
        if end > begin_ns && begin < end_ns {
            artist
                .timeline
                .slice(gpu, Lane::Online, "busy", time(begin), time(end));
        }
    }
    artist.end(time(end_ns))
}

/// When online was busy on which GPU, as all samples together say. A span that goes on in one has an end in
/// the next, or ends with the recording.
fn busy_spans(samples: &[Sample], end_ns: u64) -> Vec<(u32, u64, u64)> {
    let mut found = BTreeMap::new();
    for gpu in samples.iter().flat_map(|sample| &sample.status.gpus) {
        for span in &gpu.busy_spans {
            let end = if span.end_ns == 0 {
                end_ns
            } else {
                span.end_ns
            };
            found.insert((gpu.index, span.begin_ns), end);
        }
    }
    let spans = found.into_iter();
    spans.map(|((gpu, begin), end)| (gpu, begin, end)).collect()
}

impl Artist {
    /// New GPUs and jobs begin as the status says; those that are known follow the events, which
    /// are exact.
    fn sample(&mut self, status: &v1::GetStatusResponse, now: Time) {
        for seen in &status.gpus {
            let gpu = self.gpus.entry(seen.index).or_insert_with(|| Gpu {
                open: seen.gate() == v1::GateState::Open,
                gate_since: now,
                running_since: now,
                ..Gpu::default()
            });
            let sampled = seen.busy_from_ns == 0;
            match (sampled && seen.online_busy, gpu.busy_since) {
                (true, None) => gpu.busy_since = Some(now),
                (false, Some(since)) => {
                    self.timeline
                        .slice(seen.index, Lane::Online, "busy", since, now);
                    gpu.busy_since = None;
                }
                _ => {}
            }
            for (name, value) in [
                ("cooldown ms", seconds_of(seen.cooldown_ns) * 1e3),
                ("channels off", f64::from(seen.channels_disabled)),
            ] {
                if gpu.counters.insert(name, value) != Some(value) {
                    self.timeline.counter(seen.index, name, now, value);
                }
            }
        }
        let listed: BTreeSet<&String> = status.jobs.iter().map(|job| &job.name).collect();
        let left: Vec<String> = self
            .jobs
            .keys()
            .filter(|job| !listed.contains(job))
            .cloned()
            .collect();
        for job in left {
            self.stop(&job, now);
            self.jobs.remove(&job);
        }
        for job in &status.jobs {
            let known = self.jobs.insert(job.name.clone(), job.gpus.clone());
            if known.is_none() && job.state() == v1::JobState::Running {
                self.run(&job.name, now);
            }
        }
    }

    fn event(&mut self, event: &v1::Event, now: Time) {
        let own = u32::try_from(event.gpu).ok();
        let of_job = self.jobs.get(&event.job).cloned().unwrap_or_default();
        match event.kind.as_str() {
            "preempted" => {
                let rang = Time(now.0.saturating_sub(event.value_ns));
                let stopped = own
                    .and_then(|own| self.gpus.get(&own))
                    .map(|gpu| gpu.running.clone());
                // Whole jobs stop, on all of their GPUs.
                for job in stopped.unwrap_or_default() {
                    self.stop(&job, now);
                }
                if let Some((index, gpu)) =
                    own.and_then(|own| Some((own, self.gpus.get_mut(&own)?)))
                {
                    let rang = rang.max(gpu.gate_since);
                    let was = if gpu.open { "open" } else { "closed" };
                    self.timeline
                        .slice(index, Lane::Gate, was, gpu.gate_since, rang);
                    self.timeline.slice(index, Lane::Gate, "closing", rang, now);
                    (gpu.open, gpu.gate_since) = (false, now);
                }
            }
            "woken" => {
                self.run(&event.job, now);
                for index in &of_job {
                    if let Some(gpu) = self.gpus.get_mut(index).filter(|gpu| !gpu.open) {
                        self.timeline
                            .slice(*index, Lane::Gate, "closed", gpu.gate_since, now);
                        (gpu.open, gpu.gate_since) = (true, now);
                    }
                }
            }
            "paused" => self.stop(&event.job, now),
            _ => {}
        }
        let first = self.gpus.keys().next().copied().unwrap_or(0);
        let everywhere = own.map_or(of_job, |own| vec![own]);
        let lane = match event.kind.as_str() {
            kind if kind.starts_with("reclaim") || kind.starts_with("restore") => Lane::Memory,
            _ if everywhere.is_empty() => Lane::Node,
            _ => Lane::Gate,
        };
        let mut details = vec![("seq", json!(event.seq))];
        details.extend((!event.job.is_empty()).then(|| ("job", json!(event.job))));
        details.extend((event.session != 0).then(|| ("session", json!(event.session))));
        details.extend(
            (event.value_ns != 0).then(|| ("value_us", json!(event.value_ns as f64 / 1e3))),
        );
        details.extend((!event.text.is_empty()).then(|| ("text", json!(event.text))));
        let everywhere = if everywhere.is_empty() {
            vec![first]
        } else {
            everywhere
        };
        for gpu in everywhere {
            self.timeline.push(Drawn {
                at: now,
                gpu,
                lane,
                name: event.kind.clone().into(),
                shape: Shape::Mark,
                details: details.clone(),
            });
        }
    }

    fn run(&mut self, job: &str, now: Time) {
        self.change(job, now, |running| running.insert(job.to_owned()));
    }

    fn stop(&mut self, job: &str, now: Time) {
        self.change(job, now, |running| running.remove(job));
    }

    /// The lane shows who runs as one slice, which ends whenever that changes: jobs come and go in
    /// any order, and slices that cross could not be drawn.
    fn change(&mut self, job: &str, now: Time, how: impl Fn(&mut BTreeSet<String>) -> bool) {
        for index in self.jobs.get(job).into_iter().flatten() {
            let Some(gpu) = self.gpus.get_mut(index) else {
                continue;
            };
            let before = names(&gpu.running);
            if how(&mut gpu.running) {
                if !before.is_empty() {
                    self.timeline
                        .slice(*index, Lane::Offline, before, gpu.running_since, now);
                }
                gpu.running_since = now;
            }
        }
    }

    fn end(mut self, now: Time) -> Timeline {
        for (index, gpu) in &self.gpus {
            let state = if gpu.open { "open" } else { "closed" };
            self.timeline
                .slice(*index, Lane::Gate, state, gpu.gate_since, now);
            if !gpu.running.is_empty() {
                let jobs = names(&gpu.running);
                self.timeline
                    .slice(*index, Lane::Offline, jobs, gpu.running_since, now);
            }
            if let Some(since) = gpu.busy_since {
                self.timeline
                    .slice(*index, Lane::Online, "busy", since, now);
            }
        }
        self.timeline
    }
}

fn names(jobs: &BTreeSet<String>) -> String {
    let names: Vec<&str> = jobs.iter().map(String::as_str).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_replay::timeline::check;

    fn status(jobs: &[(&str, v1::JobState, &[u32])], busy: bool) -> v1::GetStatusResponse {
        let gpu = |index| v1::GpuStatus {
            index,
            gate: v1::GateState::Open.into(),
            online_busy: busy,
            cooldown_ns: 20_000_000,
            ..v1::GpuStatus::default()
        };
        let job = |(name, state, gpus): &(&str, v1::JobState, &[u32])| v1::JobStatus {
            name: (*name).to_owned(),
            state: (*state).into(),
            gpus: gpus.to_vec(),
            ..v1::JobStatus::default()
        };
        v1::GetStatusResponse {
            gpus: vec![gpu(0), gpu(1)],
            jobs: jobs.iter().map(job).collect(),
            ..v1::GetStatusResponse::default()
        }
    }

    fn event(at_ns: u64, kind: &str, gpu: i32, job: &str, value_ns: u64) -> v1::Event {
        v1::Event {
            seq: at_ns,
            at_ns,
            kind: kind.to_owned(),
            gpu,
            job: job.to_owned(),
            value_ns,
            ..v1::Event::default()
        }
    }

    fn drawn(timeline: &Timeline) -> String {
        let mut out = Vec::new();
        timeline.write(&mut out, &json!({})).expect("in memory");
        check(&out).unwrap_or_else(|wrong| panic!("{wrong}"));
        let trace: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("a list");
        let slices = events
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| {
                format!(
                    "{}/{} {} {}+{}",
                    event["pid"].as_u64().expect("a number") - 1,
                    event["cat"].as_str().expect("a lane"),
                    event["name"].as_str().expect("a name"),
                    event["ts"],
                    event["dur"]
                )
            });
        slices.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_preemption_closes_the_gate_from_the_launch_to_the_last_disable() {
        use v1::JobState::{Gated, Running};
        let jobs: &[(&str, v1::JobState, &[u32])] =
            &[("a", Running, &[0, 1]), ("b", Running, &[0])];
        let at = |ms: u64| 1_000_000_000 + ms * 1_000_000;
        let samples = [
            Sample {
                at_ns: at(0),
                status: status(jobs, false),
            },
            Sample {
                at_ns: at(100),
                status: status(&[("a", Gated, &[0, 1])], true),
            },
        ];
        let events = [
            event(at(50), "preempted", 0, "", 2_000_000),
            event(at(80), "woken", -1, "a", 0),
            event(at(120), "exited", -1, "", 0),
        ];
        let timeline = draw(&samples, &events, at(0), at(200));
        assert_eq!(
            drawn(&timeline),
            "0/online busy 100000.0+100000.0\n\
             0/offline a, b 0.0+50000.0\n\
             0/offline a 80000.0+120000.0\n\
             0/gate open 0.0+48000.0\n\
             0/gate closing 48000.0+2000.0\n\
             0/gate closed 50000.0+30000.0\n\
             0/gate open 80000.0+120000.0\n\
             1/online busy 100000.0+100000.0\n\
             1/offline a 0.0+50000.0\n\
             1/offline a 80000.0+120000.0\n\
             1/gate open 0.0+200000.0"
        );
        assert_eq!(
            timeline.len(),
            11 + 3 + 4 + 1,
            "slices, marks on both GPUs, counters"
        );
    }

    /// P-OPERATE-11: lane online has online's own edges, wherever between two samples they are.
    #[test]
    fn lane_online_is_drawn_from_the_edges() {
        let at = |ms: u64| 1_000_000_000 + ms * 1_000_000;
        let seen = |ms, busy, spans: &[(u64, u64)]| {
            let mut status = status(&[], busy);
            let span = |&(begin_ns, end_ns): &(u64, u64)| v1::BusySpan { begin_ns, end_ns };
            for gpu in &mut status.gpus {
                gpu.busy_from_ns = 1;
            }
            status.gpus[0].busy_spans = spans.iter().map(span).collect();
            Sample {
                at_ns: at(ms),
                status,
            }
        };
        let samples = [
            // It was busy before the recording, and is at its end.
            seen(0, true, &[(at(0) - 7, 0)]),
            seen(
                100,
                true,
                &[(at(0) - 7, at(20)), (at(33), at(34)), (at(90), 0)],
            ),
            seen(200, false, &[(at(90), at(110)), (at(195), at(196))]),
            seen(300, true, &[(at(250), 0)]),
        ];
        let lane: Vec<String> = drawn(&draw(&samples, &[], at(0), at(300)))
            .lines()
            .filter(|line| line.contains("/online"))
            .map(str::to_owned)
            .collect();
        assert_eq!(
            lane,
            [
                "0/online busy 0.0+20000.0",
                "0/online busy 33000.0+1000.0",
                "0/online busy 90000.0+20000.0",
                "0/online busy 195000.0+1000.0",
                "0/online busy 250000.0+50000.0",
            ]
        );
    }
}
