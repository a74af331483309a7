//! HTTP/2 by hand, for what no library of it does: calls whose message never ends, and answers that are never taken.

use crate::say::say;
use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The setting that says how many bytes of an answer may come at first.
const WINDOW: [u8; 2] = [0, 4];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header that goes into no table.
fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(u8::try_from(text.len()).expect("under 127"));
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// Makes `calls` calls, each with `bytes` as its body, which does not end if `open`. Whoever is called may send `window`
/// bytes of each answer. Goes on to answer pings, and says `< cut` when the connection is closed.
pub fn call(
    mut stream: UnixStream,
    path: &str,
    (calls, open): (u32, bool),
    window: u32,
    bytes: &[u8],
) -> Result<()> {
    stream.write_all(PREFACE)?;
    let window = [&WINDOW[..], &window.to_be_bytes()].concat();
    stream.write_all(&frame(SETTINGS, 0, 0, &window))?;
    let headers: Vec<u8> = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "tidegate"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    .iter()
    .flat_map(|(name, value)| header(name, value))
    .collect();
    for at in (1..).step_by(2).take(calls as usize) {
        stream.write_all(&frame(HEADERS, END_HEADERS, at, &headers))?;
        let flags = if open { 0 } else { END_STREAM };
        stream.write_all(&frame(DATA, flags, at, bytes))?;
    }
    std::thread::spawn(move || {
        let _ = answer(&mut stream);
        say("< cut");
    });
    Ok(())
}

/// Acknowledges what has to be, until the connection is closed.
fn answer(stream: &mut UnixStream) -> Result<()> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [high, middle, low, kind, flags, ..] = head;
        let length = u32::from_be_bytes([0, high, middle, low]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload)?;
        match (kind, flags & ACK) {
            (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
            (PING, 0) => stream.write_all(&frame(PING, ACK, 0, &payload))?,
            _ => {}
        }
    }
}
