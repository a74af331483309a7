//! Tells the control thread when an attached process has ended.
//!
//! A closed stream means only a lost connection; the death of a process is its pidfd becoming
//! readable. One thread sleeps on the pidfds of all attached processes.

use crate::inbox::{Mailbox, NodeInput};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_node::kinds::Process;

/// Whom the thread watches.
#[derive(Debug)]
pub struct Reaper {
    epoll: Epoll,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    next: u64,
    pidfds: HashMap<u64, (Process, OwnedFd)>,
    numbers: HashMap<Process, u64>,
}

impl Reaper {
    /// Remembers whom to watch, and tells nobody.
    ///
    /// # Errors
    /// When no epoll can be made.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            watched: Mutex::default(),
        })
    }

    /// Starts the thread; it lives as long as the agent.
    ///
    /// # Errors
    /// When no epoll or thread can be made.
    pub fn start(mailbox: Mailbox) -> io::Result<Arc<Self>> {
        let reaper = Arc::new(Self::new()?);
        let own = Arc::clone(&reaper);
        std::thread::Builder::new()
            .name("tg-reaper".to_owned())
            .spawn(move || own.run(&mailbox))?;
        Ok(reaper)
    }

    /// Watches a process; a second call for the same one changes nothing.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn watch(&self, process: Process, pidfd: OwnedFd) -> io::Result<()> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.numbers.contains_key(&process) {
            return Ok(());
        }
        let number = watched.next;
        watched.next += 1;
        self.epoll
            .add(&pidfd, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        watched.numbers.insert(process, number);
        watched.pidfds.insert(number, (process, pidfd));
        Ok(())
    }

    fn run(&self, mailbox: &Mailbox) {
        let mut events = [EpollEvent::empty(); 64];
        loop {
            let Ok(count) = self.epoll.wait(&mut events, EpollTimeout::NONE) else {
                continue;
            };
            for event in &events[..count] {
                let gone = {
                    let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
                    let gone = watched.pidfds.remove(&event.data());
                    if let Some((process, _)) = &gone {
                        watched.numbers.remove(process);
                    }
                    gone
                };
                // Dropping the last copy of the pidfd takes it out of the epoll.
                if let Some((process, _pidfd)) = gone {
                    mailbox.put(NodeInput::Exited(process));
                }
            }
        }
    }
}
