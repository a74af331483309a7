//! What the resource manager answers, call by call.

mod rig;

use rig::{Device, File, Job, Side, result};
use tidegate_abi::class;
use tidegate_abi::rm::{self, Branch};
use tidegate_abi::uvm;
use tidegate_vgpu::calls::{self, Entry};
use tidegate_vgpu::facts::{self, Cache, Required, Status};
use tidegate_vgpu::history::Kind;
use tidegate_vgpu::wire::Node;

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn root_clients_start_at_the_drivers_base_whatever_root_class_is_asked_for() {
    let device = Device::start(&[]);
    let ctl = device.open(Node::Ctl);
    for (number, class) in [0x41, 0x0, 0x1].into_iter().enumerate() {
        let client = ctl.alloc(0, 0, 0, class, &mut ()).unwrap();
        assert_eq!(client, rm::CLIENT_HANDLE_BASE + number as u32);
    }
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn both_layouts_of_the_allocation_are_understood_and_sizes_may_be_left_to_the_class() {
    let device = Device::start(&[]);
    let ctl = device.open(Node::Ctl);
    let client = ctl.root();
    let gpu = device.open(Node::Gpu(0));
    let mut params = rm::Nv0080Alloc::default();
    let mut p = rm::Nvos21 {
        h_root: client,
        h_object_parent: client,
        h_object_new: 0x5c00_0001,
        h_class: class::NV01_DEVICE_0,
        p_alloc_parms: &raw mut params as u64,
        ..Default::default()
    };
    ctl.escape(rm::NV_ESC_RM_ALLOC, &mut p).unwrap();
    assert_eq!((p.status, p.h_object_new), (0, 0x5c00_0001));
    drop(gpu);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_client_of_another_file_is_refused_and_a_dup_of_its_own_is_not() {
    let device = Device::start(&[]);
    let (mine, other) = (device.open(Node::Ctl), device.open(Node::Ctl));
    let client = mine.root();
    assert_eq!(mine.attached(client), Status::OK);
    assert_eq!(mine.dup().attached(client), Status::OK);
    assert_eq!(other.attached(client), Status::INVALID_CLIENT);
    assert_eq!(other.free(client, client), Status::INVALID_CLIENT);
    let refused = other.alloc(client, client, 0, class::NV01_DEVICE_0, &mut [0_u8; 56]);
    assert_eq!(refused, Err(Status::INVALID_CLIENT));
    assert_eq!(mine.attached(client), Status::OK);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_null_control_proves_nothing() {
    let device = Device::start(&[]);
    let (mine, other) = (device.open(Node::Ctl), device.open(Node::Ctl));
    let client = mine.root();
    for cmd in [0, 0x2080_0000, 0x0000_8000] {
        assert_eq!(other.control_raw(client, client, cmd, &mut []), Status::OK);
        assert_eq!(other.control_raw(0xdead_beef, 1, cmd, &mut []), Status::OK);
    }
    assert_eq!(other.attached(client), Status::INVALID_CLIENT);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_passed_descriptor_carries_the_identity_of_its_open_file() {
    let device = Device::start(&[]);
    let ctl = device.open(Node::Ctl);
    let client = ctl.root();
    let (to, from) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let passed = File {
        fd: pass(&to, &from, &ctl),
        node: Node::Ctl,
    };
    assert_eq!(passed.attached(client), Status::OK);
    drop(ctl);
    assert_eq!(
        passed.attached(client),
        Status::OK,
        "the passed name keeps the file open"
    );
    drop(passed);
    device.wait_history("the client goes with the last name", |records| {
        records
            .iter()
            .find(|r| r.kind == Kind::ClientDown && r.client == client)
            .map(|_| ())
    });
}

fn pass(
    to: &std::os::unix::net::UnixDatagram,
    from: &std::os::unix::net::UnixDatagram,
    file: &File,
) -> std::os::fd::OwnedFd {
    use std::os::fd::{AsRawFd, FromRawFd};
    #[repr(C, align(8))]
    struct Space([u8; 64]);
    let mut space = Space([0; 64]);
    let mut byte = [1_u8];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: an all-zero msghdr is valid; the control space has room for one descriptor.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut space).cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let control = libc::CMSG_FIRSTHDR(&raw const message);
        (*control).cmsg_level = libc::SOL_SOCKET;
        (*control).cmsg_type = libc::SCM_RIGHTS;
        (*control).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(control)
            .cast::<i32>()
            .write_unaligned(file.raw());
        assert_eq!(libc::sendmsg(to.as_raw_fd(), &raw const message, 0), 1);
        message.msg_controllen = 64;
        assert_eq!(libc::recvmsg(from.as_raw_fd(), &raw mut message, 0), 1);
        let control = libc::CMSG_FIRSTHDR(&raw const message);
        std::os::fd::OwnedFd::from_raw_fd(libc::CMSG_DATA(control).cast::<i32>().read_unaligned())
    }
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_fork_child_speaks_on_the_inherited_file_at_the_same_time_as_its_parent() {
    let device = Device::start(&[]);
    let ctl = device.open(Node::Ctl);
    let client = ctl.root();
    // SAFETY: the child makes async-signal-safe calls only, which the shim's code is made of.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut status = 0;
        for _ in 0..200 {
            let mut p = rm::Nvos54 {
                h_client: client,
                h_object: client,
                cmd: rm::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS,
                ..Default::default()
            };
            let mut ids = rm::AttachedIds {
                gpu_ids: [0; rm::MAX_GPUS],
            };
            (p.params, p.params_size) = (&raw mut ids as u64, 128);
            let request = rm::request(rm::NV_ESC_RM_CONTROL, 32);
            // SAFETY: the struct of the request.
            let rc = unsafe {
                calls::ioctl(
                    ctl.raw(),
                    Node::Ctl,
                    request,
                    &raw mut p as u64,
                    Entry::default(),
                )
            };
            status |= i32::from(rc.is_err() || p.status != 0);
        }
        // SAFETY: ends the child without running anything of the test harness.
        unsafe { libc::_exit(status) };
    }
    for _ in 0..200 {
        assert_eq!(ctl.attached(client), Status::OK);
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn every_call_that_needs_the_control_file_fails_on_a_gpu_file() {
    let device = Device::start(&[]);
    let gpu = device.open(Node::Gpu(0));
    for (escape, size) in [
        (rm::NV_ESC_RM_ALLOC, 48),
        (rm::NV_ESC_RM_FREE, 16),
        (rm::NV_ESC_RM_CONTROL, 32),
        (rm::NV_ESC_RM_DUP_OBJECT, 28),
        (rm::NV_ESC_CARD_INFO, 72),
    ] {
        let mut params = [0_u8; 128];
        assert_eq!(
            gpu.ioctl(rm::request(escape, size), &mut params),
            Err(libc::EINVAL)
        );
    }
    for (escape, size) in [
        (rm::NV_ESC_CHECK_VERSION_STR, 72),
        (rm::NV_ESC_SYS_PARAMS, 8),
    ] {
        let request = rm::request(escape, size);
        assert_eq!(gpu.ioctl(request, &mut [0_u8; 72]), Err(libc::EINVAL));
    }
    let ctl = device.open(Node::Ctl);
    let mut register = rm::RegisterFd { ctl_fd: ctl.raw() };
    assert_eq!(
        ctl.escape(rm::NV_ESC_REGISTER_FD, &mut register),
        Err(libc::EINVAL)
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_wrong_size_in_the_request_number_fails_the_call_itself() {
    let device = Device::start(&[]);
    let ctl = device.open(Node::Ctl);
    for (escape, size) in [
        (rm::NV_ESC_RM_ALLOC, 40),
        (rm::NV_ESC_RM_FREE, 12),
        (rm::NV_ESC_RM_CONTROL, 40),
    ] {
        let mut params = [0_u8; 64];
        assert_eq!(
            ctl.ioctl(rm::request(escape, size), &mut params),
            Err(libc::EINVAL)
        );
    }
    assert_eq!(
        ctl.ioctl(rm::request(0x7f, 8), &mut [0_u8; 8]),
        Err(libc::EINVAL)
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_gpu_file_is_registered_once_and_only_with_a_control_file() {
    let device = Device::start(&[]);
    let (ctl, gpu) = (device.open(Node::Ctl), device.open(Node::Gpu(0)));
    let register = |fd| gpu.escape(rm::NV_ESC_REGISTER_FD, &mut rm::RegisterFd { ctl_fd: fd });
    assert_eq!(register(-1), Err(libc::EINVAL));
    assert_eq!(register(gpu.raw()), Err(libc::EINVAL));
    assert_eq!(register(ctl.raw()), Ok(()));
    assert_eq!(register(ctl.raw()), Err(libc::EINVAL));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn handles_parents_and_classes_are_checked_in_the_drivers_words() {
    let device = Device::start(&[]);
    let side = Side::new(&device, 0);
    let (ctl, client) = (&side.ctl, side.client);
    let mut sub = rm::Nv2080Alloc::default();
    let duplicate = ctl.alloc(
        client,
        side.device,
        side.subdevice,
        class::NV20_SUBDEVICE_0,
        &mut sub,
    );
    assert_eq!(duplicate, Err(Status::INSERT_DUPLICATE_NAME));
    let orphan = ctl.alloc(client, 0x1234, 0, class::NV20_SUBDEVICE_0, &mut sub);
    assert_eq!(orphan, Err(Status::OBJECT_NOT_FOUND));
    let misplaced = ctl.alloc(client, client, 0, class::NV20_SUBDEVICE_0, &mut sub);
    assert_eq!(misplaced, Err(Status::INVALID_OBJECT_PARENT));
    let unknown = ctl.alloc(client, side.device, 0, 0x1234_5678, &mut ());
    assert_eq!(unknown, Err(Status::INVALID_CLASS));
    let other_arch = ctl.alloc(client, side.device, 0, 0xc56f, &mut [0_u8; 368]);
    assert_eq!(other_arch, Err(Status::INVALID_CLASS));
    // Before the client is looked at.
    let unknown = ctl.alloc(0xdead_beef, side.device, 0, 0x1234_5678, &mut ());
    assert_eq!(unknown, Err(Status::INVALID_CLASS));
    // What names nothing is as good as freed.
    assert_eq!(ctl.free(client, 0x1234), Status::OK);
    assert_eq!(ctl.free(0xdead_beef, 0x1234), Status::INVALID_CLIENT);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn the_stated_size_of_an_allocation_is_not_looked_at_and_only_some_parameters_may_be_left_out() {
    let device = Device::start(&[]);
    let driver = facts::of("580.95.05").unwrap();
    let side = Side::new(&device, 0);
    let below = |class: u32| match driver.classes[&class] {
        found if found.fits_below("RmClientResource") => side.client,
        found if found.fits_below("Device") => side.device,
        _ => side.subdevice,
    };
    let alloc = |class: u32, at: u64, stated: u32| {
        let mut p = rm::Nvos64 {
            h_root: side.client,
            h_object_parent: below(class),
            h_class: class,
            p_alloc_parms: at,
            params_size: stated,
            ..Default::default()
        };
        side.ctl.escape(rm::NV_ESC_RM_ALLOC, &mut p).unwrap();
        result(p.status)
    };
    let left_out = [
        class::NV01_DEVICE_0,
        class::NV20_SUBDEVICE_0,
        class::NV_CONFIDENTIAL_COMPUTE,
        class::HOPPER_USERMODE_A,
        class::NV50_MEMORY_VIRTUAL,
        class::GT200_DEBUGGER,
        class::KEPLER_CHANNEL_GROUP_A,
        class::FERMI_VASPACE_A,
        class::NV01_MEMORY_SYSTEM,
    ];
    for class in left_out {
        let expected = match driver.classes[&class].required {
            Required::Required => Err(Status::INVALID_ARGUMENT),
            Required::Optional | Required::None => Ok(()),
        };
        assert_eq!(alloc(class, 0, 0), expected, "{class:#x}");
        assert_eq!(alloc(class, 0, 77), expected, "{class:#x}");
    }
    let mut group = rm::ChannelGroupAlloc::default();
    for stated in [0, 1, 20, 4096] {
        let at = &raw mut group as u64;
        assert_eq!(alloc(class::KEPLER_CHANNEL_GROUP_A, at, stated), Ok(()));
    }
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn memory_and_address_spaces_may_hang_below_a_subdevice() {
    let device = Device::start(&[]);
    let side = Side::new(&device, 0);
    let alloc = |class, params: &mut [u8; 128]| {
        side.ctl
            .alloc(side.client, side.subdevice, 0, class, params)
    };
    let mut space = [0_u8; 128];
    assert!(alloc(class::FERMI_VASPACE_A, &mut space).is_ok());
    let mut memory = [0_u8; 128];
    memory[64..72].copy_from_slice(&4096_u64.to_ne_bytes());
    assert!(alloc(class::NV01_MEMORY_LOCAL_USER, &mut memory).is_ok());
    let system = alloc(class::NV01_MEMORY_SYSTEM, &mut memory);
    assert_eq!(system, Err(Status::INVALID_OBJECT_PARENT));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn controls_are_checked_for_existence_then_size_then_owner_then_object() {
    let device = Device::start(&[]);
    let side = Side::new(&device, 0);
    let (ctl, client) = (&side.ctl, side.client);
    let driver = facts::of("580.95.05").unwrap();
    let asked = rm::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS;
    assert_eq!(driver.controls[&asked].cache, Cache::No);
    let whole = &mut vec![0; driver.controls[&asked].size][..];
    assert_eq!(
        ctl.control_raw(0xdead_beef, 0xdead_beef, asked, &mut []),
        Status::INVALID_CLIENT
    );
    // A wrong size tells that a client exists, not whose it is.
    for file in [ctl, &device.open(Node::Ctl)] {
        for wrong in [&mut [][..], &mut [0; 8][..]] {
            assert_eq!(
                file.control_raw(client, client, asked, wrong),
                Status::INVALID_ARGUMENT
            );
        }
    }
    assert_eq!(
        ctl.control_raw(client, 0x77, asked, whole),
        Status::OBJECT_NOT_FOUND
    );
    assert_eq!(
        ctl.control_raw(client, client, 0x0099_0101, &mut []),
        Status::NOT_SUPPORTED
    );
    assert_eq!(
        ctl.control_raw(client, side.subdevice, asked, whole),
        Status::NOT_SUPPORTED
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn the_version_is_answered_for_every_client_that_exists_once_anybody_has_asked() {
    for version in ["535.54.03", "580.95.05", "595.45.04"] {
        let driver = facts::of(version).unwrap();
        let asked = rm::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION;
        let carried = match driver.controls[&asked].state {
            facts::State::Converted(to) => to,
            other => panic!("{other:?}"),
        };
        assert_eq!(driver.controls[&carried].cache, Cache::ByCommand);
        let device = Device::start(&["--driver", version]);
        let (mine, other) = (device.open(Node::Ctl), device.open(Node::Ctl));
        let (client, missing) = (mine.root(), 0xdead_beef);
        // Cold, it is a control like any other.
        for foreign in [client, missing] {
            assert_eq!(other.build_version(foreign).0, Status::INVALID_CLIENT);
        }
        let whole = &mut vec![0; driver.controls[&asked].size][..];
        let object = mine.control_raw(client, 0x77, asked, whole);
        assert_eq!(object, Status::OBJECT_NOT_FOUND);
        // No size is compared; what is copied last has to be there.
        let unread = mine.control_raw(client, client, asked, &mut []);
        assert_eq!(unread, Status::INVALID_ARGUMENT);
        // That was enough.
        for file in [&mine, &other] {
            let answer = file.build_version(client);
            assert_eq!(answer, (Status::OK, version.to_owned()));
            assert_eq!(file.control_raw(client, 0x77, asked, whole), Status::OK);
            assert_eq!(file.build_version(missing).0, Status::INVALID_CLIENT);
        }
        assert_eq!(other.attached(client), Status::INVALID_CLIENT);
        let mut whole = vec![0; driver.controls[&carried].size];
        let direct = other.control_raw(client, 0x77, carried, &mut whole);
        assert_eq!(direct, Status::OK);
        let at = driver.field(driver.controls[&carried].params, "driverVersionBuffer");
        assert!(whole[at.unwrap().offset..].starts_with(version.as_bytes()));
    }
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_gpu_nobody_attached_has_no_device_and_the_instance_is_not_the_minor() {
    let device = Device::start(&["--gpus", "2"]);
    let ctl = device.open(Node::Ctl);
    let client = ctl.root();
    let mut p = rm::Nv0080Alloc {
        device_id: 0,
        ..Default::default()
    };
    let alone = ctl.alloc(client, client, 0, class::NV01_DEVICE_0, &mut p);
    assert_eq!(alone, Err(Status::INVALID_DEVICE));
    let mut attach = rm::AttachIds {
        gpu_ids: [rm::INVALID_GPU_ID; 32],
        failed_id: 0,
    };
    attach.gpu_ids[0] = 0xffff;
    let cmd = rm::NV0000_CTRL_CMD_GPU_ATTACH_IDS;
    assert_eq!(ctl.control(client, client, cmd, &mut attach), Status::OK);
    assert!(
        ctl.alloc(client, client, 0, class::NV01_DEVICE_0, &mut p)
            .is_ok()
    );
    let (first, second) = (Side::new(&device, 0), Side::new(&device, 1));
    assert_ne!(first.uuid, second.uuid);
    let mut info = rm::IdInfoV2 {
        gpu_id: 0x100,
        ..Default::default()
    };
    let cmd = rm::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
    assert_eq!(ctl.control(client, client, cmd, &mut info), Status::OK);
    assert_eq!(info.device_instance, 1);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn scheduling_waits_for_uvm_to_know_every_channel() {
    let device = Device::start(&[]);
    let mut job = Job::unscheduled(&device, 0, 2, Branch::B580);
    assert_eq!(job.schedule(3), Status::INVALID_STATE);
    job.register(job.channels[0].handle).unwrap();
    assert_eq!(job.schedule(3), Status::INVALID_STATE);
    job.register(job.channels[1].handle).unwrap();
    assert_eq!(
        job.register(job.channels[1].handle),
        Err(Status::INVALID_STATE)
    );
    assert_eq!(job.schedule(2), Status::INVALID_ARGUMENT);
    assert_eq!(job.schedule(3), Status::OK);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn uvm_registers_no_channel_of_a_client_on_another_file() {
    let device = Device::start(&[]);
    let job = Job::unscheduled(&device, 0, 1, Branch::B580);
    let stranger = device.open(Node::Ctl);
    let mut p = uvm::UvmRegisterChannel {
        uuid: job.side.uuid,
        rm_ctrl_fd: stranger.raw(),
        h_client: job.side.client,
        h_channel: job.channels[0].handle,
        ..Default::default()
    };
    job.uvm.ioctl(uvm::UVM_REGISTER_CHANNEL, &mut p).unwrap();
    assert_eq!(result(p.rm_status), Err(Status::INVALID_CLIENT));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn every_branch_has_its_own_layouts() {
    for (version, branch) in [
        ("535.54.03", Branch::B535First),
        ("535.129.03", Branch::B535),
        ("550.163.01", Branch::B550),
        ("570.211.01", Branch::B570),
        ("575.57.08", Branch::B575),
        ("580.95.05", Branch::B580),
        ("590.48.01", Branch::B590),
        ("595.45.04", Branch::B595),
    ] {
        let device = Device::start(&["--driver", version]);
        let job = Job::of_branch(&device, 0, 2, branch);
        assert_eq!(job.side.ctl.build_version(job.side.client).1, version);
        let wrong = if branch.schedule_size() == 3 { 2 } else { 3 };
        assert_eq!(job.schedule(wrong), Status::INVALID_ARGUMENT);
        let end = job.channels[1].spin(1_000, 5);
        job.channels[1].wait(end);
    }
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn freeing_an_object_frees_its_subtree_and_what_depends_on_it() {
    let device = Device::start(&[]);
    let job = Job::new(&device, 0, 3);
    let (ctl, client) = (&job.side.ctl, job.side.client);
    let pair = job.pairs()[0];
    assert_eq!(ctl.free(client, job.tsg), Status::OK);
    assert!(device.control().channels().unwrap().is_empty());
    let gone = ctl.disable(client, job.side.subdevice, true, &[pair]);
    assert_eq!(gone, Status::INVALID_CHANNEL);
    assert_eq!(ctl.free(client, client), Status::OK);
    assert_eq!(ctl.attached(client), Status::INVALID_CLIENT);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn the_xfer_form_of_an_ioctl_is_the_ioctl_it_carries() {
    let device = Device::start(&[]);
    let ctl = device.open(Node::Ctl);
    let client = ctl.root();
    let mut ids = rm::AttachedIds {
        gpu_ids: [0; rm::MAX_GPUS],
    };
    let mut inner = rm::Nvos54 {
        h_client: client,
        h_object: client,
        cmd: rm::NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS,
        params: &raw mut ids as u64,
        params_size: 128,
        status: 0xffff,
        ..Default::default()
    };
    let mut outer = rm::Xfer {
        cmd: rm::NV_ESC_RM_CONTROL,
        size: 32,
        ptr: &raw mut inner as u64,
    };
    ctl.escape(rm::NV_ESC_IOCTL_XFER_CMD, &mut outer).unwrap();
    assert_eq!(inner.status, 0);
    assert_eq!(ids.gpu_ids[0], rm::INVALID_GPU_ID);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn the_version_check_recognises_its_own_version_and_answers_a_query() {
    let device = Device::start(&["--driver", "570.211.01"]);
    let ctl = device.open(Node::Ctl);
    let ask = |cmd: u32, text: &[u8]| {
        let mut p = rm::RmApiVersion {
            cmd,
            reply: 0,
            version: [0; 64],
        };
        p.version[..text.len()].copy_from_slice(text);
        let rc = ctl.escape(rm::NV_ESC_CHECK_VERSION_STR, &mut p);
        (
            rc,
            p.reply,
            String::from_utf8_lossy(p.version.split(|b| *b == 0).next().unwrap()).into_owned(),
        )
    };
    assert_eq!(ask(0, b"570.211.01"), (Ok(()), 1, "570.211.01".into()));
    assert_eq!(ask(u32::from(b'2'), b""), (Ok(()), 1, "570.211.01".into()));
    assert_eq!(ask(0, b"580.95.05").0, Err(libc::EINVAL));
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn memory_is_duplicated_inside_one_process_and_lives_as_long_as_a_name() {
    let device = Device::start(&["--memory-mib", "4"]);
    let side = Side::new(&device, 0);
    let (ctl, client) = (&side.ctl, side.client);
    let alloc = || {
        let mut p = rm::MemoryAlloc {
            size: 4 << 20,
            ..Default::default()
        };
        ctl.alloc(
            client,
            side.device,
            0,
            class::NV01_MEMORY_LOCAL_USER,
            &mut p,
        )
    };
    let memory = alloc().unwrap();
    assert_eq!(alloc(), Err(Status::NO_MEMORY));
    let mut p = rm::Nvos55 {
        h_client: client,
        h_parent: side.device,
        h_client_src: client,
        h_object_src: memory,
        ..Default::default()
    };
    ctl.escape(rm::NV_ESC_RM_DUP_OBJECT, &mut p).unwrap();
    assert_eq!(p.status, 0);
    assert_eq!(ctl.free(client, memory), Status::OK);
    assert_eq!(alloc(), Err(Status::NO_MEMORY));
    assert_eq!(ctl.free(client, p.h_object), Status::OK);
    assert!(alloc().is_ok());
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn one_open_gpu_file_carries_one_announced_mapping() {
    let device = Device::start(&[]);
    let side = Side::new(&device, 0);
    let mut p = rm::MemoryAlloc {
        size: 4096,
        ..Default::default()
    };
    let class = class::NV01_MEMORY_SYSTEM;
    let memory = side
        .ctl
        .alloc(side.client, side.device, 0, class, &mut p)
        .unwrap();
    let file = device.open(Node::Gpu(0));
    let announce = |length| {
        let mut p = rm::Nvos33WithFd {
            h_client: side.client,
            h_memory: memory,
            length,
            fd: file.raw(),
            ..Default::default()
        };
        side.ctl.escape(rm::NV_ESC_RM_MAP_MEMORY, &mut p).unwrap();
        Status(p.status)
    };
    assert_eq!(announce(8192), Status::INVALID_ARGUMENT);
    assert_eq!(announce(4096), Status::OK);
    assert_eq!(announce(4096), Status::STATE_IN_USE);
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn an_escape_that_a_version_lacks_is_refused() {
    let request = rm::request(rm::NV_ESC_WAIT_OPEN_COMPLETE, 8);
    for version in ["535.288.01", "545.29.06", "550.54.14", "595.45.04"] {
        let device = Device::start(&["--driver", version]);
        let known = facts::of(version).unwrap();
        let known = known.escape("NV_ESC_WAIT_OPEN_COMPLETE").is_some();
        let answered = device.open(Node::Ctl).ioctl(request, &mut [0_u8; 8]);
        let expected = if known { Ok(()) } else { Err(libc::EINVAL) };
        assert_eq!(answered, expected, "{version}");
    }
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn every_control_of_every_version_has_the_size_that_it_compares() {
    for version in facts::facts().tags() {
        let device = Device::start(&["--driver", version]);
        let driver = facts::of(version).unwrap();
        let ctl = device.open(Node::Ctl);
        let client = ctl.root();
        for (cmd, control) in &driver.controls {
            if control.state != facts::State::Exported {
                continue;
            }
            // The size is looked at before the object is, so a wrong one hides that there is none.
            let mut params = vec![0; control.size + 1];
            let wrong = ctl.control_raw(client, 0x77, *cmd, &mut params);
            let right = ctl.control_raw(client, 0x77, *cmd, &mut params[..control.size]);
            if control.cache != Cache::ByCommand {
                let (short, none) = (Status::INVALID_ARGUMENT, Status::OBJECT_NOT_FOUND);
                assert_eq!((wrong, right), (short, none), "{version} {cmd:#x}");
            }
        }
    }
}
