//! `tidegate top`: the node, live, in a terminal.
//!
//! Two things are asked of the agent, as any reader may: its status twice a second, and its events, for
//! the latency of each preemption. [`model`] keeps what was heard and knows no terminal; [`draw`] makes
//! frames of it and knows no agent; [`keys`] says what a key does. An agent that is absent or lost is shown as such,
//! and asked again. What an operator may do, as pause a job, is asked back for, and then done as its command does it.

mod draw;
mod gpus;
mod keys;
mod model;
mod paint;
mod room;
use super::agent::{Agent, Refusal, report};
use super::print::{colours, print};
use super::steer;
use clap::Args as ClapArgs;
use keys::{Pressed, press};
use model::{Action, Heard, Model, Sort};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io::IsTerminal;
use std::time::Duration;
use tidegate_agent::clock::now_ns;
use tidegate_proto::v1;
use tidegate_text::screen::terminal_width;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;

/// How often the status is asked for.
const EVERY: Duration = Duration::from_millis(500);
/// How long a lost agent is left alone before it is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);
/// Width of `--once` where there is no terminal.
const WIDE: u16 = 120;

/// See each field.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Print one frame as plain text and exit.
    #[arg(long)]
    once: bool,
    /// The period that shares and rates of that frame cover.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = sample, requires = "once")]
    sample: Duration,
    /// Order of the processes.
    #[arg(long, value_enum, default_value_t = Sort::Role)]
    sort: Sort,
}

fn sample(text: &str) -> Result<Duration, String> {
    super::values::ago(text).map(Duration::from_nanos)
}

/// Shows the node until the user has seen enough.
pub(super) async fn run(agent: &Agent, args: &Args) -> anyhow::Result<()> {
    if args.once {
        return once(agent, args).await;
    }
    anyhow::ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "this is no terminal; `tidegate top --once` prints one frame"
    );
    let (heard_tx, mut heard_rx) = mpsc::channel(64);
    let (action_tx, action_rx) = mpsc::channel(1);
    let mut keys = keys()?;
    let mut model = Model::new(args.sort, colours());
    let mut terminal = ratatui::try_init()?;
    let acting = act(agent, action_rx, heard_tx.clone());
    let listening = listen(agent, heard_tx);
    tokio::pin!(listening, acting);
    let mut ticks = tokio::time::interval(EVERY);
    let shown = loop {
        if let Err(error) = terminal.draw(|frame| draw::draw(frame, &model, now_ns())) {
            break Err(error.into());
        }
        tokio::select! {
            () = &mut listening => {}
            () = &mut acting => {}
            heard = heard_rx.recv() => {
                if let Some(heard) = heard {
                    model.hear(heard, now_ns());
                }
            }
            key = keys.recv() => match key {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                    match press(&mut model, key) {
                        Pressed::Quit => break Ok(()),
                        Pressed::Nothing => {}
                        Pressed::Do(action) => {
                            // One at a time: what is still being done is on the screen.
                            let _ = action_tx.try_send(action);
                        }
                    }
                }
                Some(_) => {}
                None => break Ok(()),
            },
            _ = ticks.tick() => {}
        }
    };
    ratatui::restore();
    shown
}

/// The terminal's events, from a thread that ends with the process.
fn keys() -> anyhow::Result<mpsc::Receiver<Event>> {
    let (key_tx, key_rx) = mpsc::channel(16);
    std::thread::Builder::new()
        .name("keys".to_owned())
        .spawn(move || {
            while let Ok(event) = event::read() {
                if key_tx.blocking_send(event).is_err() {
                    return;
                }
            }
        })?;
    Ok(key_rx)
}

/// Does what was confirmed, and tells what came of it, for as long as it is polled.
async fn act(agent: &Agent, mut action_rx: mpsc::Receiver<Action>, heard_tx: mpsc::Sender<Heard>) {
    while let Some(action) = action_rx.recv().await {
        let done = tokio::time::timeout(ANSWER, carry_out(agent, &action));
        let said = match done.await {
            Ok(Ok(said)) => said,
            Ok(Err(error)) => match error.downcast_ref::<tonic::Status>() {
                Some(status) => Refusal::from(status).to_string(),
                None => format!("{error:#}"),
            },
            Err(_) => "the agent does not answer".to_owned(),
        };
        if heard_tx.send(Heard::Done(said)).await.is_err() {
            break;
        }
    }
    std::future::pending::<()>().await;
}

async fn carry_out(agent: &Agent, action: &Action) -> anyhow::Result<String> {
    let said = |what: &str, jobs: Vec<String>| match jobs.as_slice() {
        [] => format!("{what}: no job is attached"),
        jobs => format!("{what}: {}", jobs.join(", ")),
    };
    Ok(match action {
        Action::Pause(job) => said("paused", steer::set_paused(agent, job, true).await?),
        Action::Resume(job) => said("resumed", steer::set_paused(agent, job, false).await?),
        Action::Drain => said("drained", steer::set_drained(agent, true).await?),
        Action::Undrain => said("no longer drained", steer::set_drained(agent, false).await?),
    })
}

/// Asks and listens for as long as it is polled.
async fn listen(agent: &Agent, heard_tx: mpsc::Sender<Heard>) {
    loop {
        let Err(lost) = attend(agent, &heard_tx).await;
        if heard_tx.send(Heard::Lost(lost.to_string())).await.is_err() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn attend(
    agent: &Agent,
    heard_tx: &mpsc::Sender<Heard>,
) -> anyhow::Result<std::convert::Infallible> {
    let said = |status: tonic::Status| Refusal::from(&status);
    let mut client = v1::node_client::NodeClient::new(agent.reader().await?);
    let request = v1::WatchEventsRequest {
        since_seq: 0,
        no_follow: false,
    };
    let mut events = client
        .watch_events(request)
        .await
        .map_err(said)?
        .into_inner();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let heard = tokio::select! {
            message = events.next() => match message {
                Some(message) => match message.map_err(said)?.event {
                    Some(event) => Heard::Event(event),
                    None => continue,
                },
                None => anyhow::bail!("the agent ended"),
            },
            _ = ticks.tick() => {
                let mut request = tonic::Request::new(v1::GetStatusRequest::default());
                request.set_timeout(ANSWER);
                let status = client.get_status(request).await.map_err(said)?;
                Heard::Status(Box::new(status.into_inner()))
            }
        };
        if heard_tx.send(heard).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn once(agent: &Agent, args: &Args) -> anyhow::Result<()> {
    let mut model = Model::new(args.sort, false);
    for round in 0..2 {
        // Shares and rates are differences, and a busy period of an engine takes seconds.
        if round != 0 {
            tokio::time::sleep(args.sample).await;
        }
        let status = report(agent, false).await?;
        model.hear(Heard::Status(Box::new(status)), now_ns());
    }
    let channel = agent.reader().await?;
    let request = v1::WatchEventsRequest {
        since_seq: 0,
        no_follow: true,
    };
    let mut events = v1::node_client::NodeClient::new(channel)
        .watch_events(request)
        .await?
        .into_inner();
    while let Some(message) = events.next().await {
        if let Some(event) = message?.event {
            model.hear(Heard::Event(event), now_ns());
        }
    }
    let width = terminal_width().unwrap_or(WIDE);
    print(&frame(&model, width, room::height(&model), now_ns())?)
}

/// One frame as text.
fn frame(model: &Model, width: u16, height: u16, now: u64) -> anyhow::Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height))?;
    terminal.draw(|frame| draw::draw(frame, model, now))?;
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
