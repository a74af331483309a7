//! What a call needs: streams, events, memory, graphs and contexts that no call has used yet.

use super::*;

/// What single rows use up, into `spare`.
impl Scene {
    pub(super) fn fresh_stream(&mut self) -> Result {
        call!(cuStreamCreate(*mut u64 = &raw mut self.spare, c_uint = NON_BLOCKING)).map(drop)
    }

    pub(super) fn working_stream(&mut self) -> Result {
        self.fresh_stream()?;
        // Behind the work of `busy` from when that is there, by the event that follows it.
        let spin = Launch {
            function: self.kernels.spin,
            blocks: 1,
            threads: 1,
            arguments: &[100_000_000, 0],
        };
        let mut arguments = spin
            .arguments
            .iter()
            .map(|one| std::ptr::from_ref(one).cast_mut().cast())
            .collect::<Vec<Pointer>>();
        call!(cuLaunchKernel(
            Handle = spin.function,
            c_uint = 1, c_uint = 1, c_uint = 1,
            c_uint = 1, c_uint = 1, c_uint = 1,
            c_uint = 0,
            Handle = self.spare as Handle,
            *mut Pointer = arguments.as_mut_ptr(),
            *const Pointer = null()
        ))
        .map(drop)
    }

    pub(super) fn fresh_event(&mut self) -> Result {
        call!(cuEventCreate(*mut u64 = &raw mut self.spare, c_uint = NO_TIMING)).map(drop)
    }

    pub(super) fn pending_event(&mut self) -> Result {
        self.working_stream()?;
        let stream = self.spare as Handle;
        self.fresh_event()?;
        call!(cuEventRecord(
            Handle = self.spare as Handle,
            Handle = stream
        ))
        .map(drop)
    }

    pub(super) fn capturing(&mut self) -> Result {
        self.fresh_stream()?;
        call!(cuStreamBeginCapture_v2(
            Handle = self.spare as Handle,
            c_int = 2
        ))
        .map(drop)
    }

    pub(super) fn fresh_memory(&mut self) -> Result {
        call!(cuMemAlloc_v2(*mut u64 = &raw mut self.spare, usize = 2 * MIB)).map(drop)
    }

    pub(super) fn fresh_host(&mut self) -> Result {
        call!(cuMemHostAlloc(*mut u64 = &raw mut self.spare, usize = MIB, c_uint = 3)).map(drop)
    }

    pub(super) fn fresh_pooled(&mut self) -> Result {
        call!(cuMemAllocAsync(*mut u64 = &raw mut self.spare, usize = MIB, Handle = self.idle))?;
        call!(cuStreamSynchronize(Handle = self.idle)).map(drop)
    }

    pub(super) fn fresh_pool(&mut self) -> Result {
        let properties = self.pool_properties();
        call!(cuMemPoolCreate(*mut u64 = &raw mut self.spare, *const PoolProperties = &raw const properties))
            .map(drop)
    }

    pub(super) fn registered(&mut self) -> Result {
        let at = self.aligned();
        // Registered already by the row before.
        let _: Result<u64> = call!(cuMemHostRegister_v2(Pointer = at, usize = MIB, c_uint = 0));
        Ok(())
    }

    pub(super) fn fresh_address(&mut self) -> Result {
        call!(cuMemAddressReserve(*mut u64 = &raw mut self.spare, usize = 2 * MIB, usize = 0, u64 = 0, u64 = 0))
            .map(drop)
    }

    pub(super) fn fresh_handle(&mut self) -> Result {
        let properties = self.properties(0);
        call!(cuMemCreate(*mut u64 = &raw mut self.spare, usize = 2 * MIB, *const Properties = &raw const properties, u64 = 0))
            .map(drop)
    }

    pub(super) fn exportable(&mut self) -> Result {
        let properties = self.properties(DESCRIPTOR);
        call!(cuMemCreate(*mut u64 = &raw mut self.spare, usize = 2 * MIB, *const Properties = &raw const properties, u64 = 0))
            .map(drop)
    }

    pub(super) fn unmapped(&mut self) -> Result {
        // Nothing may be there, which is as well.
        let _: Result<u64> = call!(cuMemUnmap(u64 = self.mapping.at, usize = 2 * MIB));
        Ok(())
    }

    pub(super) fn mapped(&mut self) -> Result {
        self.unmapped()?;
        call!(cuMemMap(
            u64 = self.mapping.at,
            usize = 2 * MIB,
            usize = 0,
            u64 = self.mapping.handle,
            u64 = 0
        ))?;
        self.access(self.mapping.at).map(drop)
    }

    pub(super) fn fresh_graph(&mut self) -> Result {
        call!(cuGraphCreate(*mut u64 = &raw mut self.spare, c_uint = 0)).map(drop)
    }

    pub(super) fn fresh_exec(&mut self) -> Result {
        call!(cuGraphInstantiateWithFlags(*mut u64 = &raw mut self.spare, Handle = self.graph.empty, u64 = 0))
            .map(drop)
    }

    pub(super) fn fresh_module(&mut self) -> Result {
        call!(cuModuleLoadData(*mut u64 = &raw mut self.spare, *const c_char = PTX.as_ptr()))
            .map(drop)
    }

    pub(super) fn fresh_library(&mut self) -> Result {
        call!(cuLibraryLoadData(*mut u64 = &raw mut self.spare, *const c_char = PTX.as_ptr(), Pointer = null_mut(), Pointer = null_mut(), c_uint = 0, Pointer = null_mut(), Pointer = null_mut(), c_uint = 0))
            .map(drop)
    }

    pub(super) fn retained(&mut self) -> Result {
        call!(cuDevicePrimaryCtxRetain(*mut u64 = &raw mut self.spare, c_int = self.device))
            .map(drop)
    }

    pub(super) fn fresh_context(&mut self) -> Result {
        call!(cuCtxCreate_v2(*mut u64 = &raw mut self.spare, c_uint = 0, c_int = self.device))
            .map(drop)
    }
}
