//! The few RM calls a peer makes: a client, a TSG, channels, and channel control on its own file.

use libloading::os::unix::{Library, RTLD_NOW};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_abi::class;
use tidegate_abi::rm;

/// Everything a peer holds on one GPU.
#[derive(Debug)]
pub struct Objects {
    pub client: u32,
    pub subdevice: u32,
    pub tsg: u32,
    pub channels: Vec<u32>,
    /// Of its GPU, as the driver numbers them.
    pub instance: u32,
    _device: File,
}

pub type Result<T> = std::result::Result<T, String>;

fn open(path: &str) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| format!("{path}: {error}"))
}

pub fn open_control() -> Result<OwnedFd> {
    open("/dev/nvidiactl").map(Into::into)
}

fn ioctl<T>(file: &OwnedFd, escape: u32, parameters: &mut T) -> Result<()> {
    let request = rm::request(escape, size_of::<T>());
    // SAFETY: the request carries the size of `T`, which the callers choose to fit the escape.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(parameters)) };
    if rc == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error().to_string())
    }
}

fn status(status: u32) -> Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(format!("RM status {status:#x}"))
    }
}

fn alloc(
    file: &OwnedFd,
    (root, parent, new): (u32, u32, u32),
    class: u32,
    p: &mut [u8],
) -> Result<u32> {
    let mut call = rm::Nvos64 {
        h_root: root,
        h_object_parent: parent,
        h_object_new: new,
        h_class: class,
        p_alloc_parms: if p.is_empty() {
            0
        } else {
            p.as_mut_ptr() as u64
        },
        params_size: u32::try_from(p.len()).expect("small"),
        ..rm::Nvos64::default()
    };
    ioctl(file, rm::NV_ESC_RM_ALLOC, &mut call)?;
    status(call.status)?;
    Ok(call.h_object_new)
}

fn control<T>(file: &OwnedFd, client: u32, object: u32, cmd: u32, p: &mut T) -> Result<u32> {
    let mut call = rm::Nvos54 {
        h_client: client,
        h_object: object,
        cmd,
        params: std::ptr::from_mut(p) as u64,
        params_size: u32::try_from(size_of::<T>()).expect("small"),
        ..rm::Nvos54::default()
    };
    ioctl(file, rm::NV_ESC_RM_CONTROL, &mut call)?;
    Ok(call.status)
}

fn bytes<T>(value: &mut T) -> &mut [u8] {
    // SAFETY: parameter structs are plain integers without padding that matters to anybody.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast(), size_of::<T>()) }
}

/// Makes a client, of the handle `wanted` unless that is 0, with a TSG and `count` channels on GPU
/// number `gpu`.
pub fn make(file: &OwnedFd, gpu: u32, count: u32, wanted: u32) -> Result<Objects> {
    let branch = rm::Branch::B580;
    let mut root = [0_u8; 4];
    let client = alloc(file, (0, 0, wanted), class::NV01_ROOT_CLIENT, &mut root)?;
    let mut cards = [rm::CardInfo::default(); rm::MAX_GPUS];
    ioctl(file, rm::NV_ESC_CARD_INFO, &mut cards)?;
    let card = cards
        .iter()
        .find(|card| card.valid & 0xff != 0 && card.minor == gpu)
        .ok_or("no such GPU")?;
    let mut attach = rm::AttachIds {
        gpu_ids: [rm::INVALID_GPU_ID; rm::MAX_GPUS],
        failed_id: 0,
    };
    attach.gpu_ids[0] = card.gpu_id;
    let cmd = rm::NV0000_CTRL_CMD_GPU_ATTACH_IDS;
    status(control(file, client, client, cmd, &mut attach)?)?;
    let mut info = rm::IdInfoV2 {
        gpu_id: card.gpu_id,
        ..rm::IdInfoV2::default()
    };
    let cmd = rm::NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2;
    status(control(file, client, client, cmd, &mut info)?)?;
    let device_file = open(&format!("/dev/nvidia{gpu}"))?;
    let mut p = rm::Nv0080Alloc {
        device_id: info.device_instance,
        ..rm::Nv0080Alloc::default()
    };
    let device = alloc(
        file,
        (client, client, 0x5c00_0001),
        class::NV01_DEVICE_0,
        bytes(&mut p),
    )?;
    let mut p = rm::Nv2080Alloc::default();
    let subdevice = alloc(
        file,
        (client, device, 0x5c00_0002),
        class::NV20_SUBDEVICE_0,
        bytes(&mut p),
    )?;
    let mut p = rm::ChannelGroupAlloc {
        engine_type: class::ENGINE_TYPE_GR0,
        ..rm::ChannelGroupAlloc::default()
    };
    let group = class::KEPLER_CHANNEL_GROUP_A;
    let tsg = alloc(file, (client, device, 0x5c00_0003), group, bytes(&mut p))?;
    let mut channels = Vec::new();
    for at in 0..count {
        let mut p = vec![0_u8; branch.channel_alloc_size()];
        let new = 0x5c00_0010 + at;
        let class = class::HOPPER_CHANNEL_GPFIFO_A;
        channels.push(alloc(file, (client, tsg, new), class, &mut p)?);
    }
    Ok(Objects {
        client,
        subdevice,
        tsg,
        channels,
        instance: info.device_instance,
        _device: device_file,
    })
}

/// The control by which programs ask the driver's version, whose answer it caches; RM's status.
pub fn build_version(file: &OwnedFd, client: u32) -> Result<u32> {
    let mut strings = [[0_u8; 64]; 3];
    let [driver, version, title] = strings.each_mut().map(|text| text.as_mut_ptr() as u64);
    let mut p = rm::BuildVersion {
        size_of_strings: 64,
        p_driver_version_buffer: driver,
        p_version_buffer: version,
        p_title_buffer: title,
        ..rm::BuildVersion::default()
    };
    let cmd = rm::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION;
    control(file, client, client, cmd, &mut p)
}

/// `GPFIFO_SCHEDULE` of a TSG; RM's status.
pub fn schedule(file: &OwnedFd, client: u32, tsg: u32) -> Result<u32> {
    let mut p = [0_u8; rm::Branch::B580.schedule_size()];
    p[0] = 1;
    let cmd = rm::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
    control(file, client, tsg, cmd, &mut p)
}

/// The process' first CUDA context, on GPU 0: with it the library, where it is preloaded, begins.
pub fn cuda_context() -> Result<()> {
    type Init = unsafe extern "C" fn(u32) -> i32;
    type Retain = unsafe extern "C" fn(*mut *mut libc::c_void, i32) -> i32;
    type SetCurrent = unsafe extern "C" fn(*mut libc::c_void) -> i32;
    // SAFETY: the driver's public functions with their signatures and live arguments; libloading calls `dlsym`
    // by name, so that a preloaded library answers as it does for any program.
    unsafe {
        let driver = Library::open(Some("libcuda.so.1"), RTLD_NOW).map_err(|e| e.to_string())?;
        // It has threads, and stays.
        let driver = std::mem::ManuallyDrop::new(driver);
        let mut context = std::ptr::null_mut::<libc::c_void>();
        let missing = |error: libloading::Error| error.to_string();
        let init = driver.get::<Init>("cuInit").map_err(missing)?;
        let retain = driver.get::<Retain>("cuDevicePrimaryCtxRetain");
        let retain = retain.map_err(missing)?;
        let set = driver
            .get::<SetCurrent>("cuCtxSetCurrent")
            .map_err(missing)?;
        match (init(0), retain(&raw mut context, 0), set(context)) {
            (0, 0, 0) => Ok(()),
            failed => Err(format!("no context: {failed:?}")),
        }
    }
}

/// Frees an object of a client, or the client itself, with everything below it.
pub fn free(file: &OwnedFd, client: u32, object: u32) -> Result<()> {
    let mut call = rm::Nvos00 {
        h_root: client,
        h_object_old: object,
        ..rm::Nvos00::default()
    };
    ioctl(file, rm::NV_ESC_RM_FREE, &mut call)?;
    status(call.status)
}

/// UUID of GPU number `gpu`.
pub fn uuid(file: &OwnedFd, objects: &Objects) -> Result<[u8; 16]> {
    let mut p = rm::GidInfo {
        index: 0,
        flags: rm::GID_FORMAT_BINARY,
        length: 0,
        data: [0; 256],
    };
    let cmd = rm::NV2080_CTRL_CMD_GPU_GET_GID_INFO;
    status(control(
        file,
        objects.client,
        objects.subdevice,
        cmd,
        &mut p,
    )?)?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&p.data[..16]);
    Ok(uuid)
}

/// Disables or enables pairs through the peer's own client; RM's status.
pub fn set_channels(
    file: &OwnedFd,
    objects: &Objects,
    disable: bool,
    pairs: &[(u32, u32)],
) -> Result<u32> {
    let mut p = rm::DisableChannels {
        disable: u8::from(disable),
        num_channels: u32::try_from(pairs.len()).expect("at most 64"),
        ..rm::DisableChannels::default()
    };
    for (at, &(client, channel)) in pairs.iter().enumerate() {
        p.h_client_list[at] = client;
        p.h_channel_list[at] = channel;
    }
    let cmd = rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
    control(file, objects.client, objects.subdevice, cmd, &mut p)
}
