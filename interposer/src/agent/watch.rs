//! Whether the agent of an offline process lives, and what the process does if not.
//!
//! [`tidegate_core::landing`] decides that. An online process keeps the same state, but nothing checks it there.

use crate::log;
use crate::process::{Process, ring};
use crate::rm::channels;
use core::sync::atomic::Ordering::{Acquire, Release};
use tidegate_abi::page::Page;
use tidegate_core::gate::LaunchGate;
use tidegate_core::landing::{AgentView, Effect, Landing, OnLoss, Pulse};
use tidegate_proto::v1::{self, StopMethod};

/// The agent that was last obeyed.
pub struct Watch {
    process: &'static Process,
    landing: Landing,
    on_loss: OnLoss,
    page: Option<&'static Page>,
    /// Of that page.
    heartbeat: Pulse,
    handing_over: Pulse,
    generation: u64,
    /// How the agent that spoke last has channels stopped.
    method: StopMethod,
    /// An agent of this process' life may have disabled channels: it had a level that does, or ordered it.
    touched: bool,
    /// When the stream last stood.
    stream_ns: u64,
}

impl Watch {
    /// No agent yet.
    pub fn new(process: &'static Process) -> Self {
        Self {
            process,
            landing: Landing::default(),
            on_loss: OnLoss::default(),
            page: None,
            heartbeat: Pulse::default(),
            handing_over: Pulse::default(),
            generation: 0,
            method: StopMethod::default(),
            touched: false,
            stream_ns: 0,
        }
    }

    /// The page that it was last obeyed on.
    pub const fn page(&self) -> Option<&'static Page> {
        self.page
    }

    /// Which agent it was.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The agent has ordered channels to be disabled.
    pub const fn touch(&mut self) {
        self.touched = true;
    }

    /// An agent answered, and says what is to be done without it.
    pub fn welcomed(&mut self, welcome: &v1::Welcome) {
        if let Some(limits) = &welcome.limits {
            self.on_loss = match limits.on_agent_loss() {
                v1::OnAgentLoss::Run => OnLoss::Run,
                _ => OnLoss::Hold {
                    max_ns: limits.max_hold_ns,
                },
            };
        }
        self.generation = welcome.agent_generation;
        self.method = welcome.method();
        self.touched |= welcome.level() != v1::ChannelLevel::L5LaunchGate;
        self.landing = Landing::Obeying;
    }

    /// From here on its orders stand on `page`.
    pub fn obey_on(&mut self, page: &'static Page) {
        if self.page.is_some_and(|known| core::ptr::eq(known, page)) {
            ring(page);
        } else {
            self.page = Some(page);
            (self.heartbeat, self.handing_over) = (Pulse::default(), Pulse::default());
            self.process.swap_page(page);
        }
    }

    /// When the agent last gave a sign of life.
    fn heard_ns(&mut self, now: u64) -> u64 {
        match self.page {
            // Without a page the stream is that sign: its keep-alive ends it when the agent stops.
            Some(page) if core::ptr::eq(page, self.process.pages.private) => self.stream_ns,
            Some(page) => {
                let word = page.agent.heartbeat_ns.load(Acquire);
                self.heartbeat.look(word, now)
            }
            None => 0,
        }
    }

    /// Since when the agent hands over; 0: it does not.
    fn handing_over_ns(&mut self, now: u64) -> u64 {
        let word = self
            .page
            .map_or(0, |page| page.agent.handing_over_ns.load(Acquire));
        let since = self.handing_over.look(word, now);
        if word == 0 { 0 } else { since }
    }

    /// Checks the agent of an offline process.
    pub fn check(&mut self, now: u64) {
        let stream = self.process.link.attached.load(Acquire);
        if stream {
            self.stream_ns = now;
        }
        let view = AgentView {
            heartbeat_ns: self.heard_ns(now),
            handing_over_ns: self.handing_over_ns(now),
            generation: self.generation,
            stream,
        };
        let (next, effects) = self.landing.step(view, self.on_loss, now);
        self.landing = next;
        for effect in effects {
            log::debug(|| format!("{effect:?}"));
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::CloseGate => {
                self.process.set_private_gates(LaunchGate::Closed);
                self.process.swap_page(self.process.pages.private);
            }
            Effect::EnableChannels => {
                let all = !self.touched || self.enable_channels();
                let (next, then) = self.landing.enabled(all);
                self.landing = next;
                if let (Some(generation), Some(page)) = (then, self.page) {
                    page.process.released.store(generation, Release);
                }
            }
            Effect::OpenGate => {
                self.process.set_private_gates(LaunchGate::Open);
                log::debug(|| "no agent came back; this offline process runs ungated".to_owned());
            }
            Effect::ObeyAgent => {
                if let Some(page) = self.page {
                    self.process.swap_page(page);
                }
            }
        }
    }

    /// Enables every channel of this process; whether all of them were. Where no agent ever touched one this is not called:
    /// how this driver wants to be asked may not be known then.
    fn enable_channels(&self) -> bool {
        // Nothing may run over a range where nothing is mapped.
        self.process.memory.settle();
        let all = channels::enable_all(self.process, self.method);
        if !all {
            log::debug(|| "some channels could not be enabled".to_owned());
        }
        all
    }
}
