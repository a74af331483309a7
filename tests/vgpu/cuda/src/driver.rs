//! The process' one driver instance: made by cuInit, gone in a fork child.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use tidegate_abi::cuda::{CUdevice, CUresult};

use crate::gpu::{Gpu, Semaphores};
use crate::result::{CudaResult, store};
use crate::rm::{Rm, RmError};

/// What `cuDriverGetVersion` says: CUDA 13.5.
pub const VERSION: i32 = 13050;

/// Everything opened by cuInit.
pub struct Driver {
    /// The visible GPUs, by CUDA ordinal.
    pub gpus: Vec<Gpu>,
    /// The process' semaphores.
    pub semaphores: Semaphores,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// Set in the child of a process that had called cuInit: the device files are the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The driver, if this process initialised it.
#[inline]
pub fn get() -> CudaResult<&'static Driver> {
    check()?;
    DRIVER.get().ok_or(CUresult::NOT_INITIALIZED)
}

/// Fails in a fork child.
#[inline]
pub fn check() -> CudaResult {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUresult::NOT_INITIALIZED);
    }
    Ok(())
}

/// The process' semaphores.
pub fn semaphores() -> CudaResult<&'static Semaphores> {
    Ok(&get()?.semaphores)
}

/// The GPU of a CUDA ordinal.
pub fn device(ordinal: CUdevice) -> CudaResult<&'static Gpu> {
    let gpus = &get()?.gpus;
    let at = usize::try_from(ordinal).map_err(|_| CUresult::INVALID_DEVICE)?;
    gpus.get(at).ok_or(CUresult::INVALID_DEVICE)
}

/// `cuInit`.
pub fn init(flags: u32) -> CudaResult {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    check()?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if DRIVER.get().is_none() {
        let driver = open()?;
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        DRIVER.get_or_init(|| driver);
    }
    Ok(())
}

fn open() -> CudaResult<Driver> {
    let (rm, cards) = Rm::open()?;
    let rm = Arc::new(rm);
    let mut gpus = Vec::new();
    for card in cards {
        match Gpu::open(&rm, card) {
            Ok(gpu) => gpus.push(gpu),
            // The driver lists every GPU of the machine; a container is given the files of its own.
            Err(RmError::Call("open", libc::ENOENT | libc::EACCES | libc::EPERM)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let visible = env::var("CUDA_VISIBLE_DEVICES").ok();
    let gpus = choose(gpus, visible.as_deref());
    let first = gpus.first().ok_or(CUresult::NO_DEVICE)?;
    let semaphores = Semaphores::open(first)?;
    Ok(Driver { gpus, semaphores })
}

/// The GPUs that `CUDA_VISIBLE_DEVICES` leaves, in its order: numbers or UUID prefixes, up to the
/// first that names none.
fn choose(gpus: Vec<Gpu>, visible: Option<&str>) -> Vec<Gpu> {
    let Some(visible) = visible else {
        return gpus;
    };
    let mut gpus: Vec<Option<Gpu>> = gpus.into_iter().map(Some).collect();
    let mut chosen = Vec::new();
    for word in visible.split(',') {
        let at = position(word.trim(), &gpus);
        match at.and_then(|at| gpus.get_mut(at)).and_then(Option::take) {
            Some(gpu) => chosen.push(gpu),
            None => break,
        }
    }
    chosen
}

fn position(word: &str, gpus: &[Option<Gpu>]) -> Option<usize> {
    if word.starts_with("GPU-") {
        let named = |gpu: &Option<Gpu>| {
            gpu.as_ref()
                .is_some_and(|gpu| uuid_text(&gpu.uuid.bytes).starts_with(word))
        };
        return gpus.iter().position(named);
    }
    word.parse().ok()
}

/// `GPU-` and the UUID as people write it.
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// `cuDriverGetVersion`. Works before cuInit.
pub fn version(out: *mut i32) -> CudaResult {
    // SAFETY: `out` is the caller's place for the version.
    unsafe { store(out, VERSION) }
}

/// Starts a thread of this library with every signal blocked: signals are the application's.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    // SAFETY: both sets are plain data, filled before use, and the mask is the calling thread's.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let builder = thread::Builder::new().name(name.to_owned());
        if let Err(error) = builder.spawn(body) {
            crate::result::log(&format_args!("cannot start {name}: {error}"));
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::uuid_text;

    #[test]
    fn a_uuid_is_written_in_five_groups() {
        let bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(
            uuid_text(&bytes),
            "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
        );
    }
}
