//! Files of the run and state directories that the next agent reads: the journal, who holds the lock, operators' orders.
//!
//! Root writes them; a crash, a full disk or another version makes something else of them. The first byte chooses the
//! file. A journal is a header of its own or any, then words at any place, and a length.

use crate::files::directory;
use crate::input::Input;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tidegate_abi::gate::MOST_DISABLES;
use tidegate_agent::channels::journal::{
    self, HANDING_OVER_NS, Journal, Marked, NAME, RECORDS, WORDS,
};
use tidegate_agent::config::Method;
use tidegate_agent::host::orders::{Order, Orders, OrdersFile};
use tidegate_agent::host::rundir::{self, RunDir};
use tidegate_node::journal::Places;

static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| directory("journal"));

/// What a journal of this version begins with, and its records.
const HEADER: usize = 4;

pub fn run(input: &[u8]) {
    let mut input = Input(input);
    match input.byte() % 4 {
        0 | 1 => channels(&mut input),
        2 => holder(&mut input),
        _ => orders(&mut input),
    }
}

fn channels(input: &mut Input<'_>) {
    let path = DIRECTORY.join(NAME);
    for aside in journal::unreadable(&DIRECTORY) {
        std::fs::remove_file(aside).expect("it was set aside");
    }
    let _ = std::fs::remove_file(&path);
    drop(journal::open(&DIRECTORY).expect("made anew"));
    let mut bytes = std::fs::read(&path).expect("it was made");
    let start = input.byte();
    let length = match start % 4 {
        0 => usize::from(u16::from_le_bytes(input.array())),
        _ => bytes.len(),
    };
    bytes.truncate(length);
    while !input.is_empty() {
        let word = usize::from(u16::from_le_bytes(input.array()));
        // A header is seldom what is wrong.
        let word = if start & 0x80 == 0 {
            word.max(HEADER - 3)
        } else {
            word
        } % WORDS;
        let value = input.array::<8>();
        if let Some(place) = bytes.get_mut(8 * word..8 * word + 8) {
            place.copy_from_slice(&value);
        }
    }
    std::fs::write(&path, &bytes).expect("a file in memory");
    let (journal, aside) = journal::open(&DIRECTORY).expect("an agent starts, whatever is in it");
    if let Some(aside) = aside {
        assert_eq!(std::fs::read(aside).expect("it is kept"), bytes);
        assert!(journal.marked().is_empty() && journal.is_instead_of_lost());
    }
    let marked = journal.marked();
    assert!(marked.len() <= RECORDS);
    works_on(&journal, &marked);
    drop(journal);
    let found = journal::find(&DIRECTORY).expect("readable").expect("there");
    assert!(found.marked().is_empty(), "all was cleared");
}

/// An agent takes over what stands there, and gives all of it back.
fn works_on(journal: &Journal, marked: &[Marked]) {
    let now = 1 << 40;
    journal.set_handing_over(now);
    assert!(journal.is_handing_over(now));
    assert!(!journal.is_handing_over(now + HANDING_OVER_NS));
    let before = journal.generation();
    assert!(![0, before].contains(&journal.next_generation()));
    let taken: Vec<_> = marked.iter().map(|record| record.place).collect();
    let mut places = Places::without(marked);
    if let Some(place) = places.take() {
        assert!(!taken.contains(&place), "a place that is marked is given");
        journal.describe(place, 1, 2, 3);
        journal.mark(place, Method::Restart);
        assert_eq!(journal.described(place).device_instance, 3);
        journal.clear(place);
    }
    for record in marked {
        assert_eq!(
            journal.described(record.place),
            *record,
            "others wrote there"
        );
        let enables = journal.enables(&[record.place]);
        assert!((1..=MOST_DISABLES).contains(&enables), "{enables} enables");
        // `/proc` is asked of it by its number.
        assert!(record.mover.is_none_or(|pid| pid < 1 << 24));
        let _ = journal::is_moving(record);
        for _ in 0..2 {
            journal.mark(record.place, Method::Disable);
            journal.confirm(record.place);
        }
        assert!(journal.enables(&[record.place]) <= MOST_DISABLES);
        journal.doubt(record.place);
        assert!(!journal.is_sure(record.place));
        journal.end_move(record.place);
        journal.clear(record.place);
        assert_eq!(journal.enables(&[record.place]), 1);
    }
}

/// Who held the lock is only named; whatever is said there, an agent starts.
fn holder(input: &mut Input<'_>) {
    let directory = DIRECTORY.join("run");
    std::fs::create_dir_all(&directory).expect("a directory in memory");
    let lengths = [input.byte(), input.byte()].map(usize::from);
    for (name, length) in ["agent", "lock"].iter().zip(lengths) {
        std::fs::write(directory.join(name), input.bytes(length)).expect("a file in memory");
    }
    let known = rundir::holder(&directory);
    if let Some(holder) = &known {
        assert!(holder.device.len() < 4_096, "{holder:?}");
    }
    let mut held = RunDir::take(&directory, "real").expect("nobody holds it");
    held.sign(7).expect("writable");
    let error = RunDir::take(&directory, "real")
        .expect_err("held")
        .to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    let holder = rundir::holder(&directory).expect("it says so");
    assert_eq!((holder.generation, holder.device.as_str()), (7, "real"));
}

/// Orders that cannot be read drain the node, and the next agent reads what this one writes.
fn orders(input: &mut Input<'_>) {
    let directory = DIRECTORY.join("state");
    std::fs::create_dir_all(&directory).expect("a directory in memory");
    let file = OrdersFile::new(&directory, 5);
    file.write(&Orders::default()).expect("writable");
    let written = only_file(&directory);
    std::fs::write(&written, input.0).expect("a file in memory");
    let mut orders = file.read(42);
    let again = |orders: &Orders| {
        file.write(orders).expect("writable");
        assert_eq!(format!("{:?}", file.read(43)), format!("{orders:?}"));
    };
    again(&orders);
    let by = || Order {
        since_unix_ms: 44,
        by: "uid 0".to_owned(),
    };
    orders.pause(Some("job"), by());
    again(&orders);
    orders.resume(Some("job"), by());
    let _ = orders.by_name();
    again(&orders);
}

fn only_file(directory: &Path) -> PathBuf {
    let mut entries = std::fs::read_dir(directory).expect("there");
    let first = entries.next().expect("written").expect("readable");
    assert!(entries.next().is_none(), "something is left beside it");
    first.path()
}
