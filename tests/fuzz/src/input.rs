//! An input, taken apart.

/// Takes an input apart, from the front. What is missing at its end is zero.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}
