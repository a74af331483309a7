//! Every struct of `tidegate_abi`, field by field, with the names that the driver's headers have for it.

use std::mem::{offset_of, size_of};
use tidegate_abi::rm::{self, Branch};
use tidegate_abi::uvm;

/// A field: our name, where it begins, its bytes, and its name in the headers.
pub type Place = (&'static str, usize, usize, &'static str);

/// A struct of ours.
#[derive(Clone, Debug)]
pub struct Definition {
    pub name: &'static str,
    /// The struct in the headers, or the ioctl of UVM whose parameters it is.
    pub header: &'static str,
    pub size: usize,
    pub fields: Vec<Place>,
}

impl Definition {
    /// Bytes of it that a branch has; `None` where a branch has another struct instead.
    pub fn bytes_in(&self, branch: Branch) -> Option<usize> {
        let whole = |is: bool| is.then_some(self.size);
        match self.name {
            "rm::ProbedIds" => Some(branch.probed_ids_size()),
            "rm::GpuInfoV2" => Some(branch.gpu_info_size()),
            "rm::NameString" => Some(branch.name_string_size()),
            "rm::FbInfoV2" => Some(branch.fb_info_size()),
            "rm::Virtualization" => Some(branch.virtualization_size()),
            "rm::ConfidentialCapabilities" => Some(branch.capabilities_size()),
            "rm::ChannelAlloc" => {
                Some(branch.channel_alloc_size()).filter(|_| branch != Branch::B610)
            }
            "rm::ChannelAlloc610" => whole(branch == Branch::B610),
            "rm::MemoryAlloc" => Some(branch.memory_alloc_size()),
            "rm::VaspaceAlloc" => Some(branch.vaspace_alloc_size()),
            "uvm::UvmUnregisterChannel" | "uvm::UvmUnregisterChannel590" => {
                whole(branch.uvm_unregister_channel_size() == self.size)
            }
            "uvm::UvmFree" | "uvm::UvmFree590" => whole(branch.uvm_free_size() == self.size),
            "uvm::UvmMapExternalAllocation<32>" => whole(branch.uvm_map_gpus() == 32),
            "uvm::UvmMapExternalAllocation<256>" => whole(branch.uvm_map_gpus() == 256),
            _ => Some(self.size),
        }
    }
}

/// Bytes of the field that a function finds.
fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! definitions {
    ($($ty:ty: $header:literal { $($field:ident: $theirs:literal),* $(,)? })*) => {
        vec![$(Definition {
            name: stringify!($ty),
            header: $header,
            size: size_of::<$ty>(),
            fields: vec![$((
                stringify!($field),
                offset_of!($ty, $field),
                size_of_field(|whole: &$ty| &whole.$field),
                $theirs,
            )),*],
        }),*]
    };
}

/// All of them. Padding is left out.
pub fn all() -> Vec<Definition> {
    let mut all = of_rm();
    all.extend(of_uvm());
    all
}

fn of_rm() -> Vec<Definition> {
    definitions! {
    rm::Nvos00: "NVOS00_PARAMETERS" {
        h_root: "hRoot", h_object_parent: "hObjectParent", h_object_old: "hObjectOld", status: "status",
    }
    rm::Nvos21: "NVOS21_PARAMETERS" {
        h_root: "hRoot", h_object_parent: "hObjectParent", h_object_new: "hObjectNew", h_class: "hClass", p_alloc_parms: "pAllocParms", params_size: "paramsSize", status: "status",
    }
    rm::Nvos64: "NVOS64_PARAMETERS" {
        h_root: "hRoot", h_object_parent: "hObjectParent", h_object_new: "hObjectNew", h_class: "hClass", p_alloc_parms: "pAllocParms", p_rights_requested: "pRightsRequested", params_size: "paramsSize", flags: "flags", status: "status",
    }
    rm::Nvos54: "NVOS54_PARAMETERS" {
        h_client: "hClient", h_object: "hObject", cmd: "cmd", flags: "flags", params: "params", params_size: "paramsSize", status: "status",
    }
    rm::Nvos55: "NVOS55_PARAMETERS" {
        h_client: "hClient", h_parent: "hParent", h_object: "hObject", h_client_src: "hClientSrc", h_object_src: "hObjectSrc", flags: "flags", status: "status",
    }
    rm::Nvos57: "NVOS57_PARAMETERS" {
        h_client: "hClient", h_object: "hObject", share_policy: "sharePolicy", status: "status",
    }
    rm::Nvos33WithFd: "nv_ioctl_nvos33_parameters_with_fd" {
        h_client: "params.hClient", h_device: "params.hDevice", h_memory: "params.hMemory", offset: "params.offset", length: "params.length", p_linear_address: "params.pLinearAddress", status: "params.status", flags: "params.flags", fd: "fd",
    }
    rm::Nvos34: "NVOS34_PARAMETERS" {
        h_client: "hClient", h_device: "hDevice", h_memory: "hMemory", p_linear_address: "pLinearAddress", status: "status", flags: "flags",
    }
    rm::Xfer: "nv_ioctl_xfer_t" {
        cmd: "cmd", size: "size", ptr: "ptr",
    }
    rm::CardInfo: "nv_ioctl_card_info_t" {
        valid: "valid", domain: "pci_info.domain", bus: "pci_info.bus", slot: "pci_info.slot", function: "pci_info.function", vendor: "pci_info.vendor_id", device: "pci_info.device_id", gpu_id: "gpu_id", irq: "interrupt_line", reg_addr: "reg_address", reg_size: "reg_size", fb_addr: "fb_address", fb_size: "fb_size", minor: "minor_number", dev_name: "dev_name",
    }
    rm::SysParams: "nv_ioctl_sys_params_t" {
        memblock_size: "memblock_size",
    }
    rm::RegisterFd: "nv_ioctl_register_fd_t" {
        ctl_fd: "ctl_fd",
    }
    rm::Nv0080Alloc: "NV0080_ALLOC_PARAMETERS" {
        device_id: "deviceId", h_client_share: "hClientShare", h_target_client: "hTargetClient", h_target_device: "hTargetDevice", flags: "flags", va_space_size: "vaSpaceSize", va_start_internal: "vaStartInternal", va_limit_internal: "vaLimitInternal", va_mode: "vaMode",
    }
    rm::Nv2080Alloc: "NV2080_ALLOC_PARAMETERS" {
        sub_device_id: "subDeviceId",
    }
    rm::ChannelGroupAlloc: "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS" {
        h_object_error: "hObjectError", h_object_ecc_error: "hObjectEccError", h_va_space: "hVASpace", engine_type: "engineType", is_calling_context_vgpu_plugin: "bIsCallingContextVgpuPlugin",
    }
    rm::CtxShareAlloc: "NV_CTXSHARE_ALLOCATION_PARAMETERS" {
        h_va_space: "hVASpace", flags: "flags", subctx_id: "subctxId",
    }
    rm::ChannelAlloc: "NV_CHANNEL_ALLOC_PARAMS" {
        h_object_error: "hObjectError", h_object_buffer: "hObjectBuffer", gp_fifo_offset: "gpFifoOffset", gp_fifo_entries: "gpFifoEntries", flags: "flags", h_context_share: "hContextShare", h_va_space: "hVASpace", h_userd_memory: "hUserdMemory", userd_offset: "userdOffset", engine_type: "engineType", cid: "cid", sub_device_id: "subDeviceId", h_object_ecc_error: "hObjectEccError", instance_mem: "instanceMem", userd_mem: "userdMem", ramfc_mem: "ramfcMem", mthdbuf_mem: "mthdbufMem", h_phys_channel_group: "hPhysChannelGroup", internal_flags: "internalFlags", error_notifier_mem: "errorNotifierMem", ecc_error_notifier_mem: "eccErrorNotifierMem", process_id: "ProcessID", sub_process_id: "SubProcessID", encrypt_iv: "encryptIv", decrypt_iv: "decryptIv", hmac_nonce: "hmacNonce", tpc_config_id: "tpcConfigID",
    }
    rm::ChannelAlloc610: "NV_CHANNEL_ALLOC_PARAMS" {
        h_object_error: "hObjectError", h_object_buffer: "hObjectBuffer", gp_fifo_offset: "gpFifoOffset", gp_fifo_entries: "gpFifoEntries", flags: "flags", h_context_share: "hContextShare", h_va_space: "hVASpace", h_handle_va_space: "hHandleVASpace", h_userd_memory: "hUserdMemory", userd_offset: "userdOffset", engine_type: "engineType", cid: "cid", sub_device_id: "subDeviceId", h_object_ecc_error: "hObjectEccError", instance_mem: "instanceMem", userd_mem: "userdMem", ramfc_mem: "ramfcMem", mthdbuf_mem: "mthdbufMem", h_phys_channel_group: "hPhysChannelGroup", internal_flags: "internalFlags", error_notifier_mem: "errorNotifierMem", ecc_error_notifier_mem: "eccErrorNotifierMem", process_id: "ProcessID", sub_process_id: "SubProcessID", encrypt_iv: "encryptIv", decrypt_iv: "decryptIv", hmac_nonce: "hmacNonce", tpc_config_id: "tpcConfigID",
    }
    rm::MemoryAlloc: "NV_MEMORY_ALLOCATION_PARAMS" {
        owner: "owner", kind: "type", flags: "flags", width: "width", height: "height", pitch: "pitch", attr: "attr", attr2: "attr2", format: "format", compr_covg: "comprCovg", zcull_covg: "zcullCovg", range_lo: "rangeLo", range_hi: "rangeHi", size: "size", alignment: "alignment", offset: "offset", limit: "limit", address: "address", ctag_offset: "ctagOffset", h_va_space: "hVASpace", internal_flags: "internalflags", tag: "tag", numa_node: "numaNode",
    }
    rm::VaspaceAlloc: "NV_VASPACE_ALLOCATION_PARAMETERS" {
        index: "index", flags: "flags", va_size: "vaSize", va_start_internal: "vaStartInternal", va_limit_internal: "vaLimitInternal", big_page_size: "bigPageSize", va_base: "vaBase", pasid: "pasid",
    }
    rm::Timeslice: "NVA06C_CTRL_TIMESLICE_PARAMS" {
        timeslice_us: "timesliceUs",
    }
    rm::Preempt: "NVA06C_CTRL_PREEMPT_PARAMS" {
        wait: "bWait", manual_timeout: "bManualTimeout", timeout_us: "timeoutUs",
    }
    rm::RestartRunlist: "NVA06F_CTRL_RESTART_RUNLIST_PARAMS" {
        force: "bForceRestart", bypass_wait: "bBypassWait",
    }
    rm::WorkSubmitToken: "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS" {
        token: "workSubmitToken",
    }
    rm::IdInfoV2: "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS" {
        gpu_id: "gpuId", gpu_flags: "gpuFlags", device_instance: "deviceInstance", sub_device_instance: "subDeviceInstance", sli_status: "sliStatus", board_id: "boardId", gpu_instance: "gpuInstance", numa_id: "numaId",
    }
    rm::RmApiVersion: "nv_ioctl_rm_api_version_t" {
        cmd: "cmd", reply: "reply", version: "versionString",
    }
    rm::BuildVersion: "NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS" {
        size_of_strings: "sizeOfStrings", p_driver_version_buffer: "pDriverVersionBuffer", p_version_buffer: "pVersionBuffer", p_title_buffer: "pTitleBuffer", changelist_number: "changelistNumber", official_changelist_number: "officialChangelistNumber",
    }
    rm::AttachedIds: "NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS" {
        gpu_ids: "gpuIds",
    }
    rm::ProbedIds: "NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS" {
        gpu_ids: "gpuIds", excluded_gpu_ids: "excludedGpuIds", gpu_flags: "gpuFlags",
    }
    rm::AttachIds: "NV0000_CTRL_GPU_ATTACH_IDS_PARAMS" {
        gpu_ids: "gpuIds", failed_id: "failedId",
    }
    rm::GidInfo: "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS" {
        index: "index", flags: "flags", length: "length", data: "data",
    }
    rm::NameString: "NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS" {
        flags: "gpuNameStringFlags", text: "gpuNameString",
    }
    rm::FbInfoV2: "NV2080_CTRL_FB_GET_INFO_V2_PARAMS" {
        list_size: "fbInfoListSize", list: "fbInfoList",
    }
    rm::GpuInfoV2: "NV2080_CTRL_GPU_GET_INFO_V2_PARAMS" {
        list_size: "gpuInfoListSize", list: "gpuInfoList",
    }
    rm::Virtualization: "NV0080_CTRL_GPU_GET_VIRTUALIZATION_MODE_PARAMS" {
        mode: "virtualizationMode", is_grid_build: "isGridBuild",
    }
    rm::ConfidentialCapabilities: "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES_PARAMS" {
        cpu: "cpuCapability", gpus: "gpusCapability", environment: "environment", feature: "ccFeature", dev_tools: "devToolsMode", multi_gpu: "multiGpuMode",
    }
    rm::DisableChannels: "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS" {
        disable: "bDisable", num_channels: "numChannels", only_disable_scheduling: "bOnlyDisableScheduling", rewind_gp_put: "bRewindGpPut", p_runlist_preempt_event: "pRunlistPreemptEvent", h_client_list: "hClientList", h_channel_list: "hChannelList",
    }
    }
}

fn of_uvm() -> Vec<Definition> {
    definitions! {
    uvm::UvmInitialize: "UVM_INITIALIZE" {
        flags: "flags", rm_status: "rmStatus",
    }
    uvm::UvmMmInitialize: "UVM_MM_INITIALIZE" {
        uvm_fd: "uvmFd", rm_status: "rmStatus",
    }
    uvm::UvmRegisterGpu: "UVM_REGISTER_GPU" {
        uuid: "gpu_uuid", numa_enabled: "numaEnabled", numa_node_id: "numaNodeId", rm_ctrl_fd: "rmCtrlFd", h_client: "hClient", h_smc_part_ref: "hSmcPartRef", rm_status: "rmStatus",
    }
    uvm::UvmRegisterGpuVaspace: "UVM_REGISTER_GPU_VASPACE" {
        uuid: "gpuUuid", rm_ctrl_fd: "rmCtrlFd", h_client: "hClient", h_va_space: "hVaSpace", rm_status: "rmStatus",
    }
    uvm::UvmRegisterChannel: "UVM_REGISTER_CHANNEL" {
        uuid: "gpuUuid", rm_ctrl_fd: "rmCtrlFd", h_client: "hClient", h_channel: "hChannel", base: "base", length: "length", rm_status: "rmStatus",
    }
    uvm::UvmUnregisterChannel: "UVM_UNREGISTER_CHANNEL" {
        uuid: "gpuUuid", h_client: "hClient", h_channel: "hChannel", rm_status: "rmStatus",
    }
    uvm::UvmUnregisterChannel590: "UVM_UNREGISTER_CHANNEL" {
        h_client: "hClient", h_channel: "hChannel", rm_status: "rmStatus",
    }
    uvm::UvmCreateExternalRange: "UVM_CREATE_EXTERNAL_RANGE" {
        base: "base", length: "length", rm_status: "rmStatus",
    }
    uvm::UvmUnmapExternal: "UVM_UNMAP_EXTERNAL" {
        base: "base", length: "length", gpu_uuid: "gpuUuid", rm_status: "rmStatus",
    }
    uvm::UvmGpuMappingAttributes: "UVM_MAP_EXTERNAL_ALLOCATION" {
        gpu_uuid: "gpuUuid", mapping_type: "gpuMappingType", caching_type: "gpuCachingType", format_type: "gpuFormatType", element_bits: "gpuElementBits", compression_type: "gpuCompressionType",
    }
    uvm::UvmMapExternalAllocation<256>: "UVM_MAP_EXTERNAL_ALLOCATION" {
        base: "base", length: "length", offset: "offset", per_gpu_attributes: "perGpuAttributes", gpu_attributes_count: "gpuAttributesCount", rm_ctrl_fd: "rmCtrlFd", h_client: "hClient", h_memory: "hMemory", rm_status: "rmStatus",
    }
    uvm::UvmMapExternalAllocation<32>: "UVM_MAP_EXTERNAL_ALLOCATION" {
        base: "base", length: "length", offset: "offset", per_gpu_attributes: "perGpuAttributes", gpu_attributes_count: "gpuAttributesCount", rm_ctrl_fd: "rmCtrlFd", h_client: "hClient", h_memory: "hMemory", rm_status: "rmStatus",
    }
    uvm::UvmFree: "UVM_FREE" {
        base: "base", length: "length", rm_status: "rmStatus",
    }
    uvm::UvmFree590: "UVM_FREE" {
        base: "base", rm_status: "rmStatus",
    }
    }
}
