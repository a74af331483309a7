//! Tokens lost per reclaim, by rule, over the grid.

use crate::row::Row;
use crate::traces;
use std::path::PathBuf;
use tidegate_policy::ids::Bytes;
use tidegate_replay::clock::Time;
use tidegate_replay::input::InputError;
use tidegate_replay::trace::{self, Lengths, Request, Trace};
use tidegate_tests::memory::offline::{Outermost, Placement};
use tidegate_tests::memory::selection::{Point, grid, reclaims, run};

pub fn measure(files: &[PathBuf]) -> Result<Vec<Row>, InputError> {
    let traces = backlogs(files)?;
    let points = grid();
    println!("tokens lost per reclaim, mean of {} traces", traces.len());
    println!(
        "{:<9} {:<6} {:>10} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>6}",
        "placement",
        "layout",
        "handle MiB",
        "size MiB",
        "per min",
        "tokens",
        "fifo",
        "address",
        "requests",
        "saved"
    );
    let mut saved_at = Vec::new();
    for point in points {
        let mut sums = [0u64; 4];
        for (_, trace) in &traces {
            let lost = run(trace, point);
            for (sum, lost) in
                sums.iter_mut()
                    .zip([lost.greedy, lost.fifo, lost.address, lost.requests])
            {
                *sum += lost;
            }
        }
        let reclaims = f64::from(reclaims(point.rate)) * traces.len() as f64;
        let [greedy, fifo, address, requests] = sums.map(|sum| sum as f64 / reclaims);
        let saved = 1.0 - greedy / fifo.max(1.0);
        saved_at.push((point, saved));
        println!(
            "{:<9} {:<6} {:>10} {:>8} {:>7} {greedy:>8.0} {fifo:>8.0} {address:>8.0} {requests:>8.0} {:>5.1}%",
            point.placement.name(),
            point.outermost.name(),
            point.handle.0 >> 20,
            point.size.0 >> 20,
            point.rate,
            100.0 * saved,
        );
    }
    println!();
    let rows = [Placement::Together, Placement::Engine].map(|placement| {
        let of = saved_at.iter().filter(|it| it.0.placement == placement);
        let papers = |it: &&&(Point, f64)| {
            it.0.outermost == Outermost::Layer && it.0.handle == Bytes::mib(2)
        };
        let paper: Vec<f64> = of.clone().filter(|it| papers(&it)).map(|it| it.1).collect();
        let mean = paper.iter().sum::<f64>() / paper.len().max(1) as f64;
        let least = of.map(|it| it.1).fold(f64::INFINITY, f64::min);
        let key = format!("selection.{}", placement.name());
        [
            Row::new(format!("{key}.layer_2mib.saved_mean"), 100.0 * mean, "%").at_least(22.9),
            Row::new(format!("{key}.saved_at_least"), 100.0 * least, "%").at_least(0.0),
        ]
    });
    Ok(rows.into_iter().flatten().collect())
}

/// Requests to serve, whole: their arrivals only give their order.
fn backlogs(files: &[PathBuf]) -> Result<Vec<(String, Trace)>, InputError> {
    if files.is_empty() {
        return traces::load(files);
    }
    let named = files.iter().map(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let lengths = |lengths: Vec<Lengths>| {
            let requests = lengths.into_iter().map(|lengths| Request {
                arrival: Time::ZERO,
                input_tokens: lengths.input_tokens,
                output_tokens: lengths.output_tokens,
            });
            Trace::new(requests.collect())
        };
        let trace = trace::read(file)
            .or_else(|error| trace::read_lengths(file).map(lengths).map_err(|_| error))?;
        Ok((name.into_owned(), trace))
    });
    named.collect()
}
