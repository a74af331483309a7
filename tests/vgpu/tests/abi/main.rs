//! `tidegate_abi` against what the driver's own headers say (`../facts`): every struct by size and
//! field, every number, every class, in every version. A definition that nobody compares fails, too.

mod definitions;
mod later;
mod layouts;

use definitions::Definition;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use tidegate_abi::class::{self, Engine};
use tidegate_abi::rm::{Branch, Layout};
use tidegate_device::{ApiLock, GpuLock, Needs, Patch};
use tidegate_vgpu::facts::{self, Api, Driver, Facts, Gpus, Struct, TABLES, Tables};

/// The text of `tidegate_abi`, for the names in it.
const SOURCES: [&str; 3] = [
    include_str!("../../../../proto/abi/src/rm.rs"),
    include_str!("../../../../proto/abi/src/uvm.rs"),
    include_str!("../../../../proto/abi/src/class.rs"),
];

/// What a number is called in the headers where its name differs.
const OTHER_NAMES: [(&str, &str); 25] = [
    (
        "NV01_MEMORY_OS_DESCRIPTOR",
        "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR",
    ),
    (
        "VASPACE_EXTERNALLY_OWNED",
        "NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED",
    ),
    (
        "VASPACE_PAGE_FAULTING",
        "NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING",
    ),
    ("MAX_GPUS", "NV0000_CTRL_GPU_MAX_ATTACHED_GPUS"),
    ("INVALID_GPU_ID", "NV0000_CTRL_GPU_INVALID_ID"),
    ("MAX_PAIRS", "NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES"),
    ("FB_INFO_RAM_SIZE", "NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE"),
    (
        "FB_INFO_TOTAL_RAM_SIZE",
        "NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE",
    ),
    ("FB_INFO_HEAP_SIZE", "NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE"),
    ("FB_INFO_HEAP_FREE", "NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE"),
    (
        "GPU_INFO_SMC_MODE",
        "NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE",
    ),
    (
        "SMC_MODE_UNSUPPORTED",
        "NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_UNSUPPORTED",
    ),
    (
        "SMC_MODE_ENABLED",
        "NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_ENABLED",
    ),
    (
        "SMC_MODE_DISABLED",
        "NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_DISABLED",
    ),
    (
        "SMC_MODE_ENABLE_PENDING",
        "NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_ENABLE_PENDING",
    ),
    (
        "SMC_MODE_DISABLE_PENDING",
        "NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_DISABLE_PENDING",
    ),
    (
        "CONFIDENTIAL_FEATURE_HCC",
        "NV_CONF_COMPUTE_SYSTEM_FEATURE_HCC_ENABLED",
    ),
    ("ENGINE_TYPE_GR0", "NV2080_ENGINE_TYPE_GR0"),
    ("ENGINE_TYPE_COPY0", "NV2080_ENGINE_TYPE_COPY0"),
    ("OK", "NV_OK"),
    ("FB_INFO_PLACES", "NV2080_CTRL_FB_INFO_MAX_LIST_SIZE"),
    ("GPU_INFO_PLACES", "NV2080_CTRL_GPU_INFO_MAX_LIST_SIZE"),
    // Of `resource_server.h` and `ctrl2080gpu.h`, outside the tables: the same from 535 to 595 by hand.
    ("CLIENT_HANDLE_BASE", ""),
    ("NAME_ASCII", ""),
    ("GID_FORMAT_BINARY", ""),
];

/// Numbers of Linux and of the nodes, which no header of the driver has.
const NOT_THE_DRIVERS: [&str; 3] = ["DEVICE_MAJOR", "CTL_MINOR", "IOC_READ_WRITE"];

/// What not every version has, and the list lengths, of which ours is the longest.
const NOT_IN_ALL: [&str; 5] = [
    "NV_ESC_WAIT_OPEN_COMPLETE",
    "NVC36F_CTRL_CMD_GPFIFO_SCHEDULE",
    "NVC36F_CTRL_CMD_BIND",
    "FB_INFO_PLACES",
    "GPU_INFO_PLACES",
];

fn value(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    if let Some((one, by)) = text.split_once(" << ") {
        return Some(value(one)? << value(by)?);
    }
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Every number that `tidegate_abi` gives a name, read off its text.
fn numbers() -> BTreeMap<&'static str, u64> {
    let mut found = BTreeMap::new();
    for line in SOURCES.iter().flat_map(|source| source.lines()) {
        let Some(rest) = line.trim().strip_prefix("pub const ") else {
            continue;
        };
        let Some((name, rest)) = rest.split_once(": ") else {
            continue;
        };
        let Some((_, text)) = rest.split_once(" = ") else {
            continue;
        };
        let text = text.trim_end_matches(';');
        let text = text
            .strip_prefix("Self(")
            .map_or(text, |status| status.trim_end_matches(')'));
        match value(text) {
            Some(number) => assert_eq!(found.insert(name, number), None, "{name} twice"),
            None => assert!(rest.starts_with('['), "{name} = {text} is not understood"),
        }
    }
    assert!(found.len() > 100, "{}", found.len());
    found
}

/// Every struct that `tidegate_abi` defines, read off its text.
fn structs() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (module, source) in ["rm", "uvm"].iter().zip(SOURCES) {
        for line in source.lines() {
            let line = line.trim();
            let of_macro = line
                .split(',')
                .next()
                .filter(|_| line.ends_with('{') || line.contains(", {"));
            let plain = line.strip_prefix("pub struct ");
            let name = match (plain, of_macro) {
                (Some(plain), _) => plain,
                (None, Some(name)) if name.starts_with(char::is_uppercase) => name,
                _ => continue,
            };
            let end = name
                .find(|c: char| !c.is_alphanumeric())
                .unwrap_or(name.len());
            if end > 0 && !["Status", "Ok", "Some", "Self"].contains(&&name[..end]) {
                found.insert(format!("{module}::{}", &name[..end]));
            }
        }
    }
    found
}

/// A number in a version of the driver, by our name for it.
fn number_in(driver: &Driver<'_>, name: &str) -> Option<u64> {
    let other = OTHER_NAMES.iter().find(|(ours, _)| *ours == name);
    let name = other.map_or(name, |(_, theirs)| theirs);
    let control = driver.controls.iter().find(|(_, found)| found.name == name);
    let class = driver.classes.iter().find(|(_, found)| found.name == name);
    let uvm = driver.uvm.iter().find(|(_, found)| found.name == name);
    let status = driver.consts.get(format!("NV_ERR_{name}").as_str());
    driver
        .escape(name)
        .map(u64::from)
        .or(control.map(|(number, _)| u64::from(*number)))
        .or(class.map(|(number, _)| u64::from(*number)))
        .or(uvm.map(|(number, _)| *number))
        .or(driver.consts.get(name).copied())
        .or(status.copied())
}

/// What is wrong with a definition in one version.
fn judge_struct(definition: &Definition, driver: &Driver<'_>, branch: Branch) -> Vec<String> {
    let Some(bytes) = definition.bytes_in(branch) else {
        return Vec::new();
    };
    let (tag, name) = (driver.tag, definition.name);
    let uvm = driver
        .uvm
        .values()
        .find(|ioctl| ioctl.name == definition.header);
    let found: Option<Struct<'_>> = uvm
        .map(|ioctl| ioctl.params.clone())
        .or_else(|| driver.structs.get(definition.header).cloned());
    let Some(mut theirs) = found else {
        return vec![format!("{tag} {name}: there is no {}", definition.header)];
    };
    if name == "uvm::UvmGpuMappingAttributes" {
        theirs = element(&theirs, "perGpuAttributes");
    }
    let mut wrong = Vec::new();
    if theirs.size != bytes {
        wrong.push(format!("{tag} {name}: {bytes} bytes, but {}", theirs.size));
    }
    let top = |field: &str| !field.contains(['.', '[']);
    let mut claimed = BTreeSet::new();
    for (ours, offset, size, field) in &definition.fields {
        claimed.insert(field.split('.').next().unwrap_or(field));
        if *offset >= bytes {
            if bytes == definition.size {
                wrong.push(format!(
                    "{tag} {name}.{ours} at {offset} lies beyond the end"
                ));
            }
            continue;
        }
        let Some(place) = theirs.fields.get(field) else {
            wrong.push(format!("{tag} {name}: there is no {field}"));
            continue;
        };
        // A flag may be held with the padding that follows it, a list with the longest form.
        let end = (offset + size).min(bytes);
        let next = theirs
            .fields
            .iter()
            .find(|(other, at)| top(other) && at.offset > place.offset && at.offset < end);
        let fits = place.offset == *offset
            && place.offset + place.size <= end
            && next.is_none_or(|(_, at)| at.offset < place.offset + place.size)
            && (place.offset + place.size == end || place.size == 1);
        if !fits {
            wrong.push(format!(
                "{tag} {name}.{ours} at {offset}, {size} bytes: {field} is {place:?}"
            ));
        }
    }
    for (field, place) in theirs.fields.iter().filter(|(field, _)| top(field)) {
        if !claimed.contains(field) && place.size > 0 {
            wrong.push(format!("{tag} {name}: nobody has {field}"));
        }
    }
    wrong
}

/// The struct that a list's first element is.
fn element<'a>(of: &Struct<'a>, list: &str) -> Struct<'a> {
    let prefix = format!("{list}[0].");
    let start = of.fields.get(list).map_or(0, |list| list.offset);
    let mut element = Struct::default();
    for (field, place) in &of.fields {
        if let Some(field) = field.strip_prefix(prefix.as_str()) {
            let offset = place.offset - start;
            element.size = element.size.max(offset + place.size);
            let place = facts::Field { offset, ..*place };
            element.fields.insert(field, place);
        }
    }
    element
}

/// What is wrong with `tidegate_abi` by these tables, in every version whose branch it knows.
fn judge(tables: &Tables<'_>) -> Vec<String> {
    let facts = Facts::read(tables).unwrap();
    let mut wrong = Vec::new();
    let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
    let mut versions = 0;
    for tag in facts.tags().chain(facts.later_tags()) {
        let driver = facts.of(tag).unwrap();
        let Some(branch) = Branch::of_version(tag) else {
            continue;
        };
        versions += 1;
        for definition in definitions::all() {
            wrong.extend(judge_struct(&definition, &driver, branch));
        }
        wrong.extend(judge_classes(&driver, branch));
        wrong.extend(judge_functions(&driver, branch));
        for (name, ours) in numbers() {
            if NOT_THE_DRIVERS.contains(&name) || name.starts_with("ALL") {
                continue;
            }
            match number_in(&driver, name) {
                Some(theirs) if theirs == ours => {}
                Some(theirs) if name.ends_with("_PLACES") && theirs < ours => {}
                Some(theirs) => wrong.push(format!("{tag} {name}: {ours:#x}, but {theirs:#x}")),
                None => *missing.entry(name).or_default() += 1,
            }
        }
    }
    assert!(versions >= 10, "{versions}");
    for (name, times) in missing {
        let by_hand = OTHER_NAMES.contains(&(name, ""));
        if !by_hand && (times == versions || !NOT_IN_ALL.contains(&name)) {
            wrong.push(format!(
                "{name} is missing in {times} of {versions} versions"
            ));
        }
    }
    wrong
}

/// What the classes of one version are taken for.
fn judge_classes(driver: &Driver<'_>, branch: Branch) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, found) in &driver.classes {
        let expected = match found.internal {
            "KernelGraphicsObject" => Some(Engine::Graphics),
            "KernelCeContext" => Some(Engine::Copy),
            "MsencContext" | "NvdecContext" | "NvjpgContext" | "OfaContext" | "Sec2Context" => {
                Some(Engine::Video)
            }
            _ => None,
        };
        let taken = (class::engine_of_class(*number), class::is_gpfifo(*number));
        if taken != (expected, found.internal == "KernelChannel") {
            let tag = driver.tag;
            wrong.push(format!(
                "{tag} {number:#x} {}: taken for {taken:?}",
                found.name
            ));
        }
        let needed = tidegate_core::rm::needed(Layout::Known(branch), *number);
        if needed > found.size {
            wrong.push(format!(
                "{} {number:#x}: {needed} bytes are read of {}",
                driver.tag, found.size
            ));
        }
    }
    let kinds = [
        ("GR", Engine::Graphics),
        ("COPY", Engine::Copy),
        ("COMP_DECOMP_COPY", Engine::Copy),
        ("NVDEC", Engine::Video),
        ("NVENC", Engine::Video),
        ("NVJPEG", Engine::Video),
        ("OFA", Engine::Video),
        ("SEC2", Engine::Video),
    ];
    for (name, number) in &driver.consts {
        let Some(kind) = name.strip_prefix("NV2080_ENGINE_TYPE_") else {
            continue;
        };
        let kind = match kind {
            "SEC2" => kind,
            _ => kind.trim_end_matches(|c: char| c.is_ascii_digit()),
        };
        let expected = kinds.iter().find(|(other, _)| *other == kind);
        let taken = class::engine_of_type(*number as u32);
        if expected.is_some_and(|(_, engine)| *engine != taken) {
            wrong.push(format!("{} {name}: taken for {taken:?}", driver.tag));
        }
    }
    wrong
}

/// The sizes that a branch is asked for by function and that are no struct of ours.
fn judge_functions(driver: &Driver<'_>, branch: Branch) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, size) in [
        (0xa06c_0101, branch.schedule_size()),
        (0xa06f_0103, branch.schedule_size()),
        (0xc36f_0103, branch.schedule_size()),
        (0xa06f_0104, 4),
        (0xc36f_0104, 4),
        (0xa06c_0102, 4),
    ] {
        let found = driver.controls.get(&number).map(|control| control.size);
        if found.is_some_and(|found| found != size) {
            wrong.push(format!(
                "{} {number:#x}: {size} bytes, but {found:?}",
                driver.tag
            ));
        }
    }
    for (number, needs) in [
        (0x2080_110b, Needs::disable_channels(1, 0, Patch::None)),
        (0xa06c_0105, Needs::preempt(1, 0)),
        (0xa06f_0111, Needs::preempt(1, 0)),
    ] {
        let control = driver.controls[&number];
        let locks = (
            matches!(control.api, Api::Write),
            match control.gpus {
                Gpus::None => GpuLock::None,
                Gpus::One => GpuLock::One(0),
                Gpus::All => GpuLock::All,
            },
        );
        if locks != (needs.api == ApiLock::Write, needs.gpus) {
            wrong.push(format!("{} {number:#x}: locks {locks:?}", driver.tag));
        }
    }
    wrong
}

/// P-EQUIPMENT-2: what the driver is comes from its own headers.
#[test]
fn abi_every_definition_is_what_the_drivers_headers_say_in_every_version() {
    assert_eq!(judge(&TABLES), Vec::<String>::new());
}

/// P-EQUIPMENT-2: what the driver is comes from its own headers.
#[test]
fn abi_no_struct_is_left_out_of_the_comparison() {
    let compared: BTreeSet<String> = definitions::all()
        .iter()
        .map(|definition| definition.name.split('<').next().unwrap().replace(' ', ""))
        .collect();
    assert_eq!(structs(), compared);
}

/// P-EQUIPMENT-2: what the driver is comes from its own headers.
#[test]
fn abi_every_branch_is_the_one_of_its_versions() {
    let tags = facts::facts().tags().chain(facts::facts().later_tags());
    let known: BTreeSet<Branch> = tags.filter_map(Branch::of_version).collect();
    assert_eq!(known, Branch::ALL.into_iter().collect());
    for tag in facts::facts().tags() {
        let number = tag.split('.').next().unwrap();
        match Branch::of_version(tag) {
            Some(branch) => assert_eq!(branch.number().to_string(), number),
            None => assert!(["545", "555", "560", "565"].contains(&number), "{tag}"),
        }
    }
    // Of its developer series 535.43.08 has the later layout; that is not in the tables.
    assert_eq!(Branch::of_version("535.43.02"), Some(Branch::B535First));
    assert_eq!(Branch::of_version("535.43.08"), Some(Branch::B535));
    for unknown in ["615.71.09", "620.06.00", "999.01"] {
        assert_eq!(Branch::of_version(unknown), None);
        assert_eq!(Layout::of_version(unknown), Some(Layout::ByAnswers));
    }
}

/// One line of a table, changed.
fn changed(text: &str, line: &str, to: &str) -> String {
    assert_eq!(text.matches(line).count(), 1, "{line}");
    text.replace(line, to)
}

/// P-EQUIPMENT-2: what the driver is comes from its own headers.
#[test]
fn abi_a_wrong_row_in_any_table_is_found() {
    let id_info = "535.54.03,595.45.04,NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS,,,,32\n";
    let structs = changed(TABLES.structs, id_info, &id_info.replace(",32\n", ",36\n"));
    let moved = "535.54.03,595.45.04,NVOS54_PARAMETERS,paramsSize,24,4,32\n";
    let moved = changed(TABLES.structs, moved, &moved.replace(",24,4,", ",20,4,"));
    let uvm = "590.48.01,595.45.04,34,UVM_FREE,UVM_FREE_PARAMS,16,rmStatus,8,4\n";
    let uvm = changed(TABLES.uvm, uvm, &uvm.replace(",8,4\n", ",12,4\n"));
    let escapes = "535.54.03,595.45.04,41,NV_ESC_RM_FREE\n";
    let escapes = changed(
        TABLES.escapes,
        escapes,
        "535.54.03,595.45.04,42,NV_ESC_RM_FREE\n",
    );
    let consts = "535.54.03,595.45.04,status,NV_ERR_INVALID_CLIENT,0x23\n";
    let consts = changed(TABLES.consts, consts, &consts.replace("0x23", "0x24"));
    let controls = "575.51.02,595.45.04,0xa06c0101,NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS,3,";
    let controls = changed(TABLES.controls, controls, &controls.replace(",3,", ",2,"));
    let classes = TABLES.classes.replace("0xc997,ADA_A,", "0xc998,ADA_A,");
    for (tables, named) in [
        (
            Tables {
                structs: &structs,
                ..TABLES
            },
            "rm::IdInfoV2: 32 bytes, but 36",
        ),
        (
            Tables {
                structs: &moved,
                ..TABLES
            },
            "rm::Nvos54.params_size",
        ),
        (
            Tables {
                uvm: &uvm,
                ..TABLES
            },
            "uvm::UvmFree590.rm_status",
        ),
        (
            Tables {
                escapes: &escapes,
                ..TABLES
            },
            "NV_ESC_RM_FREE",
        ),
        (
            Tables {
                consts: &consts,
                ..TABLES
            },
            "INVALID_CLIENT: 0x23",
        ),
        (
            Tables {
                controls: &controls,
                ..TABLES
            },
            "0xa06c0101: 3 bytes",
        ),
        (
            Tables {
                classes: &classes,
                ..TABLES
            },
            "0xc998 ADA_A",
        ),
    ] {
        let wrong = judge(&tables);
        assert!(
            wrong.iter().any(|line| line.contains(named)),
            "{named}: {wrong:?}"
        );
    }
}

/// P-EQUIPMENT-2: what the driver is comes from its own headers.
#[test]
fn abi_a_wrong_definition_is_found() {
    let driver = facts::of("580.65.06").unwrap();
    let judged = |definition: &Definition| judge_struct(definition, &driver, Branch::B580);
    for definition in definitions::all() {
        assert_eq!(judged(&definition), Vec::<String>::new());
        if definition.bytes_in(Branch::B580) != Some(definition.size) {
            continue;
        }
        for field in 0..definition.fields.len() {
            let mut moved = definition.clone();
            moved.fields[field].1 += 4;
            assert_ne!(judged(&moved), Vec::<String>::new(), "{moved:?}");
            let mut gone = definition.clone();
            gone.fields.remove(field);
            let nested = definition.fields[field].3.contains('.');
            assert!(nested || !judged(&gone).is_empty(), "{gone:?}");
        }
    }
    let ids = definitions::all()
        .into_iter()
        .find(|one| one.name == "rm::IdInfoV2");
    let longer = Definition {
        size: 36,
        ..ids.unwrap()
    };
    assert_ne!(judged(&longer), Vec::<String>::new());
}

/// The tables are what the full ones say, where those are at hand.
/// P-EQUIPMENT-2: what the driver is comes from its own headers.
#[test]
fn abi_the_tables_are_what_the_source_tables_say() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let facts = here.join("facts");
    let source = here.join("../../../shared/data/rm_abi");
    if !source.is_dir() {
        println!("SKIPPED: {} is not here", source.display());
        return;
    }
    let made = std::env::temp_dir().join(format!("facts-{}", std::process::id()));
    std::fs::create_dir_all(&made).unwrap();
    let run = Command::new("python3")
        .arg(facts.join("make"))
        .args([&source, &made])
        .status()
        .unwrap();
    assert!(run.success());
    for name in ["controls", "classes", "structs", "uvm", "escapes", "consts"] {
        let file = format!("{name}.csv");
        let read = |dir: &Path| std::fs::read_to_string(dir.join(&file)).unwrap();
        assert_eq!(read(&made), read(&facts), "{file}");
    }
    std::fs::remove_dir_all(&made).unwrap();
}
