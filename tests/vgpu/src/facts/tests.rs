use super::*;

fn driver(version: &str) -> Driver<'static> {
    of(version).unwrap_or_else(|| panic!("no facts of {version}"))
}

#[test]
fn versions_are_ordered_as_the_vendor_numbers_them() {
    let order = [
        "535.54.03",
        "535.86.05",
        "535.288.01",
        "565.77",
        "580.65.06",
    ];
    let versions: Vec<_> = order.map(|text| Version::parse(text).unwrap()).into();
    assert!(versions.is_sorted());
    for bad in ["", "580.", "580.x.1", "1.2.3.4"] {
        assert_eq!(Version::parse(bad), None, "{bad}");
    }
}

#[test]
fn a_version_between_two_tags_has_what_the_earlier_of_its_branch_says() {
    assert_eq!(driver("580.95.05").tag, "580.65.06");
    assert_eq!(driver("580.142").tag, "580.142");
    assert_eq!(driver("580.159.04").tag, "580.142");
    for unknown in ["580.64.01", "530.30.02", "600.1", "700.1", "x"] {
        assert_eq!(of(unknown), None, "{unknown}");
    }
}

#[test]
fn abi_the_two_sizes_that_kept_every_agent_from_starting() {
    let sizes = |version: &str| {
        let driver = driver(version);
        let size = |of: &str| driver.size(of).unwrap();
        (
            size("NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS"),
            size("NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS"),
        )
    };
    assert_eq!(sizes("535.54.03"), (32, 256));
    assert_eq!(sizes("575.64.05"), (32, 256));
    assert_eq!(sizes("580.65.06"), (32, 384));
    assert_eq!(sizes("595.45.04"), (32, 384));
}

#[test]
fn abi_what_changed_inside_a_branch_is_told_by_version() {
    let channel = |version: &str| driver(version).classes[&0xc86f].size;
    assert_eq!(channel("535.54.03"), 304);
    assert_eq!(channel("535.85.12"), 304);
    assert_eq!(channel("535.86.05"), 360);
    assert_eq!(channel("535.129.03"), 360);
    assert_eq!(channel("570.86.15"), 368);
    // Nothing else changed there.
    let (brought, read) = (driver("535.86.05"), driver("535.288.01"));
    let unnamed = |driver| Driver {
        version: String::new(),
        tag: "",
        ..driver
    };
    assert_eq!(unnamed(brought), unnamed(read));
}

#[test]
fn controls_say_who_may_make_them_what_they_lock_and_what_becomes_of_them() {
    let driver = driver("580.95.05");
    let version = driver.controls[&0x101];
    assert_eq!(version.state, State::Converted(0x13e));
    assert_eq!(driver.controls[&0x13e].cache, Cache::ByCommand);
    let attached = driver.controls[&0x201];
    assert_eq!((attached.size, attached.cache), (128, Cache::No));
    let disable = driver.controls[&0x2080_110b];
    assert_eq!((disable.api, disable.gpus), (Api::Read, Gpus::All));
    let preempt = driver.controls[&0xa06c_0105];
    assert_eq!((preempt.api, preempt.gpus), (Api::Read, Gpus::One));
    let token = driver.controls[&0xc36f_0108];
    assert_eq!((token.api, token.gpus), (Api::Write, Gpus::All));
    let restart = driver.controls[&0xa06f_0111];
    assert_eq!((restart.rights, restart.size), ("NICE", 2));
    assert!(driver.classes[&0x40].fits_below("Subdevice"));
    assert!(!driver.classes[&0x2080].fits_below("RmClientResource"));
}

#[test]
fn a_damaged_table_is_refused_with_its_line() {
    let head = TABLES.escapes.lines().next().unwrap();
    for (text, line) in [
        ("", 1),
        (&format!("{head}\n535.54.03,595.45.04,39"), 2),
        (&format!("{head}\n535.54.03,595.45.04,x,NV_ESC_RM_FREE"), 2),
        (&format!("{head}\n595.45.04,535.54.03,41,NV_ESC_RM_FREE"), 2),
        (&format!("{head}\nfive,595.45.04,41,NV_ESC_RM_FREE"), 2),
    ] {
        let tables = Tables {
            escapes: text,
            ..TABLES
        };
        let refused = Facts::read(&tables).expect_err(text);
        assert_eq!((refused.table, refused.line), ("escapes.csv", line));
    }
}

#[test]
fn every_row_of_one_tag_agrees_with_every_other() {
    for tag in facts().tags() {
        let driver = driver(tag);
        for (number, control) in &driver.controls {
            let size = driver.size(control.params).unwrap_or(0);
            assert_eq!(control.size, size, "{tag} {number:#x}");
        }
        for (number, class) in &driver.classes {
            if let Some(size) = driver.size(class.params) {
                assert_eq!(class.size, size, "{tag} {number:#x}");
            }
        }
        let structs = driver.structs.iter().map(|(name, found)| (*name, found));
        let uvm = driver.uvm.values().map(|ioctl| (ioctl.name, &ioctl.params));
        for (name, found) in structs.chain(uvm) {
            for (field, place) in &found.fields {
                let end = place.offset + place.size;
                assert!(end <= found.size, "{tag} {name}.{field}");
            }
        }
    }
}

#[test]
fn abi_statuses_are_the_same_in_every_version() {
    for tag in facts().tags() {
        let driver = driver(tag);
        for (name, status) in Status::ALL {
            assert_eq!(driver.consts[name], u64::from(status.0), "{tag} {name}");
        }
    }
}

#[test]
fn abi_a_later_branch_is_the_last_one_but_for_what_is_known_of_it() {
    let sizes = |version: &str| {
        let driver = driver(version);
        let field = |of: &str, field: &str| driver.field(of, field).map(|place| place.offset);
        (
            driver.classes[&0xc86f].size,
            field("NV_CHANNEL_ALLOC_PARAMS", "engineType"),
            field("NV_CHANNEL_ALLOC_PARAMS", "instanceMem.size"),
            driver.classes[&0xa06c].size,
            driver.controls[&0x2080_0102].size,
        )
    };
    assert_eq!(sizes("595.45.04"), (368, Some(128), Some(152), 20, 564));
    assert_eq!(sizes("610.57.04"), (376, Some(136), Some(160), 20, 580));
    assert_eq!(sizes("615.71.09"), (376, Some(136), Some(160), 28, 580));
    assert_eq!(sizes("620.06.00"), (376, Some(136), Some(160), 20, 564));
}

#[test]
fn abi_an_invented_driver_is_the_same_for_the_same_number_and_keeps_what_no_branch_changed() {
    let known = driver("615.71.09");
    let mut others = 0;
    for seed in 0..200 {
        let invented = driver(&format!("999.{seed}"));
        assert_eq!(invented, driver(&format!("999.{seed}")));
        for name in [
            "NVOS21_PARAMETERS",
            "NVOS64_PARAMETERS",
            "NV0080_ALLOC_PARAMETERS",
        ] {
            assert_eq!(invented.structs[name], known.structs[name]);
        }
        assert_eq!(invented.uvm, known.uvm);
        let channel = &invented.structs["NV_CHANNEL_ALLOC_PARAMS"];
        let mut places: Vec<_> = channel.fields.values().collect();
        places.sort_by_key(|place| place.offset);
        assert!(
            places
                .iter()
                .all(|place| place.offset + place.size <= channel.size)
        );
        let inner =
            channel.fields["instanceMem.size"].offset - channel.fields["instanceMem"].offset;
        assert_eq!(inner, 8);
        others += usize::from(channel.fields["engineType"].offset != 128);
        let list = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS";
        assert_eq!(invented.structs[list], known.structs[list]);
        assert_ne!(
            driver(&format!("998.{seed}")).structs[list],
            known.structs[list]
        );
    }
    assert!(others > 190, "{others}");
}

#[test]
fn abi_a_row_that_names_nobody_or_runs_backwards_is_refused_with_its_line() {
    let head = TABLES.later.lines().next().unwrap();
    for row in [
        "610.43.02,610.57.04,struct,X,,,4,nobody",
        "610.57.04,610.43.02,struct,X,,,4,gvisor",
        "610.43.02,610.57.04,thing,X,,,4,gvisor",
        "610.43.02,610.57.04,struct,X,,,four,gvisor",
    ] {
        let text = format!("{head}\n{row}\n");
        let tables = Tables {
            later: &text,
            ..TABLES
        };
        let refused = Facts::read(&tables).expect_err(row);
        assert_eq!((refused.table, refused.line), ("later.csv", 2), "{row}");
    }
}
