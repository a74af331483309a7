//! Decodes the bytes of one ioctl into a [`Call`].
//!
//! The input is byte slices, because the bytes come from two places: the memory of the process that makes the call, and
//! a trace that is read elsewhere. Only calls that succeeded are decoded.
//!
//! On a branch whose layouts are unknown ([`Layout::ByAnswers`]) no field is read that any branch has moved. The
//! headers of the calls say which parent and handle a call names. The engine objects below a channel, and what the
//! channel is bound to, say what it feeds.

use super::{Call, Params};
use core::mem::{offset_of, size_of};
use tidegate_abi::class;
use tidegate_abi::rm::{
    self, ChannelAlloc, ChannelGroupAlloc, CtxShareAlloc, Layout, Nv0080Alloc, Nvos21, Nvos54,
    Nvos55, Nvos64,
};
use tidegate_abi::uvm::UvmRegisterChannel;

/// Where an ioctl's nested parameters lie, as its argument says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nested {
    /// Address in the calling process; never 0.
    pub address: u64,
    /// Bytes that the caller says are there. The driver never looks at it for an allocation, so it
    /// proves nothing about what can be read.
    pub said: usize,
    /// Bytes [`decode`] looks at: fewer than any version of the driver reads there.
    pub needed: usize,
    /// Whether RM says that it has read them.
    pub succeeded: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// Bytes of a field that is read here; they are all handles and numbers of four.
const WORD: usize = 4;

/// Bytes of a class' parameters up to the last field that matters here. What lies behind differs between
/// versions of the driver, and with it what its caller has there at all.
#[must_use]
pub fn needed(layout: Layout, class: u32) -> usize {
    WORD + match (class, layout) {
        (class::NV01_DEVICE_0, _) => offset_of!(Nv0080Alloc, device_id),
        (_, Layout::ByAnswers) => return 0,
        (class::KEPLER_CHANNEL_GROUP_A, _) => offset_of!(ChannelGroupAlloc, engine_type),
        (class::FERMI_CONTEXT_SHARE_A, _) => offset_of!(CtxShareAlloc, h_va_space),
        (_, Layout::Known(branch)) if class::is_gpfifo(class) => branch.channel_engine_at(),
        _ => return 0,
    }
}

/// Whether [`decode`] reads other parameters of a class where the layouts are known than where they are not.
#[must_use]
pub fn depends_on_layout(escape: u32, argument: &[u8]) -> bool {
    let sized = [size_of::<Nvos64>(), size_of::<Nvos21>()].contains(&argument.len());
    // Both sizes begin alike.
    let class = word(argument, offset_of!(Nvos64, h_class));
    escape == rm::NV_ESC_RM_ALLOC
        && sized
        && class.is_some_and(|class| {
            class::is_gpfifo(class)
                || [class::KEPLER_CHANNEL_GROUP_A, class::FERMI_CONTEXT_SHARE_A].contains(&class)
        })
}

/// Bytes of a bind's parameters, an engine type.
const ENGINE_TYPE: usize = WORD;

/// Whether a control says which engine a channel runs on, with parameters of a size to say it. The driver takes
/// no other size, so a longer form is one of a branch that has moved it.
fn binds(layout: Layout, control: &[u8]) -> Option<bool> {
    let size = word(control, offset_of!(Nvos54, params_size))?;
    let command = word(control, offset_of!(Nvos54, cmd))?;
    let binds = [
        rm::NVA06F_CTRL_CMD_BIND,
        rm::NVC36F_CTRL_CMD_BIND,
        rm::NVA06C_CTRL_CMD_BIND,
    ];
    let says = match layout {
        Layout::Known(_) => size as usize >= ENGINE_TYPE,
        Layout::ByAnswers => size as usize == ENGINE_TYPE,
    };
    Some(binds.contains(&command) && says)
}

/// The nested parameters of an allocation or a control.
#[must_use]
pub fn nested(layout: Layout, escape: u32, argument: &[u8]) -> Option<Nested> {
    let (address, said, needed, status) = match (escape, argument.len()) {
        (rm::NV_ESC_RM_ALLOC, size) if size == size_of::<Nvos64>() => (
            long(argument, offset_of!(Nvos64, p_alloc_parms))?,
            word(argument, offset_of!(Nvos64, params_size))?,
            needed(layout, word(argument, offset_of!(Nvos64, h_class))?),
            offset_of!(Nvos64, status),
        ),
        (rm::NV_ESC_RM_ALLOC, size) if size == size_of::<Nvos21>() => (
            long(argument, offset_of!(Nvos21, p_alloc_parms))?,
            word(argument, offset_of!(Nvos21, params_size))?,
            needed(layout, word(argument, offset_of!(Nvos21, h_class))?),
            offset_of!(Nvos21, status),
        ),
        (rm::NV_ESC_RM_CONTROL, size) if size == size_of::<Nvos54>() => (
            long(argument, offset_of!(Nvos54, params))?,
            word(argument, offset_of!(Nvos54, params_size))?,
            if binds(layout, argument)? {
                ENGINE_TYPE
            } else {
                0
            },
            offset_of!(Nvos54, status),
        ),
        _ => return None,
    };
    (address != 0).then_some(Nested {
        address,
        said: said as usize,
        needed,
        succeeded: succeeded(argument, status).is_some(),
    })
}

/// The call, if it succeeded and bears on the object graph. `parameters` are the nested ones, at
/// least [`Nested::needed`] bytes of them, or nothing.
#[must_use]
pub fn decode(layout: Layout, escape: u32, argument: &[u8], parameters: &[u8]) -> Option<Call> {
    match (escape, argument.len()) {
        (rm::NV_ESC_RM_ALLOC, size) if size == size_of::<Nvos64>() => {
            allocated(layout, argument, offset_of!(Nvos64, status), parameters)
        }
        (rm::NV_ESC_RM_ALLOC, size) if size == size_of::<Nvos21>() => {
            allocated(layout, argument, offset_of!(Nvos21, status), parameters)
        }
        (rm::NV_ESC_RM_DUP_OBJECT, size) if size == size_of::<Nvos55>() => {
            succeeded(argument, offset_of!(Nvos55, status))?;
            Some(Call::Dup {
                client: word(argument, offset_of!(Nvos55, h_client))?,
                parent: word(argument, offset_of!(Nvos55, h_parent))?,
                handle: word(argument, offset_of!(Nvos55, h_object))?,
                client_src: word(argument, offset_of!(Nvos55, h_client_src))?,
                handle_src: word(argument, offset_of!(Nvos55, h_object_src))?,
            })
        }
        (rm::NV_ESC_RM_CONTROL, size) if size == size_of::<Nvos54>() => {
            succeeded(argument, offset_of!(Nvos54, status))?;
            if !binds(layout, argument)? {
                return None;
            }
            Some(Call::Bind {
                client: word(argument, offset_of!(Nvos54, h_client))?,
                channel: word(argument, offset_of!(Nvos54, h_object))?,
                engine_type: word(parameters, 0)?,
            })
        }
        _ => None,
    }
}

/// A `UVM_REGISTER_CHANNEL` that succeeded.
#[must_use]
pub fn uvm_register(argument: &[u8]) -> Option<Call> {
    succeeded(argument, offset_of!(UvmRegisterChannel, rm_status))?;
    Some(Call::UvmRegister {
        client: word(argument, offset_of!(UvmRegisterChannel, h_client))?,
        channel: word(argument, offset_of!(UvmRegisterChannel, h_channel))?,
        uuid: argument.get(..16)?.try_into().ok()?,
    })
}

fn succeeded(argument: &[u8], status: usize) -> Option<()> {
    (word(argument, status)? == 0).then_some(())
}

fn allocated(layout: Layout, argument: &[u8], status: usize, parameters: &[u8]) -> Option<Call> {
    succeeded(argument, status)?;
    // Both sizes begin alike.
    let class = word(argument, offset_of!(Nvos64, h_class))?;
    Some(Call::Alloc {
        client: word(argument, offset_of!(Nvos64, h_root))?,
        parent: word(argument, offset_of!(Nvos64, h_object_parent))?,
        handle: word(argument, offset_of!(Nvos64, h_object_new))?,
        class,
        params: params(layout, class, parameters).unwrap_or_default(),
    })
}

fn params(layout: Layout, class: u32, bytes: &[u8]) -> Option<Params> {
    if class == class::NV01_DEVICE_0 {
        let instance = word(bytes, offset_of!(Nv0080Alloc, device_id))?;
        return Some(Params::Device { instance });
    }
    let Layout::Known(branch) = layout else {
        return None;
    };
    Some(match class {
        class::KEPLER_CHANNEL_GROUP_A => Params::Tsg {
            engine_type: word(bytes, offset_of!(ChannelGroupAlloc, engine_type))?,
            va_space: word(bytes, offset_of!(ChannelGroupAlloc, h_va_space))?,
        },
        class::FERMI_CONTEXT_SHARE_A => Params::ContextShare {
            va_space: word(bytes, offset_of!(CtxShareAlloc, h_va_space))?,
        },
        _ if class::is_gpfifo(class) => Params::Channel {
            engine_type: word(bytes, branch.channel_engine_at())?,
            va_space: word(bytes, offset_of!(ChannelAlloc, h_va_space))?,
            context_share: word(bytes, offset_of!(ChannelAlloc, h_context_share))?,
        },
        _ => Params::None,
    })
}
