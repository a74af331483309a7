//! What the library reports to tests about itself: the table as text, and figures of the process.

use crate::activity::prober;
use crate::hook::table::ROWS;
use crate::process::known;
use crate::sys;
use core::ffi::c_char;
use core::sync::atomic::{AtomicPtr, Ordering};
use tidegate_abi::page::DEVICES;

/// Every row as `symbol class since`, one a line.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_hooks() -> *const c_char {
    static TEXT: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
    let known = TEXT.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let mut text = String::new();
    for row in &ROWS {
        let symbol = String::from_utf8_lossy(row.symbol);
        text.push_str(&format!("{symbol} {:?} {}\n", row.class, row.since));
    }
    text.push('\0');
    let text: &'static mut str = text.leak();
    sys::publish(&TEXT, text.as_mut_ptr().cast())
}

/// Launches counted as activity on one device, by all threads.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_launches(device: u32) -> u64 {
    let device = device as usize;
    let Some(process) = known().filter(|_| device < DEVICES) else {
        return 0;
    };
    loop {
        if let Some(launches) = prober::entered(process, device) {
            return launches;
        }
        core::hint::spin_loop();
    }
}

/// Whether a device counts as busy in the page that launches look at.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_busy(device: u32) -> i32 {
    let word = known().and_then(|process| {
        let words = process.page().devices.get(device as usize)?;
        Some(words.activity.load(Ordering::Acquire))
    });
    word.map_or(-1, |word| i32::from(word & 1 != 0))
}
