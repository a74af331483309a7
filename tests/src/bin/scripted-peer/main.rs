//! A process that attaches to an agent as its script says, right or wrong.
//!
//! It takes the place of the preloaded library where a test needs a peer that misbehaves, or one whose
//! every step it can order. It runs under the virtual GPU's shim, so its RM objects are real to the
//! device. One command a line on standard input, one answer a line on standard output; whatever the
//! agent sends meanwhile is printed as a line that begins with `<`.
//!
//! ```text
//! connect [nofile|wrongfile]      greet, with the control file, none, or another file
//! connect lingering               greet, with a socket whose last close waits for a minute
//! connect otherpage               greet, and have no use for a page of this layout
//! connect bare                    greet, with neither a file nor a use for the page
//! connect old                     as a library that knows no greeting
//! hello ROLE [JOB [says-work]]    attach; ROLE: online, offline, ignore, none; as one that says whether it has work
//! device SLOT GPU                 place SLOT of the page is GPU number GPU
//! make GPU COUNT [CLIENT]         make a client (of that handle), a TSG and COUNT channels; prints `made CLIENT CHANNEL...`
//! free CLIENT [OBJECT]            free the client, or one of its objects, and say nothing of it
//! report GPU CLIENT CHANNEL...    say that these channels are its own
//! gone CLIENT                     say that the client is gone
//! schedule TICKET CLIENT OBJECT   ask to schedule
//! busy SLOT | idle SLOT           an edge: words, then doorbell; on the stream without a page; prints `edge NS`
//! word SLOT VALUE                 store an activity word without ringing
//! gate SLOT                       prints `gate open` or `gate closed`
//! land                            enable its own channels and say so in the page, as in a soft landing
//! refuse                          answer every further order of level L3 with a failure
//! scribble MS                     random bytes over the own words of the page while ringing
//! ring MS                         ring as fast as possible
//! waits 0|1                       launches wait on the gate, or no longer
//! wake MS                         wake whoever waits on the doorbell, without ringing, as fast as possible
//! holes MS                        the same, and try to take the page's memory away; prints `holes COUNT`, so many were made
//! flood COUNT                     that many notes
//! huge                            one message of 2 MiB
//! raw HEX                         bytes on a connection of their own, after the greeting
//! try open SOCKET                 open a connection to a socket of the agent's, of which the words below are:
//! try option NUMBER HEX           set an option of that number to these bytes; prints `did N` or `errno N`, as all below
//! try greet FLAGS [BESIDE]        send a greeting with these flags, and beside it `files COUNT`, `credentials PID UID GID`
//!                                 or `control TYPE HEX`
//! try say FLAGS HEX [BESIDE]      the same with other bytes
//! try shut HOW                    shut its ends down
//! try keep | try close | try drop  keep it open; close it; close all that were kept
//! hang MS                         do nothing at all
//! drop                            close the connection
//! hold SOCKET COUNT               open so many connections to a socket of the agent's, and say nothing on them;
//!                                 prints `held COUNT`, as many as could be opened
//! readers CONNECTIONS CALLS       ask for status without end, on so many connections, so many times at once on each
//! lock                            lock each file of the agent's directory that it may open; prints `locked COUNT`
//! linger                          pass sockets whose last close waits for a minute, in every way in which none belongs
//! files COUNT                     open so many connections to each socket that is everybody's, and pass 253 files on each
//! again COUNT                     attach so many times over, and keep every connection
//! begin COUNT                     attach so often, and begin a message of 1 MiB each time that never ends; says `< cut` for
//!                                 each that is cut off
//! untaken CALLS CONNECTIONS       ask so often how the node stands, on every second connection for events instead, and take no
//!                                 answer; says `< cut` for each that is cut off
//! storm TIMES COUNT               so many messages of so many changes to RM objects that nobody has
//! table COUNT                     open so many files, of no use; prints `table COUNT`
//! lie MS                          claim clients that it does not have, with a channel each, and let them go, again and again
//! caches MS                       register caches of a thousand stripes, each laid out otherwise, as fast as possible
//! wait MS                         say that launches wait, and that they wait no longer, as fast as possible
//! beats sealed|open               make the page of its iterations, and say so
//! beat SLOT NS BATCH PROMPT       an iteration of that length ended, in which so many decoded and so many prompt tokens were read
//! flight COUNT                    so many requests are in flight
//! offer MOST NS                   offer that many units of that length to whoever leases
//! lease SLOT                      prints `lease NUMBER none|given|withdrawn`
//! over SLOT NUMBER UNITS          that lease is over, and so many units ran under it
//! invent CLIENT COUNT             say that channels of that client are its own which do not exist, in one message
//! ```
//!
//! Under the library, in whose sight it then makes its RM calls, it has these besides:
//!
//! ```text
//! cuda                            make a CUDA context on GPU 0
//! enable CLIENT OBJECT            schedule OBJECT by ioctl; prints `enabled STATUS NANOSECONDS`
//! dup                             go on with a duplicate of the control file, the first being closed
//! close                           close the control file
//! ```

mod attack;
mod client;
mod lease;
mod rm;
mod say;
mod trial;
mod wire;

use client::Peer;
use say::say;
use std::io::BufRead;

fn main() {
    let stdin = std::io::stdin();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let _inside = runtime.enter();
    let mut peer = Peer::default();
    for line in stdin.lock().lines() {
        let line = line.expect("standard input can be read");
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((&command, arguments)) = words.split_first() else {
            continue;
        };
        let answer = runtime.block_on(peer.obey(command, arguments));
        let text = match answer {
            Ok(text) if text.is_empty() => "ok".to_owned(),
            Ok(text) => text,
            Err(error) => format!("error {error}").replace('\n', " "),
        };
        say(&text);
    }
}
