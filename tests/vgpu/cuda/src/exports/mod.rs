//! The exported entry points: one row each, `symbol / per-thread symbol (arguments) => function`.
//!
//! A row makes the C function: it calls the Rust function behind the arrow and turns its result
//! into a code. Where a row has two symbols, the Rust function is told which default stream a
//! stream of 0 means. build.rs reads the rows too: names that stand in none answer "not supported".
#![allow(non_snake_case)]

mod core;
mod graph;
mod memory;
mod work;

pub use self::core::*;
pub use self::graph::*;
pub use memory::*;
pub use work::*;

/// One row of the table.
macro_rules! export {
    ($symbol:ident, ($($argument:ident: $type:ty),* $(,)?), $function:path, ) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            code_of(stringify!($symbol), $function($($argument),*))
        }
    };
    ($symbol:ident, ($($argument:ident: $type:ty),* $(,)?), $function:path, $per_thread:ident) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            code_of(stringify!($symbol), $function(DefaultStream::Legacy, $($argument),*))
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $per_thread($($argument: $type),*) -> CUresult {
            code_of(stringify!($per_thread), $function(DefaultStream::PerThread, $($argument),*))
        }
    };
}

/// A table of rows.
macro_rules! exports {
    ($(
        $symbol:ident $(/ $per_thread:ident)? ($($argument:ident: $type:ty),*) => $function:path;
    )*) => {
        $(export!($symbol, ($($argument: $type),*), $function, $($per_thread)?);)*
    };
}

use {export, exports};
