//! What the library tells tests about itself: the table as text, and figures of the process.

use crate::activity::slots;
use crate::hook::table::ROWS;
use crate::process::known;
use crate::sys;
use core::ffi::c_char;
use core::sync::atomic::{AtomicPtr, Ordering};

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
    let (Some(process), Some(all)) = (known(), slots::all()) else {
        return 0;
    };
    let own = all
        .own
        .iter()
        .filter(|slot| {
            slot.owner.load(Ordering::Acquire) != 0 && slot.device.load(Ordering::Acquire) == device
        })
        .chain(all.shared.get(device as usize))
        .map(|slot| slot.counts.entered.load(Ordering::Acquire));
    let retired = process
        .retired
        .get(device as usize)
        .map_or(0, |sums| sums.entered.load(Ordering::Acquire));
    own.sum::<u64>().wrapping_add(retired)
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
