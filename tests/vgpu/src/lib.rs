//! The virtual GPU: its wire, its rings, its history; the device process is the binary `vgpud`.
//!
//! Three parts make a machine look as if it had GPUs: `libcuda.so.1` (crate `tidegate-vgpu-cuda`),
//! the preload shim `libvgpu_rm.so` (crate `tidegate-vgpu-rm`) and the device process. The shim
//! turns open files of `/dev/nvidia*` into connections to the device process ([`wire`], [`calls`]);
//! the device process owns channels, memory and time and keeps a [`history`]; queued work goes
//! through mapped [`ring`]s without any call, as on hardware. [`control`] sets its knobs.
//!
//! # What a client does
//!
//! All of it through libc's `open`, `ioctl` and `mmap`; layouts in `tidegate_abi`.
//!
//! 1. `open("/dev/nvidiactl")`; `CHECK_VERSION_STR`, `SYS_PARAMS`, `CARD_INFO` (an array of at least
//!    as many entries as GPUs); `RM_ALLOC` class `0x41` with handle 0: the **root client**.
//! 2. On the root (hObject = hClient): `GET_BUILD_VERSION`, `GET_PROBED_IDS`, `ATTACH_IDS`,
//!    `GET_ID_INFO_V2` of each id for its device *instance*, which is not the minor number. A GPU
//!    that is neither attached nor held open as `/dev/nvidiaN` has no device (`INVALID_DEVICE`).
//! 3. `open("/dev/nvidia-uvm")`, `UVM_INITIALIZE`. Per GPU: `open("/dev/nvidiaN")`, `REGISTER_FD`;
//!    device `0x80` under the root, subdevice `0x2080` under the device, `GET_GID_INFO` for the UUID;
//!    VA space `0x90f1` under the device (externally owned); `UVM_REGISTER_GPU`,
//!    `UVM_REGISTER_GPU_VASPACE`.
//! 4. Whatever is mapped into the process is announced by `RM_MAP_MEMORY` naming the object and the
//!    descriptor of a *fresh* open of `/dev/nvidiaN` (one announcement a file, else `STATE_IN_USE`),
//!    then `mmap` of that descriptor, which may be closed afterwards:
//!    the **doorbell page** ([`ring::Usermode`]) is usermode object `0xc661` under the subdevice; the
//!    **semaphore pool** ([`ring::SEMAPHORES`] of [`ring::Semaphore`]) is system memory `0x3e` under a
//!    device; a channel's **ring** ([`ring::Ring`], [`ring::RING_BYTES`]) is the channel itself.
//! 5. TSG `0xa06c` under the device with its engine, context share `0x9067` under the TSG, channels
//!    `0xc86f` under the TSG, each naming the semaphore pool in `hObjectBuffer` (0: none); an engine
//!    object `0xcbc0` or `0xc8b5` under each; `GET_WORK_SUBMIT_TOKEN`; `UVM_REGISTER_CHANNEL` each
//!    (else `SCHEDULE` answers `INVALID_STATE`); `GPFIFO_SCHEDULE` of the TSG.
//! 6. **Device memory**: `RM_ALLOC` `0x40` under the device; reserve addresses with no access;
//!    `UVM_CREATE_EXTERNAL_RANGE` over them; `UVM_MAP_EXTERNAL_ALLOCATION`: when it returns, the
//!    memory is there, at the address that is also its `CUdeviceptr`. Mapping over a mapping
//!    replaces it. `UVM_UNMAP_EXTERNAL` takes the access away, `UVM_FREE` ends the range (its
//!    addresses stay reserved for the caller to unmap). Memory lives until its object is freed *and*
//!    nothing maps it, and then reads as zero to its next owner.
//! 7. Work: write the entry, raise `put`, add one to `doorbell`, and wake it if `sleeping` is set.
//!
//! The agent needs steps 1 and 2, then device and subdevice, then `FIFO_DISABLE_CHANNELS`.
#![allow(missing_debug_implementations)]

pub mod calls;
pub mod clock;
pub mod control;
pub mod facts;
pub mod history;
pub mod personality;
pub mod ring;
pub mod wire;
