//! Modules, libraries and functions.
//!
//! A library is not bound to a context: its kernels become functions of the current context when
//! they are used. Here both are an [`Image`] and the functions made from it; module-scope variables
//! get device memory when they are first asked for.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_abi::cuda::{CUfunction, CUkernel, CUlibrary, CUmodule, CUresult};
use tidegate_vgpu::ring::kernel_id;

use crate::capturing;
use crate::driver;
use crate::handle::{Pinned, Table};
use crate::image::{self, Image};
use crate::locks;
use crate::objects::current;
use crate::objects::function::{self, Function};
use crate::objects::memory::{self, Owned, Place};
use crate::result::code::FILE_NOT_FOUND;
use crate::result::{CudaResult, store, store_optional};

/// A module or a library.
pub struct Module {
    image: Image,
    functions: Mutex<BTreeMap<String, &'static Pinned<Function>>>,
    variables: Mutex<BTreeMap<String, Owned>>,
}

static MODULES: Table<Module> = Table::new();

impl Module {
    fn load(image: Image) -> *mut c_void {
        MODULES.add(Arc::new(Self {
            image,
            functions: Mutex::default(),
            variables: Mutex::default(),
        }))
    }

    fn function(&self, handle: usize, name: &str) -> CudaResult<&'static Pinned<Function>> {
        let kernel = self.image.kernels.iter().find(|kernel| kernel.name == name);
        let kernel = kernel.ok_or(CUresult::NOT_FOUND)?;
        let mut functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(functions.entry(name.to_owned()).or_insert_with(|| {
            Pinned::leak(Function {
                name: CString::new(name).unwrap_or_default(),
                id: kernel_id(name),
                params: kernel.params.clone(),
                module: handle,
                dynamic_shared: AtomicI32::new(0),
                prepared: Mutex::default(),
            })
        }))
    }

    fn variable(&self, name: &str) -> CudaResult<(u64, usize)> {
        let variable = self
            .image
            .variables
            .iter()
            .find(|variable| variable.name == name);
        let bytes = variable.ok_or(CUresult::NOT_FOUND)?.bytes;
        let mut variables = self
            .variables
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(owned) = variables.get(name) {
            return Ok((owned.address, bytes));
        }
        let address = memory::allocate(bytes.max(1) as u64, Place::Device)?;
        variables.insert(name.to_owned(), Owned::new(address));
        Ok((address, bytes))
    }

    fn unload(&self) {
        for function in self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
        {
            function.retire();
        }
        self.variables
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

fn text<'a>(name: *const c_char) -> CudaResult<&'a str> {
    if name.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the application passes a C string.
    unsafe { CStr::from_ptr(name) }
        .to_str()
        .map_err(|_| CUresult::NOT_FOUND)
}

fn read_image(at: *const c_void) -> CudaResult<Image> {
    // SAFETY: the application passes a whole image, by the API's contract.
    image::parse(unsafe { image::bytes_at(at.cast())? })
}

fn read_file(name: *const c_char) -> CudaResult<Image> {
    let bytes = std::fs::read(text(name)?).map_err(|_| FILE_NOT_FOUND)?;
    image::parse(&bytes)
}

/// `cuModuleLoadData`, `cuModuleLoadFatBinary`.
pub fn load_data(out: *mut CUmodule, at: *const c_void) -> CudaResult {
    let context = current::context()?;
    let _held = locks::waiting_call(context.gpu, || context.synchronize())?;
    let image = read_image(at)?;
    // SAFETY: `out` is the caller's place for a module.
    unsafe { store(out, Module::load(image)) }
}

/// `cuModuleLoadDataEx`: JIT options have nothing to act on.
pub fn load_data_ex(
    out: *mut CUmodule,
    at: *const c_void,
    _count: u32,
    _options: *mut i32,
    _values: *mut *mut c_void,
) -> CudaResult {
    load_data(out, at)
}

/// `cuModuleLoad`.
pub fn load(out: *mut CUmodule, name: *const c_char) -> CudaResult {
    let context = current::context()?;
    let _held = locks::waiting_call(context.gpu, || context.synchronize())?;
    // SAFETY: `out` is the caller's place for a module.
    unsafe { store(out, Module::load(read_file(name)?)) }
}

/// `cuModuleUnload`.
pub fn unload(module: CUmodule) -> CudaResult {
    driver::get()?;
    capturing::unsafe_call()?;
    let module = MODULES.remove(module)?;
    if let Ok(context) = current::context() {
        let _held = locks::call(context.gpu);
        context.synchronize()?;
    }
    module.unload();
    Ok(())
}

/// `cuModuleGetFunction`.
pub fn get_function(out: *mut CUfunction, module: CUmodule, name: *const c_char) -> CudaResult {
    current::context()?;
    let function = MODULES.get(module)?.function(module.addr(), text(name)?)?;
    // SAFETY: `out` is the caller's place for a function.
    unsafe { store(out, function.handle()) }
}

/// `cuModuleGetGlobal_v2` and `cuLibraryGetGlobal`.
pub fn get_global(
    out: *mut u64,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CudaResult {
    current::context()?;
    let (address, size) = MODULES.get(module)?.variable(text(name)?)?;
    // SAFETY: both are null or the caller's places.
    unsafe {
        store_optional(out, address);
        store_optional(bytes, size);
    }
    Ok(())
}

/// `cuModuleGetFunctionCount`, `cuLibraryGetKernelCount`.
pub fn function_count(out: *mut u32, module: CUmodule) -> CudaResult {
    driver::get()?;
    // SAFETY: `out` is the caller's place for the count.
    unsafe { store(out, MODULES.get(module)?.image.kernels.len() as u32) }
}

/// `cuModuleEnumerateFunctions`, `cuLibraryEnumerateKernels`.
pub fn enumerate(out: *mut CUfunction, count: u32, handle: CUmodule) -> CudaResult {
    driver::get()?;
    let module = MODULES.get(handle)?;
    for (i, kernel) in module.image.kernels.iter().take(count as usize).enumerate() {
        let function = module.function(handle.addr(), &kernel.name)?;
        // SAFETY: the caller's array has `count` places.
        unsafe { store(out.add(i), function.handle())? };
    }
    Ok(())
}

/// `cuLibraryLoadData`.
#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn library_load_data(
    out: *mut CUlibrary,
    at: *const c_void,
    _jit: *mut i32,
    _jit_values: *mut *mut c_void,
    _jit_count: u32,
    _options: *mut i32,
    _values: *mut *mut c_void,
    _count: u32,
) -> CudaResult {
    driver::get()?;
    let image = read_image(at)?;
    // SAFETY: `out` is the caller's place for a library.
    unsafe { store(out, Module::load(image)) }
}

/// `cuLibraryLoadFromFile`.
#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn library_load_file(
    out: *mut CUlibrary,
    name: *const c_char,
    _jit: *mut i32,
    _jit_values: *mut *mut c_void,
    _jit_count: u32,
    _options: *mut i32,
    _values: *mut *mut c_void,
    _count: u32,
) -> CudaResult {
    driver::get()?;
    // SAFETY: `out` is the caller's place for a library.
    unsafe { store(out, Module::load(read_file(name)?)) }
}

/// `cuLibraryUnload`.
pub fn library_unload(library: CUlibrary) -> CudaResult {
    driver::get()?;
    MODULES.remove(library)?.unload();
    Ok(())
}

/// `cuLibraryGetKernel`.
pub fn library_kernel(out: *mut CUkernel, library: CUlibrary, name: *const c_char) -> CudaResult {
    driver::get()?;
    let function = MODULES
        .get(library)?
        .function(library.addr(), text(name)?)?;
    // SAFETY: `out` is the caller's place for a kernel.
    unsafe { store(out, function.handle()) }
}

/// `cuLibraryGetModule`: the library itself serves as its module in every context.
pub fn library_module(out: *mut CUmodule, library: CUlibrary) -> CudaResult {
    current::context()?;
    MODULES.get(library)?;
    // SAFETY: `out` is the caller's place for a module.
    unsafe { store(out, library) }
}

/// `cuKernelGetFunction`: a kernel serves as its function in every context.
pub fn kernel_function(out: *mut CUfunction, kernel: CUkernel) -> CudaResult {
    current::context()?;
    // SAFETY: `out` is the caller's place for a function.
    unsafe { store(out, function::named(kernel)?.handle()) }
}

/// `cuFuncGetModule`, `cuKernelGetLibrary`.
pub fn module_of(out: *mut CUmodule, handle: CUfunction) -> CudaResult {
    let module = std::ptr::without_provenance_mut(function::named(handle)?.module);
    // SAFETY: `out` is the caller's place for a module.
    unsafe { store(out, module) }
}

/// `cuFuncGetName`, `cuKernelGetName`.
pub fn name_of(out: *mut *const c_char, handle: CUfunction) -> CudaResult {
    // SAFETY: `out` is the caller's place for a pointer; the name lives as long as the process.
    unsafe { store(out, function::named(handle)?.name.as_ptr()) }
}

/// `cuFuncGetParamInfo`, `cuKernelGetParamInfo`.
pub fn param_info(
    handle: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CudaResult {
    let function = function::named(handle)?;
    let param = function.params.get(index).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the first is the caller's place, the second too or null.
    unsafe {
        store(offset, param.offset)?;
        store_optional(size, param.size);
    }
    Ok(())
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const DYNAMIC_SHARED: i32 = 8;

/// `cuFuncGetAttribute`.
pub fn attribute(out: *mut i32, attribute: i32, handle: CUfunction) -> CudaResult {
    let function = function::named(handle)?;
    let value = match attribute {
        0 => 1024,
        1..=3 | 7 => 0,
        4 => 32,
        5 | 6 => 90,
        DYNAMIC_SHARED => function.dynamic_shared.load(Ordering::Relaxed),
        9 => -1,
        10..=15 => 0,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    // SAFETY: `out` is the caller's place for the value.
    unsafe { store(out, value) }
}

/// `cuFuncSetAttribute`.
pub fn set_attribute(handle: CUfunction, attribute: i32, value: i32) -> CudaResult {
    let function = function::named(handle)?;
    match attribute {
        DYNAMIC_SHARED => function.dynamic_shared.store(value, Ordering::Relaxed),
        9..=15 => {}
        _ => return Err(CUresult::INVALID_VALUE),
    }
    Ok(())
}

/// `cuKernelGetAttribute`.
pub fn kernel_attribute(out: *mut i32, what: i32, kernel: CUkernel, device: i32) -> CudaResult {
    driver::device(device)?;
    attribute(out, what, kernel)
}

/// `cuKernelSetAttribute`.
pub fn set_kernel_attribute(what: i32, value: i32, kernel: CUkernel, device: i32) -> CudaResult {
    driver::device(device)?;
    set_attribute(kernel, what, value)
}

/// `cuFuncSetCacheConfig` and its like: accepted, without effect on a virtual GPU.
pub fn set_cache_config(handle: CUfunction, _config: i32) -> CudaResult {
    function::named(handle).map(|_| ())
}

/// `cuKernelSetCacheConfig`.
pub fn set_kernel_cache_config(handle: CUkernel, _config: i32, device: i32) -> CudaResult {
    driver::device(device)?;
    function::named(handle).map(|_| ())
}

/// `cuFuncLoad`: everything is loaded.
pub fn func_load(handle: CUfunction) -> CudaResult {
    function::named(handle).map(|_| ())
}

/// `cuFuncIsLoaded`.
pub fn func_is_loaded(out: *mut i32, handle: CUfunction) -> CudaResult {
    function::named(handle)?;
    // SAFETY: `out` is the caller's place for the state.
    unsafe { store(out, 1) }
}

/// `cuModuleGetLoadingMode`: eager.
pub fn loading_mode(out: *mut i32) -> CudaResult {
    driver::get()?;
    // SAFETY: `out` is the caller's place for the mode.
    unsafe { store(out, 1) }
}
