//! What travels between the shim and the device process.
//!
//! An open file of a device node is one SEQPACKET connection to the socket of that name in the
//! device's directory. So the kernel keeps its identity: dup, fork, SCM_RIGHTS and pidfd_getfd give
//! further names of the same connection, and the device sees the last close as the end of it.
//!
//! A call is one message on that connection: [`Request`], then the bytes of the parameter struct,
//! then those of the struct it points to, with SCM_RIGHTS: one end of a fresh socketpair, and after
//! it the descriptor that the parameters name, if they name one. The answer comes on that pair:
//! [`Reply`], then both structs again, with SCM_RIGHTS for memory to map. So calls of threads, of a
//! forked child and of a process that was passed the file never mix, and nobody keeps state.

use tidegate_abi::rm;

use crate::facts::{Driver, State};

/// First word of every request.
pub const MAGIC: u32 = 0x5447_5055;
/// Parameter bytes of one call at most, both structs together.
pub const MAX_PARAMS: usize = 64 * 1024;

/// A device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// `/dev/nvidiactl`.
    Ctl,
    /// `/dev/nvidiaN`.
    Gpu(u8),
    /// `/dev/nvidia-uvm`.
    Uvm,
}

/// Major number that the shim gives `/dev/nvidia-uvm`. Real ones are dynamic, from 234 to 254 and
/// from 384 to 511.
pub const UVM_MAJOR: u32 = 510;

impl Node {
    /// The node with this file name.
    #[must_use]
    pub fn of_name(name: &[u8]) -> Option<Self> {
        match name.strip_prefix(b"nvidia")? {
            b"ctl" => Some(Self::Ctl),
            b"-uvm" => Some(Self::Uvm),
            &[digit @ b'0'..=b'9'] => Some(Self::Gpu(digit - b'0')),
            &[tens @ b'1'..=b'9', ones @ b'0'..=b'9'] => {
                Some(Self::Gpu((tens - b'0') * 10 + (ones - b'0')))
            }
            _ => None,
        }
    }

    /// The node at this path.
    #[must_use]
    pub fn of_path(path: &[u8]) -> Option<Self> {
        Self::of_name(path.strip_prefix(b"/dev/")?)
    }

    /// Its file name, which is also the name of its socket.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Ctl => "nvidiactl".to_owned(),
            Self::Gpu(minor) => format!("nvidia{minor}"),
            Self::Uvm => "nvidia-uvm".to_owned(),
        }
    }

    /// Device numbers, major and minor.
    #[must_use]
    pub const fn device(self) -> (u32, u32) {
        match self {
            Self::Ctl => (rm::DEVICE_MAJOR, rm::CTL_MINOR),
            Self::Gpu(minor) => (rm::DEVICE_MAJOR, minor as u32),
            Self::Uvm => (UVM_MAJOR, 0),
        }
    }
}

/// What a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ask {
    /// Sent once by `open`, with the connection's own client end as the only descriptor: by its
    /// inode the device knows the file again when another call names it. Answered like [`Self::Version`].
    Hello = 1,
    /// An ioctl.
    Ioctl = 2,
    /// An `mmap` of what `NV_ESC_RM_MAP_MEMORY` announced; answered with a memfd.
    Mmap = 3,
    /// The driver's version, in [`Reply::text`].
    Version = 4,
}

/// Header of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`Ask`] as a number.
    pub ask: u32,
    /// The ioctl's request number.
    pub request: u64,
    /// Bytes of the parameter struct.
    pub params: u32,
    /// Bytes of the struct it points to.
    pub nested: u32,
    /// `CLOCK_MONOTONIC` at the entry of the ioctl, for `FIFO_DISABLE_CHANNELS`; else 0.
    pub entry_ns: u64,
    /// The calling thread's reading of `CLOCK_MONOTONIC`, the last but one before that; 0: none.
    pub read_ns: u64,
    /// `mmap`: length.
    pub length: u64,
    /// `mmap`: offset.
    pub offset: u64,
}

/// What the shim does to its own address space before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Order {
    /// Nothing.
    None = 0,
    /// Maps the memfd that came along over `base..base + length`, from its offset `offset`.
    Map = 1,
    /// Takes away the access to `base..base + length`, keeping the range reserved.
    Unmap = 2,
}

/// Header of an answer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// 0, or the `errno` with which the system call fails.
    pub errno: i32,
    /// [`Order`] as a number.
    pub order: u32,
    /// By question.
    pub value: u64,
    /// Of the order.
    pub base: u64,
    /// Of the order.
    pub length: u64,
    /// Of the order, and of `mmap`.
    pub offset: u64,
    /// The driver's version, for [`Ask::Version`] and for `SYSTEM_GET_BUILD_VERSION`, which returns it
    /// through a pointer.
    pub text: [u8; 64],
}

impl Reply {
    /// Success without more.
    pub const OK: Self = Self {
        errno: 0,
        order: Order::None as u32,
        value: 0,
        base: 0,
        length: 0,
        offset: 0,
        text: [0; 64],
    };
}

/// Bytes of the parameter struct behind a request on `node`; `None` for a request the driver does
/// not have. The escapes carry theirs, those of UVM are the driver's.
#[must_use]
pub fn params_size(node: Node, request: u64, driver: &Driver<'_>) -> Option<usize> {
    if node != Node::Uvm {
        return rm::escape_of(request).map(|_| rm::size_of_request(request));
    }
    driver.uvm.get(&request).map(|ioctl| ioctl.params.size)
}

/// Where the parameters of a request name a descriptor.
#[must_use]
pub fn fd_offset(node: Node, request: u64, driver: &Driver<'_>) -> Option<usize> {
    let field = if node == Node::Uvm {
        let params = &driver.uvm.get(&request)?.params;
        let named = ["rmCtrlFd", "uvmFd"].into_iter();
        *named.filter_map(|name| params.fields.get(name)).next()?
    } else {
        match *driver.escapes.get(&rm::escape_of(request)?)? {
            "NV_ESC_REGISTER_FD" => driver.field("nv_ioctl_register_fd_t", "ctl_fd")?,
            "NV_ESC_RM_MAP_MEMORY" => driver.field("nv_ioctl_nvos33_parameters_with_fd", "fd")?,
            _ => return None,
        }
    };
    Some(field.offset)
}

/// Bytes that the driver reads and writes behind the pointer of an allocation of `class`, whatever size
/// the caller states.
#[must_use]
pub fn alloc_size(class: u32, driver: &Driver<'_>) -> usize {
    driver.classes.get(&class).map_or(0, |class| class.size)
}

/// Bytes that the driver reads and writes behind the pointer of control `cmd` for a caller that states
/// `stated`: those of its parameters if the caller says so, and none otherwise. Of a control that is
/// converted nobody compares the stated size.
#[must_use]
pub fn control_size(cmd: u32, stated: usize, driver: &Driver<'_>) -> usize {
    match driver.controls.get(&cmd) {
        Some(control) if matches!(control.state, State::Converted(_)) => control.size,
        Some(control) if control.size == stated => stated,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_device_nodes_are_ours() {
        assert_eq!(Node::of_path(b"/dev/nvidiactl"), Some(Node::Ctl));
        assert_eq!(Node::of_path(b"/dev/nvidia7"), Some(Node::Gpu(7)));
        assert_eq!(Node::of_path(b"/dev/nvidia15"), Some(Node::Gpu(15)));
        assert_eq!(Node::of_path(b"/dev/nvidia-uvm"), Some(Node::Uvm));
        for other in [
            "/dev/nvidia",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia00",
            "/tmp/nvidia0",
            "/dev/null",
        ] {
            assert_eq!(Node::of_path(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn what_the_shim_carries_is_what_the_driver_reads() {
        use crate::facts;
        use tidegate_abi::uvm;
        let driver = |version| facts::of(version).expect("a known version");
        let (old, new) = (driver("535.54.03"), driver("580.95.05"));
        let map = uvm::UVM_MAP_EXTERNAL_ALLOCATION;
        assert_eq!(params_size(Node::Uvm, map, &old), Some(1200));
        assert_eq!(params_size(Node::Uvm, map, &new), Some(9264));
        assert_eq!(fd_offset(Node::Uvm, map, &new), Some(9248));
        assert_eq!(fd_offset(Node::Uvm, uvm::UVM_FREE, &new), None);
        assert_eq!(alloc_size(0xc86f, &old), 304);
        assert_eq!(alloc_size(0x40, &old), 120);
        assert_eq!(control_size(0x101, 7, &new), 40);
        assert_eq!(control_size(0x201, 128, &new), 128);
        assert_eq!(control_size(0x201, 64, &new), 0);
        assert_eq!(control_size(0x1234, 64, &new), 0);
    }
}
