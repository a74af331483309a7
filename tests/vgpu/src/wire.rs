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
use tidegate_abi::uvm;

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
    /// inode the device knows the file again when another call names it.
    Hello = 1,
    /// An ioctl.
    Ioctl = 2,
    /// An `mmap` of what `NV_ESC_RM_MAP_MEMORY` announced; answered with a memfd.
    Mmap = 3,
    /// The driver's branch number, in [`Reply::value`].
    Branch = 4,
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
    /// The driver's version, for `SYSTEM_GET_BUILD_VERSION`, which returns it through a pointer.
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
/// not have. The escapes carry theirs, those of UVM go by branch.
#[must_use]
pub fn params_size(node: Node, request: u64, branch: rm::Branch) -> Option<usize> {
    if node != Node::Uvm {
        return rm::escape_of(request).map(|_| rm::size_of_request(request));
    }
    Some(match request {
        uvm::UVM_INITIALIZE => 16,
        uvm::UVM_DEINITIALIZE => 0,
        uvm::UVM_REGISTER_GPU_VASPACE => 32,
        uvm::UVM_UNREGISTER_GPU_VASPACE => 20,
        uvm::UVM_REGISTER_CHANNEL => 56,
        uvm::UVM_UNREGISTER_CHANNEL => branch.uvm_unregister_channel_size(),
        uvm::UVM_ENABLE_PEER_ACCESS | uvm::UVM_DISABLE_PEER_ACCESS => 36,
        uvm::UVM_MAP_EXTERNAL_ALLOCATION => 48 + 36 * branch.uvm_map_gpus(),
        uvm::UVM_FREE => branch.uvm_free_size(),
        uvm::UVM_REGISTER_GPU => 40,
        uvm::UVM_UNREGISTER_GPU => 20,
        uvm::UVM_PAGEABLE_MEM_ACCESS => 8,
        uvm::UVM_UNMAP_EXTERNAL => 40,
        uvm::UVM_ALLOC_SEMAPHORE_POOL => 32 + 36 * branch.uvm_map_gpus(),
        uvm::UVM_VALIDATE_VA_RANGE | uvm::UVM_CREATE_EXTERNAL_RANGE => 24,
        uvm::UVM_MM_INITIALIZE => 8,
        _ => return None,
    })
}

/// Whether the size of a UVM request differs between branches, so that its sender must know which.
#[must_use]
pub const fn size_goes_by_branch(request: u64) -> bool {
    matches!(
        request,
        uvm::UVM_UNREGISTER_CHANNEL
            | uvm::UVM_MAP_EXTERNAL_ALLOCATION
            | uvm::UVM_FREE
            | uvm::UVM_ALLOC_SEMAPHORE_POOL
    )
}

/// Where the parameters of a request name a descriptor.
#[must_use]
pub fn fd_offset(node: Node, request: u64, branch: rm::Branch) -> Option<usize> {
    if node != Node::Uvm {
        return match rm::escape_of(request)? {
            rm::NV_ESC_REGISTER_FD => Some(0),
            rm::NV_ESC_RM_MAP_MEMORY => Some(48),
            _ => None,
        };
    }
    match request {
        uvm::UVM_REGISTER_GPU => Some(24),
        uvm::UVM_REGISTER_GPU_VASPACE | uvm::UVM_REGISTER_CHANNEL => Some(16),
        uvm::UVM_MAP_EXTERNAL_ALLOCATION => Some(32 + 36 * branch.uvm_map_gpus()),
        uvm::UVM_MM_INITIALIZE => Some(0),
        _ => None,
    }
}

/// Bytes of the parameters of `class`, for allocations that leave the size out.
#[must_use]
pub fn alloc_size(class: u32, branch: rm::Branch) -> Option<usize> {
    use tidegate_abi::class;
    Some(match class {
        class::NV01_ROOT | class::NV01_ROOT_NON_PRIV | class::NV01_ROOT_CLIENT => 4,
        class::NV01_DEVICE_0 => 56,
        class::NV20_SUBDEVICE_0 | class::NV_CONFIDENTIAL_COMPUTE => 4,
        class::NV01_MEMORY_SYSTEM | class::NV01_MEMORY_LOCAL_USER => 128,
        class::FERMI_VASPACE_A => branch.vaspace_alloc_size(),
        class::KEPLER_CHANNEL_GROUP_A => 20,
        class::FERMI_CONTEXT_SHARE_A => 12,
        c if class::is_gpfifo(c) => branch.channel_alloc_size(),
        _ => return None,
    })
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
    fn uvm_sizes_follow_the_branch() {
        let map = |b| params_size(Node::Uvm, uvm::UVM_MAP_EXTERNAL_ALLOCATION, b);
        assert_eq!(map(rm::Branch::B535), Some(1200));
        assert_eq!(map(rm::Branch::B580), Some(9264));
        assert_eq!(
            fd_offset(
                Node::Uvm,
                uvm::UVM_MAP_EXTERNAL_ALLOCATION,
                rm::Branch::B580
            ),
            Some(9248)
        );
    }
}
