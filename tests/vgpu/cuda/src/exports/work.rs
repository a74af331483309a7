//! Rows: modules, libraries, functions, launches.

use std::ffi::{c_char, c_int, c_uint, c_void};

use tidegate_abi::cuda::{
    CUdevice, CUdeviceptr, CUfunction, CUhostFn, CUkernel, CUlaunchConfig, CUlibrary, CUmodule,
    CUresult, CUstream, CudaLaunchParams,
};

use super::{export, exports};
use crate::objects::current::DefaultStream;
use crate::result::code_of;
use crate::{launch, legacy, link, module, occupancy};

exports! {
    cuModuleLoad(module: *mut CUmodule, path: *const c_char) => module::load;
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void) => module::load_data;
    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void) => module::load_data_ex;
    cuModuleLoadFatBinary(module: *mut CUmodule, image: *const c_void) => module::load_data;
    cuModuleUnload(module: CUmodule) => module::unload;
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) => module::get_function;
    cuModuleGetGlobal_v2(at: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char) => module::get_global;
    cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule) => module::function_count;
    cuModuleEnumerateFunctions(functions: *mut CUfunction, count: c_uint, module: CUmodule) => module::enumerate;
    cuModuleGetLoadingMode(mode: *mut c_int) => module::loading_mode;

    cuLibraryLoadData(library: *mut CUlibrary, image: *const c_void, jit: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut c_int, values: *mut *mut c_void, count: c_uint) => module::library_load_data;
    cuLibraryLoadFromFile(library: *mut CUlibrary, path: *const c_char, jit: *mut c_int, jit_values: *mut *mut c_void, jit_count: c_uint, options: *mut c_int, values: *mut *mut c_void, count: c_uint) => module::library_load_file;
    cuLibraryUnload(library: CUlibrary) => module::library_unload;
    cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, name: *const c_char) => module::library_kernel;
    cuLibraryGetModule(module: *mut CUmodule, library: CUlibrary) => module::library_module;
    cuLibraryGetGlobal(at: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) => module::get_global;
    cuLibraryGetManaged(at: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) => module::get_global;
    cuLibraryGetKernelCount(count: *mut c_uint, library: CUlibrary) => module::function_count;
    cuLibraryEnumerateKernels(kernels: *mut CUkernel, count: c_uint, library: CUlibrary) => module::enumerate;
    cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) => module::kernel_function;
    cuKernelGetLibrary(library: *mut CUlibrary, kernel: CUkernel) => module::module_of;
    cuKernelGetName(name: *mut *const c_char, kernel: CUkernel) => module::name_of;
    cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: *mut usize, size: *mut usize) => module::param_info;
    cuKernelGetAttribute(value: *mut c_int, attribute: c_int, kernel: CUkernel, device: CUdevice) => module::kernel_attribute;
    cuKernelSetAttribute(attribute: c_int, value: c_int, kernel: CUkernel, device: CUdevice) => module::set_kernel_attribute;
    cuKernelSetCacheConfig(kernel: CUkernel, config: c_int, device: CUdevice) => module::set_kernel_cache_config;

    cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction) => module::attribute;
    cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) => module::set_attribute;
    cuFuncSetCacheConfig(function: CUfunction, config: c_int) => module::set_cache_config;
    cuFuncSetSharedMemConfig(function: CUfunction, config: c_int) => module::set_cache_config;
    cuFuncGetModule(module: *mut CUmodule, function: CUfunction) => module::module_of;
    cuFuncGetName(name: *mut *const c_char, function: CUfunction) => module::name_of;
    cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, size: *mut usize) => module::param_info;
    cuFuncLoad(function: CUfunction) => module::func_load;
    cuFuncIsLoaded(state: *mut c_int, function: CUfunction) => module::func_is_loaded;

    cuLinkCreate(count: c_uint, options: *mut c_int, values: *mut *mut c_void, link: *mut *mut c_void) => link::create;
    cuLinkCreate_v2(count: c_uint, options: *mut c_int, values: *mut *mut c_void, link: *mut *mut c_void) => link::create;
    cuLinkAddData(link: *mut c_void, kind: c_int, data: *mut u8, bytes: usize, name: *const c_char, count: c_uint, options: *mut c_int, values: *mut *mut c_void) => link::add_data;
    cuLinkAddData_v2(link: *mut c_void, kind: c_int, data: *mut u8, bytes: usize, name: *const c_char, count: c_uint, options: *mut c_int, values: *mut *mut c_void) => link::add_data;
    cuLinkAddFile(link: *mut c_void, kind: c_int, path: *const c_char, count: c_uint, options: *mut c_int, values: *mut *mut c_void) => link::add_file;
    cuLinkAddFile_v2(link: *mut c_void, kind: c_int, path: *const c_char, count: c_uint, options: *mut c_int, values: *mut *mut c_void) => link::add_file;
    cuLinkComplete(link: *mut c_void, image: *mut *const c_void, bytes: *mut usize) => link::complete;
    cuLinkDestroy(link: *mut c_void) => link::destroy;

    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: CUfunction, threads: c_int, shared: usize) => occupancy::max_blocks;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut c_int, function: CUfunction, threads: c_int, shared: usize, flags: c_uint) => occupancy::max_blocks_with_flags;
    cuOccupancyMaxPotentialBlockSize(grid: *mut c_int, block: *mut c_int, function: CUfunction, shared_of: occupancy::SharedOfBlock, shared: usize, limit: c_int) => occupancy::best_block;
    cuOccupancyMaxPotentialBlockSizeWithFlags(grid: *mut c_int, block: *mut c_int, function: CUfunction, shared_of: occupancy::SharedOfBlock, shared: usize, limit: c_int, flags: c_uint) => occupancy::best_block_with_flags;
    cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: CUfunction, blocks: c_int, threads: c_int) => occupancy::available_shared;
    cuOccupancyMaxPotentialClusterSize(size: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) => occupancy::cluster_size;
    cuOccupancyMaxActiveClusters(count: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) => occupancy::clusters;

    cuFuncSetBlockShape(function: CUfunction, x: c_int, y: c_int, z: c_int) => legacy::block_shape;
    cuFuncSetSharedSize(function: CUfunction, bytes: c_uint) => legacy::shared_size;
    cuParamSetSize(function: CUfunction, bytes: c_uint) => legacy::param_size;
    cuParamSeti(function: CUfunction, offset: c_int, value: c_uint) => legacy::param_int;
    cuParamSetf(function: CUfunction, offset: c_int, value: f32) => legacy::param_float;
    cuParamSetv(function: CUfunction, offset: c_int, at: *const c_void, bytes: c_uint) => legacy::param_bytes;
    cuLaunch(function: CUfunction) => legacy::launch;
    cuLaunchGrid(function: CUfunction, width: c_int, height: c_int) => legacy::launch_grid;
    cuLaunchGridAsync(function: CUfunction, width: c_int, height: c_int, stream: CUstream) => legacy::launch_grid_async;
    cuLaunchCooperativeKernelMultiDevice(list: *mut CudaLaunchParams, count: c_uint, flags: c_uint) => legacy::cooperative_multi;

    cuLaunchKernel / cuLaunchKernel_ptsz(function: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void) => launch::launch;
    cuLaunchKernelEx / cuLaunchKernelEx_ptsz(config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void) => launch::launch_ex;
    cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz(function: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: CUstream, params: *mut *mut c_void) => launch::cooperative;
    cuLaunchHostFunc / cuLaunchHostFunc_ptsz(stream: CUstream, function: CUhostFn, data: *mut c_void) => launch::host_function;
    cuLaunchHostFunc_v2 / cuLaunchHostFunc_v2_ptsz(stream: CUstream, function: CUhostFn, data: *mut c_void, mode: c_uint) => launch::host_function_v2;
}
