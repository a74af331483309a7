//! Who says what of branches whose headers were not read.

use std::collections::BTreeSet;
use tidegate_abi::rm::Branch;
use tidegate_vgpu::facts::{self, Later, Source, What};

/// What channels of a known branch are controlled by, beside the headers of the calls.
const CONTROLLED_BY: [&str; 5] = [
    "NV_CHANNEL_ALLOC_PARAMS",
    "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
    "NV_MEMORY_ALLOCATION_PARAMS",
    "NV0080_ALLOC_PARAMETERS",
    "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS",
];

/// Why a branch may not be called known, by who says what of it.
fn not_known(rows: &[Later<'_>], sources: &[Source<'_>], branch: u32) -> Vec<String> {
    let of_branch = |row: &&Later<'_>| row.from.0.branch <= branch && branch <= row.to.0.branch;
    let mut wrong = Vec::new();
    for name in CONTROLLED_BY {
        let said = rows.iter().filter(of_branch);
        let said: Vec<_> = said
            .filter(|row| matches!(row.what, What::Struct(of) | What::Field(of, ..) if of == name))
            .collect();
        if said.is_empty() {
            wrong.push(format!("nobody says what {name} is"));
        }
        let alone = said.iter().filter(|row| row.independent(sources) < 2);
        wrong.extend(alone.map(|row| format!("{:?}: {:?} only", row.what, row.sources)));
    }
    wrong
}

/// P-EQUIPMENT-2: what the driver is comes from its own headers.
#[test]
fn abi_channels_of_a_later_branch_are_controlled_by_what_two_sources_say() {
    let (rows, sources) = facts::facts().later();
    assert!(sources.len() >= 3);
    for branch in Branch::ALL.into_iter().map(Branch::number) {
        if facts::facts()
            .tags()
            .any(|tag| tag.starts_with(&branch.to_string()))
        {
            continue;
        }
        assert_eq!(not_known(rows, sources, branch), Vec::<String>::new());
    }
    for branch in [615, 620] {
        assert_ne!(not_known(rows, sources, branch), Vec::<String>::new());
    }
    // A source that copies another counts once.
    let row = rows.iter().find(|row| row.sources.len() == 2).unwrap();
    assert_eq!(row.independent(sources), 2);
    let copied: Vec<_> = sources
        .iter()
        .map(|source| Source {
            repository: "one",
            ..*source
        })
        .collect();
    assert_eq!(row.independent(&copied), 1);
}

/// P-EQUIPMENT-2: what the driver is comes from its own headers.
#[test]
fn abi_a_size_that_one_source_says_is_asked_for() {
    let (rows, sources) = facts::facts().later();
    let of_610 = rows.iter().filter(|row| row.from.0.branch == 610);
    let alone: BTreeSet<u32> = of_610
        .filter(|row| row.independent(sources) < 2)
        .map(|row| match row.what {
            What::Control(number) => number,
            other => panic!("{other:?} of 610 has one source"),
        })
        .collect();
    let driver = facts::of("610.57.04").unwrap();
    let last = facts::of("595.45.04").unwrap();
    // What has not moved since then is what it was in every branch, or the agent asks for it.
    let moved = alone
        .iter()
        .filter(|number| driver.controls[number].size != last.controls[number].size);
    assert_eq!(moved.collect::<Vec<_>>(), [&0x2080_0102]);
    assert!(!Branch::B610.sizes_are_sure());
}
