//! Reads what the preloaded library writes with `TIDEGATE_RM_TRACE`, and what follows from it: the
//! channels of a worker, and the *shape* of a context: which objects it is made of, in which order.
//!
//! A shape has no handles, addresses or times, and repeated steps are counted, so that two runs of the
//! same driver give the same one. It is what the virtual GPU is compared with.

use crate::message::Own;
use anyhow::Context;
use core::mem::offset_of;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use tidegate_abi::class::{self, Engine};
use tidegate_abi::rm::Layout;
use tidegate_abi::{rm, uvm};
use tidegate_core::rm::{Call, Channel, Graph, decode, uvm_register};

/// One ioctl, as the library wrote it.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    /// When it returned, `CLOCK_MONOTONIC`.
    pub ns: u64,
    /// Whose.
    pub pid: u32,
    /// Descriptor.
    pub fd: i32,
    /// `ctl`, `gpu` or `uvm`.
    pub file: String,
    /// Request number, hexadecimal.
    pub request: String,
    /// What `ioctl` returned.
    pub result: i32,
    /// `NV_ESC_*`, unwrapped; not for UVM.
    #[serde(default)]
    pub escape: u32,
    /// The argument's bytes after the call.
    #[serde(default, deserialize_with = "hex")]
    pub argument: Vec<u8>,
    /// The nested parameters' bytes after the call.
    #[serde(default, deserialize_with = "hex")]
    pub parameters: Vec<u8>,
}

fn hex<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    let digit = |at: usize| {
        text.get(at..at + 2)
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    (0..text.len() / 2)
        .map(|byte| digit(2 * byte))
        .collect::<Option<_>>()
        .ok_or_else(|| serde::de::Error::custom("not hexadecimal"))
}

impl Line {
    fn word(&self, at: usize) -> u32 {
        self.argument
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u32::from_ne_bytes)
    }

    fn number(&self) -> u64 {
        u64::from_str_radix(self.request.trim_start_matches("0x"), 16).unwrap_or(0)
    }

    /// The layouts of the version in the answer to `CHECK_VERSION_STR`.
    fn version(&self) -> Option<Layout> {
        let text = self.argument.get(offset_of!(rm::RmApiVersion, version)..)?;
        let text = text.split(|byte| *byte == 0).next()?;
        Layout::of_version(core::str::from_utf8(text).ok()?)
    }

    /// What it did, in words: the call and the class or control it is about.
    #[must_use]
    pub fn what(&self) -> String {
        if self.file == "uvm" {
            return match self.number() {
                uvm::UVM_INITIALIZE => "UVM_INITIALIZE".to_owned(),
                uvm::UVM_MM_INITIALIZE => "UVM_MM_INITIALIZE".to_owned(),
                uvm::UVM_REGISTER_GPU => "UVM_REGISTER_GPU".to_owned(),
                uvm::UVM_REGISTER_GPU_VASPACE => "UVM_REGISTER_GPU_VASPACE".to_owned(),
                uvm::UVM_REGISTER_CHANNEL => "UVM_REGISTER_CHANNEL".to_owned(),
                uvm::UVM_UNREGISTER_CHANNEL => "UVM_UNREGISTER_CHANNEL".to_owned(),
                uvm::UVM_CREATE_EXTERNAL_RANGE => "UVM_CREATE_EXTERNAL_RANGE".to_owned(),
                uvm::UVM_MAP_EXTERNAL_ALLOCATION => "UVM_MAP_EXTERNAL_ALLOCATION".to_owned(),
                uvm::UVM_UNMAP_EXTERNAL => "UVM_UNMAP_EXTERNAL".to_owned(),
                uvm::UVM_FREE => "UVM_FREE".to_owned(),
                other => format!("UVM {other}"),
            };
        }
        match self.escape {
            rm::NV_ESC_RM_ALLOC => format!("RM_ALLOC {}", class_name(self.word(12))),
            rm::NV_ESC_RM_FREE => "RM_FREE".to_owned(),
            rm::NV_ESC_RM_CONTROL => match self.word(8) {
                rm::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE => "GPFIFO_SCHEDULE".to_owned(),
                rm::NVA06C_CTRL_CMD_SET_TIMESLICE => "SET_TIMESLICE".to_owned(),
                rm::NVA06C_CTRL_CMD_PREEMPT => "PREEMPT".to_owned(),
                rm::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN => {
                    "GET_WORK_SUBMIT_TOKEN".to_owned()
                }
                other => format!("RM_CONTROL {other:#x}"),
            },
            rm::NV_ESC_RM_ALLOC_MEMORY => "RM_ALLOC_MEMORY".to_owned(),
            rm::NV_ESC_RM_DUP_OBJECT => "RM_DUP_OBJECT".to_owned(),
            rm::NV_ESC_RM_MAP_MEMORY => "RM_MAP_MEMORY".to_owned(),
            rm::NV_ESC_RM_UNMAP_MEMORY => "RM_UNMAP_MEMORY".to_owned(),
            // NV_ESC_RM_VID_HEAP_CONTROL, which allocates memory too.
            0x4a => "RM_VID_HEAP_CONTROL".to_owned(),
            other => format!("escape {other:#x}"),
        }
    }
}

fn class_name(number: u32) -> String {
    let name = match number {
        class::NV01_ROOT | class::NV01_ROOT_NON_PRIV | class::NV01_ROOT_CLIENT => "client",
        class::NV01_DEVICE_0 => "device",
        class::NV20_SUBDEVICE_0 => "subdevice",
        class::FERMI_VASPACE_A => "va space",
        class::KEPLER_CHANNEL_GROUP_A => "TSG",
        class::FERMI_CONTEXT_SHARE_A => "context share",
        class::HOPPER_USERMODE_A => "usermode",
        class::NV01_MEMORY_LOCAL_USER => "device memory",
        class::NV01_MEMORY_SYSTEM => "system memory",
        _ if class::is_gpfifo(number) => "channel",
        _ => match class::engine_of_class(number) {
            Some(Engine::Graphics) => "compute engine",
            Some(Engine::Copy) => "copy engine",
            _ => return format!("{number:#x}"),
        },
    };
    format!("{name} ({number:#x})")
}

/// A trace file, read as it grows.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    offset: u64,
    lines: Vec<Line>,
    graph: Graph,
    control: BTreeMap<u32, i32>,
    /// Of the driver's version, once the process has asked for it.
    layout: Layout,
}

impl Trace {
    /// Of a file that need not exist yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            offset: 0,
            lines: Vec::new(),
            graph: Graph::default(),
            control: BTreeMap::new(),
            layout: Layout::ByAnswers,
        }
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what was appended; the new lines.
    ///
    /// # Errors
    /// When the file holds something else.
    pub fn read(&mut self) -> anyhow::Result<&[Line]> {
        let before = self.lines.len();
        let mut text = String::new();
        match std::fs::File::open(&self.path) {
            Ok(mut file) => {
                file.seek(SeekFrom::Start(self.offset))?;
                file.read_to_string(&mut text)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.offset += whole as u64;
        for line in text[..whole].lines() {
            let line: Line = serde_json::from_str(line)
                .with_context(|| format!("a line of {}", self.path.display()))?;
            self.take(&line);
            self.lines.push(line);
        }
        Ok(&self.lines[before..])
    }

    fn take(&mut self, line: &Line) {
        let mut records = Vec::new();
        if line.result != 0 {
            return;
        }
        if line.file == "uvm" {
            if line.number() == uvm::UVM_REGISTER_CHANNEL
                && let Some(call) = uvm_register(&line.argument)
            {
                self.graph.apply(call, &mut records);
            }
            return;
        }
        if line.escape == rm::NV_ESC_RM_FREE && line.word(12) == 0 {
            let (root, old) = (line.word(0), line.word(8));
            let client = if root == 0 { old } else { root };
            self.graph.lift(client, old, &mut records);
            return;
        }
        if line.escape == rm::NV_ESC_CHECK_VERSION_STR {
            self.layout = line.version().unwrap_or(self.layout);
            return;
        }
        let Some(call) = decode(self.layout, line.escape, &line.argument, &line.parameters) else {
            return;
        };
        if let Call::Alloc { handle, class, .. } = call
            && class_name(class).starts_with("client")
            && line.file == "ctl"
        {
            self.control.insert(handle, line.fd);
        }
        self.graph.apply(call, &mut records);
    }

    /// The channels that stand.
    #[must_use]
    pub fn channels(&self) -> Vec<Channel> {
        self.graph.channels().collect()
    }

    /// What the process needs to set its own channels; one for each client.
    #[must_use]
    pub fn owners(&self) -> Vec<Own> {
        let mut owners: BTreeMap<u32, Own> = BTreeMap::new();
        for channel in self.graph.channels() {
            let own = owners.entry(channel.client).or_insert_with(|| Own {
                fd: self.control.get(&channel.client).copied().unwrap_or(-1),
                client: channel.client,
                subdevice: channel.subdevice.unwrap_or(0),
                channels: Vec::new(),
            });
            own.channels.push(channel.channel);
        }
        owners.into_values().collect()
    }

    /// All that was read.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// What channels carry, in the order in which it was made under them, and how many carry it so.
    #[must_use]
    pub fn carried(&self) -> BTreeMap<String, usize> {
        let allocated = || {
            let lines = self.lines.iter();
            lines.filter(|line| line.escape == rm::NV_ESC_RM_ALLOC && line.result == 0)
        };
        let mut each: BTreeMap<(u32, u32), Vec<String>> = allocated()
            .filter(|line| class::is_gpfifo(line.word(12)))
            .map(|line| ((line.word(0), line.word(8)), Vec::new()))
            .collect();
        for line in allocated() {
            if let Some(objects) = each.get_mut(&(line.word(0), line.word(4))) {
                objects.push(class_name(line.word(12)));
            }
        }
        let mut carried = BTreeMap::new();
        for objects in each.into_values() {
            let what = if objects.is_empty() {
                "nothing".to_owned()
            } else {
                objects.join(", ")
            };
            *carried.entry(what).or_insert(0) += 1;
        }
        carried
    }

    fn sets_timeslice(line: &Line) -> bool {
        line.escape == rm::NV_ESC_RM_CONTROL && line.word(8) == rm::NVA06C_CTRL_CMD_SET_TIMESLICE
    }

    /// Time slices that the process set, in microseconds.
    #[must_use]
    pub fn timeslices(&self) -> Vec<u64> {
        let set = self.lines.iter().filter(|line| Self::sets_timeslice(line));
        set.filter_map(|line| {
            let bytes = line.parameters.get(..8)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        })
        .collect()
    }

    /// Whether the last time slice was set after the last channel was made; none: none was set.
    #[must_use]
    pub fn timeslices_come_last(&self) -> Option<bool> {
        let set = self.lines.iter().rposition(Self::sets_timeslice)?;
        let made = self.lines.iter().rposition(|line| {
            line.escape == rm::NV_ESC_RM_ALLOC && class::is_gpfifo(line.word(12))
        });
        Some(made.is_none_or(|made| set > made))
    }

    /// Whether the process asked the driver's version by `NV_ESC_CHECK_VERSION_STR`.
    #[must_use]
    pub fn asks_version(&self) -> bool {
        let asks = |line: &Line| line.escape == rm::NV_ESC_CHECK_VERSION_STR;
        self.lines.iter().any(asks)
    }

    /// The context's shape as far as it was read.
    #[must_use]
    pub fn shape(&self, driver: &str) -> Shape {
        Shape::of(driver, &self.lines, &self.channels())
    }
}

/// Most steps that may make up a repeated part.
const BLOCK: usize = 6;

/// Ioctls in words, repeated parts counted: `3 x RM_FREE`, `8 x (RM_ALLOC channel, UVM_REGISTER_CHANNEL)`.
#[must_use]
pub fn counted(lines: &[Line]) -> Vec<String> {
    let words: Vec<String> = lines.iter().map(Line::what).collect();
    let mut out = Vec::new();
    let mut rest = &words[..];
    while !rest.is_empty() {
        let (length, times) = (1..=BLOCK.min(rest.len()))
            .map(|length| {
                let times = rest
                    .chunks(length)
                    .take_while(|chunk| *chunk == &rest[..length])
                    .count();
                (length, times)
            })
            // What a repetition saves; of equals the shorter part.
            .max_by_key(|(length, times)| (length * (times - 1), usize::MAX - length))
            .unwrap_or((1, 1));
        let (block, times, used) = match times {
            1 => (&rest[..1], 1, 1),
            _ => (&rest[..length], times, length * times),
        };
        out.push(match (times, block) {
            (1, _) => block.join(", "),
            (_, [one]) => format!("{times} x {one}"),
            _ => format!("{times} x ({})", block.join(", ")),
        });
        rest = &rest[used..];
    }
    out
}

/// What a CUDA context is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Version of the driver.
    pub driver: String,
    /// RM clients.
    pub clients: usize,
    /// TSGs by engine and number of channels, as `graphics 8`; sorted.
    pub tsgs: Vec<String>,
    /// GPFIFO classes in use.
    pub gpfifo_classes: Vec<String>,
    /// Request of an allocation, which tells its struct's size.
    pub alloc_request: Vec<String>,
    /// Bytes of a channel's parameters.
    pub channel_alloc_bytes: Vec<usize>,
    /// Bytes of a schedule call's parameters.
    pub schedule_bytes: Vec<usize>,
    /// The calls that make, register and schedule channels, in order, repeats counted.
    pub order: Vec<String>,
}

impl Shape {
    fn of(driver: &str, lines: &[Line], channels: &[Channel]) -> Self {
        let mut tsgs: BTreeMap<(u32, u32), (Engine, usize)> = BTreeMap::new();
        for channel in channels {
            let tsg = tsgs
                .entry((channel.client, channel.tsg))
                .or_insert((channel.engine, 0));
            tsg.0 = tsg.0.min(channel.engine);
            tsg.1 += 1;
        }
        let mut tsgs: Vec<String> = tsgs
            .values()
            .map(|(engine, count)| format!("{engine:?} {count}").to_lowercase())
            .collect();
        tsgs.sort();
        let set = |items: BTreeSet<String>| items.into_iter().collect::<Vec<_>>();
        let good = |line: &&Line| line.result == 0;
        let allocations = || {
            lines
                .iter()
                .filter(good)
                .filter(|line| line.escape == rm::NV_ESC_RM_ALLOC)
        };
        let is_schedule = |line: &Line| {
            line.escape == rm::NV_ESC_RM_CONTROL
                && matches!(
                    line.word(8),
                    rm::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE | rm::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE
                )
        };
        let sizes = |of: &dyn Fn(&Line) -> bool, at: usize| {
            let sizes: BTreeSet<usize> = lines
                .iter()
                .filter(|line| of(line))
                .map(|line| line.word(at) as usize)
                .collect();
            sizes.into_iter().collect::<Vec<_>>()
        };
        let order: Vec<Line> = lines
            .iter()
            .filter(good)
            .filter(|line| is_structure(line))
            .cloned()
            .collect();
        Self {
            driver: driver.to_owned(),
            clients: allocations()
                .filter(|line| class_name(line.word(12)).starts_with("client"))
                .count(),
            tsgs,
            gpfifo_classes: set(channels
                .iter()
                .map(|channel| format!("{:#x}", channel.class))
                .collect()),
            alloc_request: set(allocations().map(|line| line.request.clone()).collect()),
            channel_alloc_bytes: {
                let of = |line: &Line| {
                    line.escape == rm::NV_ESC_RM_ALLOC && class::is_gpfifo(line.word(12))
                };
                sizes(&of, 32)
            },
            schedule_bytes: sizes(&is_schedule, 24),
            order: counted(&order),
        }
    }
}

/// Whether a call belongs to a context's structure: objects above and around channels, and what is
/// done to channels.
fn is_structure(line: &Line) -> bool {
    if line.file == "uvm" {
        return matches!(
            line.number(),
            uvm::UVM_REGISTER_GPU | uvm::UVM_REGISTER_GPU_VASPACE | uvm::UVM_REGISTER_CHANNEL
        );
    }
    match line.escape {
        rm::NV_ESC_RM_ALLOC => {
            let number = line.word(12);
            class::is_gpfifo(number)
                || class::engine_of_class(number).is_some()
                || class_name(number).starts_with("client")
                || matches!(
                    number,
                    class::NV01_DEVICE_0
                        | class::NV20_SUBDEVICE_0
                        | class::FERMI_VASPACE_A
                        | class::KEPLER_CHANNEL_GROUP_A
                        | class::FERMI_CONTEXT_SHARE_A
                        | class::HOPPER_USERMODE_A
                )
        }
        // Controls of TSGs and channels.
        rm::NV_ESC_RM_CONTROL => matches!(line.word(8) >> 16, 0xa06c | 0xa06f | 0xc36f | 0x906f),
        _ => false,
    }
}
