//! A file of records in which the newest overwrites the oldest.
//!
//! The whole file is taken from the disk when it is made, so that a disk that fills up later does not
//! matter. Record n stands at place n modulo the number of places; where to go on is found by reading
//! all numbers once. Nobody else needs to be told where the newest is, so there is no header that could
//! contradict the records.

use super::Slice;
use super::record::{self, SIZE};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// A file that is written to.
#[derive(Debug)]
pub struct Ring {
    file: File,
    places: u64,
    next: u64,
}

impl Ring {
    /// Opens `path`, or makes it with room for `bytes`. One that is of another size is made that size: a
    /// longer one keeps its newest records as far as they stand within, a shorter one all.
    ///
    /// # Errors
    /// When the file cannot be opened, or the disk has no room.
    pub fn open(path: &Path, bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(path)?;
        let places = (bytes / SIZE as u64).max(1);
        let bytes = places * SIZE as u64;
        let last = numbered(&mut whole(&file)?)?
            .into_iter()
            .map(|(number, _)| number)
            .max();
        if file.metadata()?.len() > bytes {
            file.set_len(bytes)?;
        }
        let length = i64::try_from(bytes).map_err(io::Error::other)?;
        nix::fcntl::posix_fallocate(&file, 0, length)?;
        Ok(Self {
            file,
            places,
            next: last.map_or(0, |last| last + 1),
        })
    }

    /// Writes `slice` over the oldest.
    ///
    /// # Errors
    /// Of the disk.
    pub fn append(&mut self, slice: &Slice) -> io::Result<()> {
        let at = self.next % self.places * SIZE as u64;
        self.file
            .write_all_at(&record::encode(slice, self.next), at)?;
        self.next += 1;
        Ok(())
    }
}

/// All there is of `file`, which must have an end.
fn whole(file: &File) -> io::Result<impl Read> {
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("this is no regular file"));
    }
    Ok(file.take(about.len()))
}

fn numbered(from: &mut impl Read) -> io::Result<Vec<(u64, Slice)>> {
    let mut found = Vec::new();
    let mut chunk = vec![0; SIZE * 1_024];
    loop {
        let mut filled = 0;
        while filled < chunk.len() {
            match from.read(&mut chunk[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        found.extend(
            chunk[..filled]
                .chunks_exact(SIZE)
                .filter_map(record::decode),
        );
        if filled < chunk.len() {
            return Ok(found);
        }
    }
}

/// Every whole record of `path`, oldest first.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<Slice>> {
    let file = File::open(path)?;
    let mut found = numbered(&mut whole(&file)?)?;
    let mut first = [0; SIZE];
    let read = file.read_at(&mut first, 0)?;
    if found.is_empty() && first[..read].iter().any(|byte| *byte != 0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it holds no record of a history that this version reads",
        ));
    }
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, slice)| slice).collect())
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::slices;
    use super::super::{PairSlice, Span, Subject};
    use super::*;
    use proptest::prelude::*;

    struct Scratch(std::path::PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("tg-ring-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_file(&path);
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn slice(at: u64) -> Slice {
        Slice {
            span: Span {
                end_unix_ms: at,
                length_ns: 1,
            },
            subject: Subject::Pair(PairSlice::default()),
        }
    }

    fn ends(path: &Path) -> Vec<u64> {
        let slices = read(path).expect("readable").into_iter();
        slices.map(|slice| slice.span.end_unix_ms).collect()
    }

    const PLACES: u64 = 8;
    const BYTES: u64 = PLACES * SIZE as u64;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// P-OPERATE-14: a history survives and never grows, a report adds up.
        #[test]
        fn it_holds_the_newest_in_order_however_often_it_was_opened(
            parts in prop::collection::vec(prop::collection::vec(slices(), 0..6), 1..6),
        ) {
            let scratch = Scratch::new("order");
            let mut all = Vec::new();
            for part in &parts {
                let mut ring = Ring::open(&scratch.0, BYTES).expect("a file");
                for slice in part {
                    ring.append(slice).expect("room");
                    all.push(slice.clone());
                }
            }
            let newest = all.split_off(all.len().saturating_sub(8));
            prop_assert_eq!(read(&scratch.0).expect("readable"), newest);
            let length = std::fs::metadata(&scratch.0).expect("a file").len();
            prop_assert_eq!(length, BYTES);
        }

        /// P-OPERATE-14: a history survives and never grows, a report adds up.
        #[test]
        fn a_torn_record_costs_itself_and_nothing_else(cut in 1..SIZE, written in 1u64..20) {
            let scratch = Scratch::new("torn");
            let mut ring = Ring::open(&scratch.0, BYTES).expect("a file");
            for at in 0..written {
                ring.append(&slice(at)).expect("room");
            }
            // The next one gets as far as `cut` bytes.
            let place = written % PLACES * SIZE as u64;
            let whole = record::encode(&slice(written), written);
            ring.file.write_all_at(&whole[..cut], place).expect("room");
            let kept: Vec<u64> = (written.saturating_sub(PLACES - 1)..written).collect();
            // What tore is the old record still, the new one already, or neither.
            let found = ends(&scratch.0);
            let others: Vec<u64> = found.iter().copied().filter(|at| kept.contains(at)).collect();
            prop_assert_eq!(&others, &kept);
            prop_assert!(found.len() <= kept.len() + 1, "{:?}", found);
            let mut again = Ring::open(&scratch.0, BYTES).expect("a file");
            again.append(&slice(99)).expect("room");
            prop_assert_eq!(ends(&scratch.0).last().copied(), Some(99));
        }
    }

    /// P-OPERATE-14: a history survives and never grows, a report adds up.
    #[test]
    fn a_device_without_an_end_is_no_history() {
        let endless = Path::new("/dev/zero");
        assert!(read(endless).is_err() && Ring::open(endless, BYTES).is_err());
    }

    /// P-OPERATE-14: a history survives and never grows, a report adds up.
    #[test]
    fn a_file_of_rubbish_is_no_history_to_a_reader_and_an_empty_one_to_a_writer() {
        let scratch = Scratch::new("rubbish");
        std::fs::write(&scratch.0, vec![0xa5; 3 * SIZE + 17]).expect("a file");
        let error = read(&scratch.0).expect_err("rubbish");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        let mut ring = Ring::open(&scratch.0, BYTES).expect("taken over");
        ring.append(&slice(7)).expect("room");
        assert_eq!(ends(&scratch.0), [7]);
    }
}
