//! `tidegate events`: what happened, all of it or what is asked for.

use super::agent::Agent;
use super::print::{Output, print, print_folded};
use super::{json, table};
use clap::Args as ClapArgs;
use clap::builder::{PossibleValue, PossibleValuesParser};
use tidegate_agent::clock::now_ns;
use tidegate_agent::watch::kinds::{KINDS, Kind};
use tidegate_proto::v1;
use tidegate_text::screen::terminal_width;
use tokio_stream::StreamExt;

/// See each field.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Keep printing events as they happen.
    #[arg(long, short)]
    follow: bool,
    /// Start at this event number, or at this time: 42, "10m", "2h", 03:00, "2026-11-28 03:00", yesterday.
    ///
    /// A time of day is in this machine's zone; with a Z behind it, it is in UTC.
    #[arg(long, default_value = "0", value_name = "SEQ|TIME", value_parser = since)]
    since: Since,
    /// Only of these kinds, e.g. preempted,woken.
    #[arg(long, value_name = "KIND", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(KINDS.map(named)))]
    kind: Vec<String>,
    /// Only of these processes.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<i32>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// An event's number.
    Number(u64),
    /// Nanoseconds ago.
    Ago(u64),
}

fn named(kind: Kind) -> PossibleValue {
    PossibleValue::new(kind.name).help(kind.meaning)
}

fn since(text: &str) -> Result<Since, String> {
    if let Ok(number) = text.parse() {
        return Ok(Since::Number(number));
    }
    super::values::since(text).map(Since::Ago)
}

impl Args {
    /// Whether `event` is asked for. Those before `from_ns` are not.
    fn wants(&self, event: &v1::Event, from_ns: u64) -> bool {
        let kind = self.kind.is_empty() || self.kind.contains(&event.kind);
        let pid = self.pid.is_empty() || self.pid.contains(&event.pid);
        kind && pid && event.at_ns >= from_ns
    }
}

/// Prints events until there are no more, or for ever with `--follow`.
pub(super) async fn run(agent: &Agent, args: &Args) -> anyhow::Result<()> {
    let channel = agent.reader().await?;
    let (since_seq, from_ns) = match args.since {
        Since::Number(number) => (number, 0),
        Since::Ago(ns) => (0, now_ns().saturating_sub(ns)),
    };
    let request = v1::WatchEventsRequest {
        since_seq,
        no_follow: !args.follow,
    };
    let mut events = v1::node_client::NodeClient::new(channel)
        .watch_events(request)
        .await?
        .into_inner();
    while let Some(message) = events.next().await {
        let Some(event) = message?.event.filter(|event| args.wants(event, from_ns)) else {
            continue;
        };
        match args.output {
            Output::Table => print_folded(&table::event(&event, terminal_width()))?,
            Output::Json => print(&format!("{}\n", json::event(&event)))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn wanted(line: &str) -> Vec<u64> {
        let words = ["events"].into_iter().chain(line.split_whitespace());
        let args = Line::parse_from(words).args;
        let event = |seq, kind: &str, pid, at_ns| v1::Event {
            seq,
            kind: kind.to_owned(),
            pid,
            at_ns,
            ..v1::Event::default()
        };
        let events = [
            event(1, "preempted", 0, 10),
            event(2, "attached", 7, 20),
            event(3, "exited", 7, 30),
            event(4, "attached", 8, 40),
        ];
        let wanted = events.iter().filter(|event| args.wants(event, 15));
        wanted.map(|event| event.seq).collect()
    }

    #[test]
    fn events_are_chosen_by_kind_and_process_and_time() {
        assert_eq!(wanted(""), [2, 3, 4]);
        assert_eq!(wanted("--kind attached,preempted"), [2, 4]);
        assert_eq!(wanted("--kind attached --pid 7"), [2]);
        assert_eq!(wanted("--pid 7,8"), [2, 3, 4]);
    }

    #[test]
    fn since_is_a_number_or_a_time() {
        assert_eq!(since("42"), Ok(Since::Number(42)));
        assert_eq!(since("2m"), Ok(Since::Ago(120_000_000_000)));
        assert!(since("bogus").is_err());
    }
}
