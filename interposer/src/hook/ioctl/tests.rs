//! What the observer makes of the bytes of an ioctl, including bytes that the virtual GPU's driver never makes.

use super::*;
use tidegate_abi::class::{
    FERMI_CONTEXT_SHARE_A, HOPPER_CHANNEL_GPFIFO_A, KEPLER_CHANNEL_GROUP_A, NV01_DEVICE_0,
};
use tidegate_abi::rm::{Branch, Nvos21, Nvos55, Nvos64, Xfer};
use tidegate_core::rm::Params;

const KNOWN: Layout = Layout::Known(Branch::B580);

/// What is understood of `parameters` under `escape`, directly and inside `NV_ESC_IOCTL_XFER_CMD`.
fn understood<T: Copy>(escape: u32, mut parameters: T) -> Option<Call> {
    let argument = (&raw mut parameters).cast::<c_void>();
    let mut xfer = Xfer {
        cmd: escape,
        size: u32::try_from(size_of::<T>()).expect("small"),
        ptr: argument as u64,
    };
    // SAFETY: both arguments are live and of the size that their request says.
    unsafe {
        let direct = Request::of(rm::request(escape, size_of::<T>()), argument);
        let wrapped = Request::of(
            rm::request(rm::NV_ESC_IOCTL_XFER_CMD, size_of::<Xfer>()),
            (&raw mut xfer).cast(),
        );
        let [direct, wrapped] =
            [direct, wrapped].map(|call| decode(KNOWN, &call.expect("a driver's")));
        assert_eq!(direct, wrapped, "the wrapper changes nothing");
        direct
    }
}

fn alloc<T>(class: u32, parameters: &mut T) -> Nvos64 {
    Nvos64 {
        h_root: 1,
        h_object_parent: 2,
        h_object_new: 3,
        h_class: class,
        p_alloc_parms: core::ptr::from_mut(parameters) as u64,
        ..Nvos64::default()
    }
}

fn params(call: Option<Call>) -> Params {
    match call {
        Some(Call::Alloc {
            client: 1,
            parent: 2,
            handle: 3,
            params,
            ..
        }) => params,
        other => panic!("{other:?}"),
    }
}

/// P-GATE-12: every object on the way to a channel is understood.
#[test]
fn every_object_on_the_way_to_a_channel_is_understood_in_both_sizes_of_alloc() {
    let mut device = rm::Nv0080Alloc {
        device_id: 5,
        ..Default::default()
    };
    let mut group = rm::ChannelGroupAlloc {
        engine_type: 1,
        h_va_space: 77,
        ..Default::default()
    };
    let mut share = rm::CtxShareAlloc {
        h_va_space: 77,
        ..Default::default()
    };
    let mut channel = rm::ChannelAlloc {
        engine_type: 9,
        h_va_space: 77,
        h_context_share: 78,
        ..Default::default()
    };
    let calls = [
        alloc(NV01_DEVICE_0, &mut device),
        alloc(KEPLER_CHANNEL_GROUP_A, &mut group),
        alloc(FERMI_CONTEXT_SHARE_A, &mut share),
        alloc(HOPPER_CHANNEL_GPFIFO_A, &mut channel),
    ];
    let meant = [
        Params::Device { instance: 5 },
        Params::Tsg {
            engine_type: 1,
            va_space: 77,
        },
        Params::ContextShare { va_space: 77 },
        Params::Channel {
            engine_type: 9,
            va_space: 77,
            context_share: 78,
        },
    ];
    for (long, meant) in calls.into_iter().zip(meant) {
        let short = Nvos21 {
            h_root: long.h_root,
            h_object_parent: long.h_object_parent,
            h_object_new: long.h_object_new,
            h_class: long.h_class,
            p_alloc_parms: long.p_alloc_parms,
            ..Nvos21::default()
        };
        assert_eq!(params(understood(rm::NV_ESC_RM_ALLOC, long)), meant);
        assert_eq!(params(understood(rm::NV_ESC_RM_ALLOC, short)), meant);
    }
}

#[test]
fn an_alloc_without_parameters_or_of_another_class_has_none() {
    let mut unread = [0_u8; 1];
    let other = alloc(0xcafe, &mut unread);
    assert_eq!(params(understood(rm::NV_ESC_RM_ALLOC, other)), Params::None);
    let bare = Nvos64 {
        p_alloc_parms: 0,
        ..alloc(HOPPER_CHANNEL_GPFIFO_A, &mut unread)
    };
    assert_eq!(params(understood(rm::NV_ESC_RM_ALLOC, bare)), Params::None);
}

#[test]
fn duplicates_and_binds_are_understood() {
    let dup = Nvos55 {
        h_client: 1,
        h_parent: 2,
        h_object: 3,
        h_client_src: 4,
        h_object_src: 5,
        ..Nvos55::default()
    };
    let duplicate = Call::Dup {
        client: 1,
        parent: 2,
        handle: 3,
        client_src: 4,
        handle_src: 5,
    };
    assert_eq!(understood(rm::NV_ESC_RM_DUP_OBJECT, dup), Some(duplicate));
    let mut engine_type = 9_u32;
    for cmd in [
        rm::NVA06F_CTRL_CMD_BIND,
        rm::NVC36F_CTRL_CMD_BIND,
        rm::NVA06C_CTRL_CMD_BIND,
    ] {
        let bind = Nvos54 {
            h_client: 1,
            h_object: 3,
            cmd,
            params: (&raw mut engine_type) as u64,
            params_size: 4,
            ..Nvos54::default()
        };
        let bound = Call::Bind {
            client: 1,
            channel: 3,
            engine_type: 9,
        };
        assert_eq!(understood(rm::NV_ESC_RM_CONTROL, bind), Some(bound));
    }
}

/// Bytes at whose end nothing is mapped.
fn at_the_end(bytes: &[u8]) -> u64 {
    // SAFETY: fresh pages of the kernel's choice, of which the second becomes unreadable.
    let page = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = libc::mmap(core::ptr::null_mut(), 8192, protection, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(pages.add(4096), 4096, libc::PROT_NONE), 0);
        pages.cast::<u8>()
    };
    // SAFETY: the first page is writable and has room for them.
    unsafe {
        let at = page.add(4096 - bytes.len());
        at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        at as u64
    }
}

#[test]
fn nothing_is_read_behind_what_the_oldest_driver_reads_whatever_size_is_stated() {
    // The channel parameters of 535.54.03, 304 bytes of them, with engine type, VA space and share.
    let mut bytes = [0_u8; 304];
    for (at, value) in [(128, 9_u32), (28, 77), (24, 78)] {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    for stated in [0, 304, 368, u32::MAX] {
        let mut nothing = ();
        let call = Nvos64 {
            p_alloc_parms: at_the_end(&bytes),
            params_size: stated,
            ..alloc(HOPPER_CHANNEL_GPFIFO_A, &mut nothing)
        };
        let channel = Params::Channel {
            engine_type: 9,
            va_space: 77,
            context_share: 78,
        };
        assert_eq!(params(understood(rm::NV_ESC_RM_ALLOC, call)), channel);
    }
}

#[test]
fn a_copy_ends_where_nothing_is_mapped() {
    let at = at_the_end(&[7; 304]);
    let mut copy = [0; 544];
    let copied = sys::copy_own(at, &mut copy);
    assert!(copied == 304 || copied == 0, "{copied}");
    assert!(copy[..copied].iter().all(|byte| *byte == 7));
    assert_eq!(sys::copy_own(0, &mut copy), 0);
}

#[test]
fn what_failed_or_is_too_short_or_of_no_interest_changes_nothing() {
    let mut unread = [0_u8; 1];
    let failed = Nvos64 {
        status: 0x1f,
        ..alloc(0xcafe, &mut unread)
    };
    assert_eq!(understood(rm::NV_ESC_RM_ALLOC, failed), None);
    let failed = Nvos55 {
        status: 0x1f,
        ..Nvos55::default()
    };
    assert_eq!(understood(rm::NV_ESC_RM_DUP_OBJECT, failed), None);
    let engine_type = 9_u32;
    let bind = |status, params_size| Nvos54 {
        cmd: rm::NVA06F_CTRL_CMD_BIND,
        params: (&raw const engine_type) as u64,
        params_size,
        status,
        ..Nvos54::default()
    };
    for wrong in [bind(0x1f, 4), bind(0, 3)] {
        assert_eq!(understood(rm::NV_ESC_RM_CONTROL, wrong), None);
    }
    // The right number with another size is another driver's structure.
    assert_eq!(understood(rm::NV_ESC_RM_ALLOC, [0_u8; 20]), None);
    assert_eq!(understood(rm::NV_ESC_RM_SHARE, [0_u8; 32]), None);
}

#[test]
fn a_wrapped_ioctl_without_a_structure_is_none() {
    let mut xfer = Xfer {
        cmd: rm::NV_ESC_RM_ALLOC,
        size: 48,
        ptr: 0,
    };
    let request = rm::request(rm::NV_ESC_IOCTL_XFER_CMD, size_of::<Xfer>());
    // SAFETY: the wrapper is live and of the size that the request says.
    assert!(unsafe { Request::of(request, (&raw mut xfer).cast()) }.is_none());
}

#[test]
fn a_channel_registered_with_uvm_is_known_by_its_gpu_unless_that_failed() {
    let registered = uvm::UvmRegisterChannel {
        uuid: [7; 16],
        h_client: 1,
        h_channel: 3,
        ..Default::default()
    };
    let meant = Call::UvmRegister {
        client: 1,
        channel: 3,
        uuid: [7; 16],
    };
    let understood = |register: &uvm::UvmRegisterChannel| {
        let at = core::ptr::from_ref(register) as u64;
        // SAFETY: live, plain integers, of this size.
        uvm_register(unsafe { bytes(at, size_of::<uvm::UvmRegisterChannel>()) })
    };
    assert_eq!(understood(&registered), Some(meant));
    let failed = uvm::UvmRegisterChannel {
        rm_status: 0x1f,
        ..registered
    };
    assert_eq!(understood(&failed), None);
}
