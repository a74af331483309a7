//! Random layouts of a driver that nobody has written yet, and what is made of a process' calls on it.
//!
//! The parameters of every allocation lie at the end of mapped memory, as long as that driver has them, and hold
//! numbers that mean something elsewhere: handles of other objects and clients, numbers of engines. So whatever
//! is read at a place where it no longer is looks right.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::mem::size_of;
use tidegate_abi::class::{self, Engine};
use tidegate_abi::rm::{self, Branch, Layout, Nvos00, Nvos21, Nvos64};
use tidegate_core::rm::{Graph, decode, nested};
use tidegate_vgpu::facts::{self, Driver};

/// How many layouts; by hand `TIDEGATE_LAYOUTS=10000`.
fn layouts() -> u32 {
    let set = env::var("TIDEGATE_LAYOUTS").ok();
    set.map_or(1000, |text| text.parse().expect("a number of layouts"))
}

/// splitmix64.
struct Drawn(u64);

impl Drawn {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.next() % all.len() as u64) as usize]
    }
}

/// Memory whose last byte is followed by none.
struct Edge {
    page: *mut u8,
}

const PAGE: usize = 4096;

impl Edge {
    fn new() -> Self {
        // SAFETY: a fresh private mapping, of whose second page every access is taken away.
        let page = unsafe {
            let page = libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            let end = page.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(end.cast(), PAGE, libc::PROT_NONE), 0);
            page.cast::<u8>()
        };
        Self { page }
    }

    /// Puts bytes at the end; where they begin.
    fn put(&mut self, bytes: &[u8]) -> u64 {
        // SAFETY: the last bytes of the page that may be accessed.
        unsafe {
            let at = self.page.add(PAGE - bytes.len());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
            at as u64
        }
    }

    /// What the library reads there.
    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        // SAFETY: inside the page, or the test ends here by a fault, as the process would.
        unsafe { std::slice::from_raw_parts(address as *const u8, bytes).to_vec() }
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, of which nothing is left.
        unsafe { libc::munmap(self.page.cast(), 2 * PAGE) };
    }
}

/// A process on a driver, and what is made of its calls.
struct Process<'a> {
    driver: &'a Driver<'a>,
    layout: Layout,
    drawn: Drawn,
    edge: Edge,
    graph: Graph,
    /// What stands: its group, its engine and its GPU.
    truth: BTreeMap<(u32, u32), (u32, Engine, u32)>,
    handles: Vec<u32>,
}

const CLIENTS: [u32; 2] = [0xc1d0_0001, 0xc1d0_0002];
const FOREIGN: [u32; 2] = [0xc1d0_0077, 0xbeef_0001];
const ENGINES: [(u32, Engine); 4] = [
    (1, Engine::Graphics),
    (9, Engine::Copy),
    (0x34, Engine::Copy),
    (0x13, Engine::Video),
];

impl Process<'_> {
    /// One successful allocation, in one of its two sizes.
    fn alloc(&mut self, (client, parent): (u32, u32), class: u32, set: &[(&str, u32)]) -> u32 {
        let handle = if class == class::NV01_ROOT_CLIENT {
            client
        } else {
            0x5c00_0001 + self.handles.len() as u32
        };
        let known = &self.driver.classes[&class];
        let mut parameters = vec![0_u8; known.size];
        let plausible = [&CLIENTS[..], &FOREIGN, &[0, 1, 9, 0x13], &self.handles].concat();
        for word in parameters.chunks_exact_mut(4) {
            word.copy_from_slice(&self.drawn.of(&plausible).to_ne_bytes());
        }
        if let Some(layout) = self.driver.structs.get(known.params) {
            for (field, value) in set {
                layout.put_word(&mut parameters, field, *value);
            }
        }
        let address = match parameters.is_empty() {
            true => 0,
            false => self.edge.put(&parameters),
        };
        // Nobody looks at what size the caller states.
        let stated = self.drawn.next() as u32;
        if self.drawn.next().is_multiple_of(2) {
            self.tell(
                rm::NV_ESC_RM_ALLOC,
                Nvos64 {
                    h_root: client,
                    h_object_parent: parent,
                    h_object_new: handle,
                    h_class: class,
                    p_alloc_parms: address,
                    params_size: stated,
                    ..Nvos64::default()
                },
            );
        } else {
            self.tell(
                rm::NV_ESC_RM_ALLOC,
                Nvos21 {
                    h_root: client,
                    h_object_parent: parent,
                    h_object_new: handle,
                    h_class: class,
                    p_alloc_parms: address,
                    params_size: stated,
                    ..Nvos21::default()
                },
            );
        }
        self.handles.push(handle);
        handle
    }

    fn tell<T: Copy>(&mut self, escape: u32, argument: T) {
        // SAFETY: plain integers without padding, alive for the borrow.
        let argument = unsafe {
            std::slice::from_raw_parts((&raw const argument).cast::<u8>(), size_of::<T>())
        };
        let about = nested(self.layout, escape, argument);
        let parameters = about.map_or(Vec::new(), |at| self.edge.read(at.address, at.needed));
        if let Some(call) = decode(self.layout, escape, argument, &parameters) {
            self.graph.apply(call, &mut Vec::new());
        }
    }

    /// A client with contexts, as CUDA makes them.
    fn client(&mut self, client: u32) {
        self.alloc((client, 0), class::NV01_ROOT_CLIENT, &[]);
        for _ in 0..1 + self.drawn.next() % 2 {
            let instance = self.drawn.of(&[0, 1, 3]);
            let device = self.alloc(
                (client, client),
                class::NV01_DEVICE_0,
                &[("deviceId", instance)],
            );
            self.alloc(
                (client, device),
                class::NV20_SUBDEVICE_0,
                &[("subDeviceId", 0)],
            );
            let space = self.alloc((client, device), class::FERMI_VASPACE_A, &[("flags", 8)]);
            for _ in 0..1 + self.drawn.next() % 3 {
                self.group((client, device), (space, instance));
            }
        }
    }

    fn group(&mut self, (client, device): (u32, u32), (space, instance): (u32, u32)) {
        let (number, engine) = self.drawn.of(&ENGINES);
        let grouped = !self.drawn.next().is_multiple_of(4);
        let parent = if grouped {
            let set = [("hVASpace", space), ("engineType", number)];
            self.alloc((client, device), class::KEPLER_CHANNEL_GROUP_A, &set)
        } else {
            device
        };
        let mut share = 0;
        if grouped && engine == Engine::Graphics {
            share = self.alloc(
                (client, parent),
                class::FERMI_CONTEXT_SHARE_A,
                &[("hVASpace", space)],
            );
        }
        for _ in 0..1 + self.drawn.next() % 3 {
            let set = [
                ("hVASpace", if share == 0 { space } else { 0 }),
                ("hContextShare", share),
                ("engineType", if grouped { 0 } else { number }),
            ];
            let channel = self.alloc((client, parent), class::HOPPER_CHANNEL_GPFIFO_A, &set);
            let group = if grouped { parent } else { channel };
            self.truth
                .insert((client, channel), (group, engine, instance));
            let mut objects = match engine {
                Engine::Graphics => vec![class::HOPPER_COMPUTE_A, class::HOPPER_DMA_COPY_A],
                Engine::Copy => vec![class::HOPPER_DMA_COPY_A],
                _ => vec![0xb8b0],
            };
            if self.drawn.next().is_multiple_of(2) {
                objects.reverse();
            }
            for object in objects {
                self.alloc((client, channel), object, &[]);
            }
        }
    }

    /// Frees some channels and groups, as contexts end.
    fn free_some(&mut self) {
        let keys: Vec<_> = self.truth.keys().copied().collect();
        for key in keys {
            let Some((group, ..)) = self.truth.get(&key).copied() else {
                continue;
            };
            let old = match self.drawn.next() % 6 {
                0 => key.1,
                1 => group,
                _ => continue,
            };
            let free = Nvos00 {
                h_root: key.0,
                h_object_old: old,
                ..Nvos00::default()
            };
            self.graph
                .lift(free.h_root, free.h_object_old, &mut Vec::new());
            self.truth.retain(|(client, channel), (group, ..)| {
                *client != key.0 || (*channel != old && *group != old)
            });
        }
    }

    /// What is wrong: channels that are not this process' or of another group or GPU, those that are missing, and
    /// engines that are taken for others.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        for own in self.graph.channels() {
            let key = (own.client, own.channel);
            seen.insert(key);
            match self.truth.get(&key) {
                None => wrong.push(format!("foreign: {own:?}")),
                Some((group, engine, instance)) => {
                    if (own.tsg, own.device_instance) != (*group, Some(*instance)) {
                        wrong.push(format!("not of {group:#x} on {instance}: {own:?}"));
                    }
                    if ![*engine, Engine::Unknown].contains(&own.engine) {
                        wrong.push(format!("not {engine:?}: {own:?}"));
                    }
                }
            }
        }
        let missing = self.truth.keys().filter(|key| !seen.contains(key));
        wrong.extend(missing.map(|key| format!("missing: {key:x?}")));
        wrong
    }
}

/// What is wrong with the channels of a process on one driver; how many there are.
fn judged(version: &str, layout: Layout, seed: u64) -> (Vec<String>, usize) {
    let driver = facts::of(version).expect("a driver that the device plays");
    let mut process = Process {
        driver: &driver,
        layout,
        drawn: Drawn(seed),
        edge: Edge::new(),
        graph: Graph::default(),
        truth: BTreeMap::new(),
        handles: Vec::new(),
    };
    for client in CLIENTS {
        process.client(client);
    }
    process.free_some();
    (process.wrong(), process.truth.len())
}

/// P-GATE-23: of a driver whose layouts nobody knows, nothing is read that may have moved.
#[test]
fn abi_no_layout_makes_a_foreign_channel_or_another_engine_of_what_a_process_has() {
    let mut channels = 0;
    for seed in 1..=layouts() {
        let version = format!("999.{seed}");
        let layout = Layout::of_version(&version).expect("a version");
        let (wrong, stand) = judged(&version, layout, seed.into());
        assert_eq!(wrong, Vec::<String>::new(), "{version}");
        channels += stand;
    }
    assert!(channels > layouts() as usize, "{channels}");
}

/// P-GATE-23: the same drivers read as the newest known branch are misread, so the judge above can see it.
#[test]
fn abi_a_layout_that_is_taken_for_a_known_one_is_misread() {
    let misread = |seed: u64| {
        // No longer than what a known branch has, or reading it ends the test.
        let version = format!("999.{seed}");
        let driver = facts::of(&version).expect("a driver");
        let longer = [
            "NV_CHANNEL_ALLOC_PARAMS",
            "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
        ];
        let safe = longer.iter().all(|name| driver.size(name) >= Some(24));
        safe && !judged(&version, Layout::Known(Branch::B610), seed)
            .0
            .is_empty()
    };
    let seen = (1..=50).filter(|seed| misread(*seed)).count();
    assert!(seen > 25, "{seen}");
}

/// P-GATE-23: every known branch is read as it is.
#[test]
fn abi_every_known_branch_is_read_as_it_is() {
    for version in [
        "535.54.03",
        "535.288.01",
        "550.163.01",
        "575.64.05",
        "595.45.04",
        "610.57.04",
    ] {
        let layout = Layout::of_version(version).expect("a version");
        assert!(matches!(layout, Layout::Known(_)));
        for seed in 0..50 {
            assert_eq!(
                judged(version, layout, seed).0,
                Vec::<String>::new(),
                "{version}"
            );
        }
    }
}
