//! Operations on the open file of a job: locks on bytes, zeros, queries.

/// Locks or unlocks one byte of an open file, for as long as it is open.
pub fn lock(fd: i32, byte: i64, kind: i32, wait: bool) -> bool {
    // SAFETY: an all-zero flock is valid; the fields used are set below.
    let mut wanted: libc::flock = unsafe { core::mem::zeroed() };
    wanted.l_type = kind as libc::c_short;
    wanted.l_whence = libc::SEEK_SET as libc::c_short;
    wanted.l_start = byte;
    wanted.l_len = 1;
    let how = if wait {
        libc::F_OFD_SETLKW
    } else {
        libc::F_OFD_SETLK
    };
    // SAFETY: the struct is live for the call.
    unsafe { libc::fcntl(fd, how, &raw mut wanted) == 0 }
}

/// What the kernel says of an open file.
pub fn stat(fd: i32) -> Option<libc::stat> {
    // SAFETY: an all-zero stat is a place for one.
    let mut stat = unsafe { core::mem::zeroed() };
    // SAFETY: live for the call.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat)
}

/// Bytes of an open file.
pub fn size(fd: i32) -> usize {
    stat(fd).map_or(0, |stat| usize::try_from(stat.st_size).unwrap_or(0))
}

/// Writes zeros. What is only sized has no memory yet, and the process that touches it where there is none left is ended.
pub fn fill(fd: i32, from: usize, bytes: usize) -> bool {
    let zeros = [0_u8; 64 << 10];
    let (mut at, end) = (from, from + bytes);
    while at < end {
        let some = zeros.len().min(end - at);
        // SAFETY: the bytes are live; a plain call on a descriptor of ours.
        let wrote = unsafe { libc::pwrite(fd, zeros.as_ptr().cast(), some, at as libc::off_t) };
        match usize::try_from(wrote) {
            Ok(0) | Err(_) => return false,
            Ok(wrote) => at += wrote,
        }
    }
    true
}
