//! Sixteen bytes with descriptors, ahead of HTTP/2 on the same Unix stream.
//!
//! ```text
//! 00 00 07 | f7 | 00 | 00 00 00 00 | 'T' 'I' 'D' 'E' | version | flags | descriptors
//! length     type flags stream        magic
//! ```
//!
//! The greeting is a valid HTTP/2 frame of an unassigned type, so an HTTP/2 peer that does not know it skips it. On
//! accept the agent sends it with one descriptor, the shared page. The client answers with the same sixteen bytes and
//! its own control file, or without a file. Only then HTTP/2 starts.
//!
//! Each side may find something else, which it recognises by peeking at the first sixteen bytes:
//!
//! * The client sees HTTP/2 SETTINGS from an agent older than the greeting, and continues without a page.
//! * The agent sees the client preface, whose first line is sixteen bytes long as well, from a client older than the
//!   greeting.
//!
//! Silence is never taken for an old peer: close and retry.

/// Bytes of a greeting, and of what is peeked.
pub const LEN: usize = 16;
/// The version this crate speaks.
pub const VERSION: u8 = 1;
/// Header of the HTTP/2 frame: 7 bytes, type 0xf7, no flags, stream 0.
pub const FRAME: [u8; 9] = [0, 0, 7, 0xf7, 0, 0, 0, 0, 0];
/// After [`FRAME`].
pub const MAGIC: [u8; 4] = *b"TIDE";
/// First line of the HTTP/2 client preface.
pub const HTTP2_PREFACE: &[u8; LEN] = b"PRI * HTTP/2.0\r\n";

/// A greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// [`VERSION`] of the sender.
    pub version: u8,
    /// None is defined yet; a receiver ignores those it does not know.
    pub flags: u8,
    /// Descriptors that travel with it.
    pub descriptors: u8,
}

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The peer greets.
    Greeting(Greeting),
    /// HTTP/2 SETTINGS: an agent older than the greeting.
    Settings,
    /// The HTTP/2 client preface: a client older than the greeting.
    Preface,
    /// Too few bytes to tell.
    More,
    /// Nothing we speak.
    Foreign,
}

impl Greeting {
    /// A greeting of this crate's version.
    #[must_use]
    pub const fn new(descriptors: u8) -> Self {
        Self {
            version: VERSION,
            flags: 0,
            descriptors,
        }
    }

    /// As it is sent.
    #[must_use]
    pub fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..9].copy_from_slice(&FRAME);
        bytes[9..13].copy_from_slice(&MAGIC);
        bytes[13..].copy_from_slice(&[self.version, self.flags, self.descriptors]);
        bytes
    }
}

impl First {
    /// Tells what `bytes`, the first of a connection, begin.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.len() >= 9 && bytes[3] == 4 && bytes[5..9] == [0; 4] {
            return Self::Settings;
        }
        let known = bytes.len().min(LEN);
        let head = &bytes[..known];
        let greeting = Greeting::new(0).encode();
        if head.len() == LEN && head[..13] == greeting[..13] {
            return Self::Greeting(Greeting {
                version: head[13],
                flags: head[14],
                descriptors: head[15],
            });
        }
        if head == HTTP2_PREFACE {
            return Self::Preface;
        }
        let could_be = |whole: &[u8]| head.len() < whole.len() && *head == whole[..head.len()];
        if could_be(&greeting[..13])
            || (head.len() >= 13 && head.len() < LEN && head[..13] == greeting[..13])
            || could_be(HTTP2_PREFACE)
            || (head.len() < 9 && (head.len() < 4 || head[3] == 4))
        {
            return Self::More;
        }
        Self::Foreign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_an_http2_frame_of_an_unknown_type() {
        let bytes = Greeting::new(1).encode();
        assert_eq!(
            bytes.len() - 9,
            usize::from(bytes[2]),
            "the frame's length is its payload's"
        );
        assert_eq!(bytes[3], 0xf7);
        assert_eq!(First::of(&bytes), First::Greeting(Greeting::new(1)));
    }

    #[test]
    fn every_beginning_is_told_apart() {
        assert_eq!(First::of(HTTP2_PREFACE), First::Preface);
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100];
        assert_eq!(First::of(&settings), First::Settings);
        assert_eq!(First::of(b"GET / HTTP/1.1\r\n"), First::Foreign);
        for cut in 0..LEN {
            assert_eq!(
                First::of(&Greeting::new(1).encode()[..cut]),
                First::More,
                "{cut}"
            );
            assert_eq!(First::of(&HTTP2_PREFACE[..cut]), First::More, "{cut}");
        }
        for cut in 0..9 {
            assert_eq!(First::of(&settings[..cut]), First::More, "{cut}");
        }
    }
}
