//! What the macro makes of the table: the exported detour of each row, by class.
//!
//! The detour of a launch has two bodies. The hot one ([`crate::state::activity::slots::enter`]) runs while the device
//! is busy. In any doubt it makes a tail call, with the same arguments, to the slow one ([`crate::activity::launch`]).
//!
//! The other folders know neither the table nor the library's threads. A detour passes them its row and, if a call may
//! show the process' first context, the function `start` of the table's file.

/// The first CUDA version with functions for programs whose stream 0 is each thread's own.
pub const TWINS_SINCE: i32 = 7000;

/// The table: class, first CUDA version, the ending of its twin if it has one, signature; one row each.
#[macro_export]
macro_rules! hooks {
    ($( $class:ident $([$($how:tt)*])? $since:literal $(+ $twin:ident)? fn $name:ident $args:tt; )*) => {
        /// Every row's symbol, with its terminating zero.
        const SYMBOLS: &[&str] = &[ $(
            $crate::symbol!($name),
            $( $crate::symbol!($name $twin), )?
        )* ];

        /// The place of a symbol in [`ROWS`].
        const fn place(symbol: &str) -> usize {
            let mut at = 0;
            while !$crate::real::row::same(SYMBOLS[at].as_bytes(), symbol.as_bytes()) {
                at += 1;
            }
            at
        }

        /// Every row.
        pub static ROWS: [$crate::real::row::Row; SYMBOLS.len()] = [ $(
            $crate::real::row::Row::new(
                $crate::symbol!($name),
                $since,
                $crate::class_of!($class),
                place($crate::symbol!($name)),
                $name as *const () as *mut core::ffi::c_void,
                stub::$name as *const () as *mut core::ffi::c_void,
            ),
            $( $crate::real::row::Row::new(
                $crate::symbol!($name $twin),
                if $since > $crate::hook::detour::TWINS_SINCE { $since } else { $crate::hook::detour::TWINS_SINCE },
                $crate::class_of!($class),
                place($crate::symbol!($name $twin)),
                twin::$name as *const () as *mut core::ffi::c_void,
                stub::twin::$name as *const () as *mut core::ffi::c_void,
            ), )?
        )* ];

        #[cfg(test)]
        mod judged {
            use super::*;
            $( $crate::hook::judged::judged!($name $args); )*
        }

        mod stub {
            use super::*;
            $( $crate::stub!([$crate::symbol!($name)] $name $args); )*

            pub mod twin {
                use super::*;
                $( $( $crate::stub!([$crate::symbol!($name $twin)] $name $args); )? )*
            }
        }

        $( $crate::export!($class [$($($how)*)?] $name $args); )*

        mod twin {
            use super::*;
            $( $crate::export!(@twin [$($twin)?] $class [$($($how)*)?] $name $args); )*
        }
    };
}

/// A row's symbol, with its terminating zero.
#[macro_export]
macro_rules! symbol {
    ($name:ident) => {
        concat!(stringify!($name), "\0")
    };
    ($name:ident $twin:ident) => {
        concat!(stringify!($name), "_", stringify!($twin), "\0")
    };
}

/// What stands in a row's slot until the real function is known.
#[macro_export]
macro_rules! stub {
    ([$symbol:expr] $name:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            let real = ROWS[const { place($symbol) }].resolve_linked();
            if real.is_null() {
                return CUresult::NOT_FOUND;
            }
            // SAFETY: the driver's function of this name has this signature.
            let real = unsafe { core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C" fn($($ty),*) -> CUresult>(real) };
            // SAFETY: the application's own arguments, unchanged.
            unsafe { real($($arg),*) }
        }
    };
}

/// The exported function of a row.
#[macro_export]
macro_rules! export {
    // `cuLaunchKernel`, whose five stack arguments a compiled detour would load before its checks and
    // keep in registers it must save first: twenty instructions more. `slots::enter`, step by step,
    // in registers that carry no argument; then the stack arguments are pushed from where they are.
    (LaunchKernel [$stream:expr] $name:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[cold]
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn slow_launch_kernel($($arg: $ty),*) -> CUresult {
            static ROW: &$crate::real::row::Row = &ROWS[place($crate::symbol!($name))];
            let touch = $crate::activity::launch::Touch {
                stream: $crate::state::activity::slots::named::<false>($stream as usize),
                graph: 0,
                waits_on_host: false,
            };
            $crate::activity::launch::slow(ROW, start, touch, || {
                let real = ROW.real.load(core::sync::atomic::Ordering::Relaxed);
                // SAFETY: the driver's function of this name, or the stub, which has its signature;
                // the application's own arguments, unchanged.
                unsafe {
                    core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C" fn($($ty),*) -> CUresult>(real)($($arg),*)
                }
            })
        }

        /// The driver's function of this name.
        ///
        /// # Safety
        /// As of the driver's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "mov r11, qword ptr [rip + tidegate_slot_of_thread@GOTTPOFF]",
            "mov r11, qword ptr fs:[r11]",
            "test r11, r11",
            "je 2f",
            "mov rax, qword ptr [rsp + 24]",
            "cmp rax, 1",
            "adc rax, 0",
            "cmp qword ptr [r11 + {last_stream}], rax",
            "jne 2f",
            "cmp qword ptr [rip + {announce}], 0",
            "jne 2f",
            "mov r10, qword ptr [rip + {page}]",
            "add r10, qword ptr [r11 + {words_at}]",
            "inc qword ptr [r11 + {entered}]",
            "test byte ptr [r10 + {activity}], 1",
            "je 3f",
            "test byte ptr [r10 + {gate}], 3",
            "jne 3f",
            "inc qword ptr [r11 + {calls}]",
            "push rbx",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset rbx, 0",
            "mov rbx, r11",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "push qword ptr [rsp + 56]",
            "push qword ptr [rsp + 56]",
            "push qword ptr [rsp + 56]",
            "push qword ptr [rsp + 56]",
            "push qword ptr [rsp + 56]",
            ".cfi_adjust_cfa_offset 40",
            "call qword ptr [rip + {rows} + {real}]",
            "add rsp, 48",
            ".cfi_adjust_cfa_offset -48",
            "inc qword ptr [rbx + {returned}]",
            "pop rbx",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_restore rbx",
            "ret",
            "3:",
            "dec qword ptr [r11 + {entered}]",
            "2:",
            "jmp {slow}",
            ".cfi_endproc",
            last_stream = const core::mem::offset_of!($crate::state::activity::slots::Slot, last_stream),
            words_at = const core::mem::offset_of!($crate::state::activity::slots::Slot, words_at),
            entered = const core::mem::offset_of!($crate::state::activity::slots::Slot, counts.entered),
            returned = const core::mem::offset_of!($crate::state::activity::slots::Slot, counts.returned),
            calls = const core::mem::offset_of!($crate::state::activity::slots::Slot, calls) + 8 * place($crate::symbol!($name)),
            activity = const core::mem::offset_of!(tidegate_abi::page::DeviceWords, activity),
            gate = const $crate::state::activity::slots::GATE_FROM_DEVICE,
            real = const core::mem::size_of::<$crate::real::row::Row>() * place($crate::symbol!($name))
                + core::mem::offset_of!($crate::real::row::Row, real),
            announce = sym $crate::state::activity::slots::ANNOUNCE,
            page = sym $crate::state::activity::slots::PAGE,
            rows = sym ROWS,
            slow = sym slow_launch_kernel,
        )
        }
    };
    // Only the base has the short body: few programs have a stream 0 for each thread.
    (@twin [] $class:ident $how:tt $name:ident $args:tt) => {};
    (@twin $twin:tt LaunchKernel $how:tt $name:ident $args:tt) => {
        $crate::export!(@twin $twin Launch $how $name $args);
    };
    (@twin [$twin:ident] $class:ident $how:tt $name:ident $args:tt) => {
        $crate::export!(@as [$crate::symbol!($name $twin)] [export_name = concat!(stringify!($name), "_", stringify!($twin))] $class $how $name $args);
    };
    ($class:ident $how:tt $name:ident $args:tt) => {
        $crate::export!(@as [$crate::symbol!($name)] [no_mangle] $class $how $name $args);
    };
    (@as [$symbol:expr] [$($exported:tt)*] $class:ident [$($how:tt)*] $name:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        /// The driver's function of this name.
        ///
        /// # Safety
        /// As of the driver's function.
        #[unsafe($($exported)*)]
        #[allow(non_snake_case, clippy::too_many_arguments, unused_unsafe)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            type Real = unsafe extern "C" fn($($ty),*) -> CUresult;
            #[allow(dead_code)]
            const ID: usize = place($symbol);
            static ROW: &$crate::real::row::Row = &ROWS[place($symbol)];
            #[allow(dead_code)]
            const THREAD: bool = $crate::real::row::thread($symbol.as_bytes().split_at($symbol.len() - 1).0);
            #[inline(always)]
            fn real() -> Real {
                let real = ROW.real.load(core::sync::atomic::Ordering::Relaxed);
                // SAFETY: the driver's function of this name, or the stub, which has its signature.
                unsafe { core::mem::transmute::<*mut core::ffi::c_void, Real>(real) }
            }
            $crate::detour!($class [$($how)*] ($($arg: $ty),*))
        }
    };
}

/// The class that a row's keyword stands for.
#[macro_export]
macro_rules! class_of {
    (Launch) => {
        $crate::real::row::Class::Launch
    };
    (LaunchKernel) => {
        $crate::real::row::Class::Launch
    };
    (LaunchGraph) => {
        $crate::real::row::Class::Launch
    };
    (LaunchMany) => {
        $crate::real::row::Class::Launch
    };
    (ToHost) => {
        $crate::real::row::Class::Launch
    };
    (Sync) => {
        $crate::real::row::Class::Sync
    };
    (Current) => {
        $crate::real::row::Class::Life
    };
    (Around) => {
        $crate::real::row::Class::Life
    };
    (Capture) => {
        $crate::real::row::Class::Capture
    };
    (Memory) => {
        $crate::real::row::Class::Memory
    };
    (Hold) => {
        $crate::real::row::Class::Hold
    };
    (Resolve) => {
        $crate::real::row::Class::Resolve
    };
}

/// The body of a detour, by class.
#[macro_export]
macro_rules! detour {
    // Work for one stream; `host`: it may make the stream wait for something outside the GPU.
    (Launch [$stream:expr] ($($arg:ident: $ty:ty),*)) => {
        $crate::detour!(@hot $stream, |_slot| {}, 0, false; ($($arg: $ty),*))
    };
    (Launch [$stream:expr, host] ($($arg:ident: $ty:ty),*)) => {{
        let touch = $crate::activity::launch::Touch { stream: $crate::state::activity::slots::named::<THREAD>($stream as usize), graph: 0, waits_on_host: true };
        // SAFETY: the application's own arguments, unchanged.
        $crate::activity::launch::slow(ROW, start, touch, || unsafe { real()($($arg),*) })
    }};
    (LaunchGraph [$stream:expr, $exec:expr] ($($arg:ident: $ty:ty),*)) => {
        $crate::detour!(@hot $stream, |slot: &$crate::state::activity::slots::Slot| {
            slot.graph.store($exec as usize as u64, core::sync::atomic::Ordering::Relaxed);
        }, $exec as usize as u64, false; ($($arg: $ty),*))
    };
    (@hot $stream:expr, $note:expr, $graph:expr, $host:expr; ($($arg:ident: $ty:ty),*)) => {{
        #[cold]
        #[inline(never)]
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn slow($($arg: $ty),*) -> CUresult {
            let touch = $crate::activity::launch::Touch {
                stream: $crate::state::activity::slots::named::<THREAD>($stream as usize),
                graph: $graph,
                waits_on_host: $host,
            };
            // SAFETY: the application's own arguments, unchanged.
            $crate::activity::launch::slow(ROW, start, touch, || unsafe { real()($($arg),*) })
        }
        match $crate::state::activity::slots::enter($crate::state::activity::slots::named::<THREAD>($stream as usize), ID) {
            Some(slot) => {
                #[allow(clippy::redundant_closure_call)]
                ($note)(slot);
                // SAFETY: the application's own arguments, unchanged.
                let result = unsafe { real()($($arg),*) };
                slot.counts.raise_returned();
                result
            }
            // SAFETY: as above.
            None => unsafe { slow($($arg),*) },
        }
    }};
    // A launch whose streams are found by a function of its own.
    (LaunchMany [$path:path] ($($arg:ident: $ty:ty),*)) => {
        // SAFETY: the application's own arguments, unchanged.
        unsafe { $path(ROW, start, $($arg),*, || unsafe { real()($($arg),*) }) }
    };
    // A copy to the host, which has happened when it returns.
    (ToHost [$bytes:expr] ($($arg:ident: $ty:ty),*)) => {
        // SAFETY: the application's own arguments, unchanged.
        $crate::activity::launch::to_host(ROW, start, $crate::state::activity::slots::named::<THREAD>(0), $bytes, || unsafe { real()($($arg),*) })
    };
    (Sync [$proof:expr] ($($arg:ident: $ty:ty),*)) => {{
        // SAFETY: the application's own arguments, unchanged.
        $crate::activity::sync::around(ROW, $proof, || unsafe { real()($($arg),*) })
    }};
    // The thread's current context may be another afterwards.
    (Current [] ($($arg:ident: $ty:ty),*)) => {{
        ROW.count();
        // SAFETY: the application's own arguments, unchanged.
        $crate::activity::contexts::changed(start, unsafe { real()($($arg),*) })
    }};
    // A function that is given the rest of the call, or its result.
    (Around [$path:path, ($($given:expr),*), call] ($($arg:ident: $ty:ty),*)) => {{
        ROW.count();
        // SAFETY: the application's own arguments, unchanged.
        $path($($given,)* || unsafe { real()($($arg),*) })
    }};
    (Around [$path:path, ($($given:expr),*), result] ($($arg:ident: $ty:ty),*)) => {{
        ROW.count();
        // SAFETY: the application's own arguments, unchanged.
        $path($($given,)* unsafe { real()($($arg),*) })
    }};
    // The same, for a call that may hold the driver's locks.
    (Around [$path:path, ($($given:expr),*), held] ($($arg:ident: $ty:ty),*)) => {{
        ROW.count();
        $crate::activity::hold::around(ROW, || {
            // SAFETY: the application's own arguments, unchanged.
            $path($($given,)* || unsafe { real()($($arg),*) })
        })
    }};
    (Memory $how:tt $arguments:tt) => {
        $crate::detour!(Around $how $arguments)
    };
    (Hold [] ($($arg:ident: $ty:ty),*)) => {{
        ROW.count();
        // SAFETY: the application's own arguments, unchanged.
        $crate::activity::hold::around(ROW, || unsafe { real()($($arg),*) })
    }};
    (Capture [$path:path, $stream:expr] ($($arg:ident: $ty:ty),*)) => {{
        ROW.count();
        // SAFETY: the application's own arguments, unchanged.
        $path($crate::state::activity::slots::named::<THREAD>($stream as usize), || unsafe { real()($($arg),*) })
    }};
    (Resolve [$path:path] ($($arg:ident: $ty:ty),*)) => {{
        ROW.count();
        // SAFETY: the application's own arguments, unchanged.
        unsafe { $path(&ROWS, real(), $($arg),*) }
    }};
}
