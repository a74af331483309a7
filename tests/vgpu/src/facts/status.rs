//! Results of RM calls.

use super::TABLES;

/// Result of an RM call. Its numbers are those of `consts.csv`, which are the same in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($name:ident $text:literal),* $(,)?) => {
        #[allow(missing_docs, reason = "the driver's names")]
        impl Status {
            $(pub const $name: Self = Self(constant($text));)*

            /// Every status with its name in the driver's headers.
            pub const ALL: &'static [(&'static str, Self)] = &[$(($text, Self::$name)),*];
        }
    };
}

statuses! {
    OK "NV_OK",
    GPU_IS_LOST "NV_ERR_GPU_IS_LOST",
    INSERT_DUPLICATE_NAME "NV_ERR_INSERT_DUPLICATE_NAME",
    INSUFFICIENT_PERMISSIONS "NV_ERR_INSUFFICIENT_PERMISSIONS",
    INVALID_ADDRESS "NV_ERR_INVALID_ADDRESS",
    INVALID_ARGUMENT "NV_ERR_INVALID_ARGUMENT",
    INVALID_CHANNEL "NV_ERR_INVALID_CHANNEL",
    INVALID_CLASS "NV_ERR_INVALID_CLASS",
    INVALID_CLIENT "NV_ERR_INVALID_CLIENT",
    INVALID_DEVICE "NV_ERR_INVALID_DEVICE",
    INVALID_OBJECT_HANDLE "NV_ERR_INVALID_OBJECT_HANDLE",
    INVALID_OBJECT_PARENT "NV_ERR_INVALID_OBJECT_PARENT",
    INVALID_PARAM_STRUCT "NV_ERR_INVALID_PARAM_STRUCT",
    INVALID_STATE "NV_ERR_INVALID_STATE",
    NO_MEMORY "NV_ERR_NO_MEMORY",
    NOT_SUPPORTED "NV_ERR_NOT_SUPPORTED",
    OBJECT_NOT_FOUND "NV_ERR_OBJECT_NOT_FOUND",
    RESET_REQUIRED "NV_ERR_RESET_REQUIRED",
    STATE_IN_USE "NV_ERR_STATE_IN_USE",
    TIMEOUT "NV_ERR_TIMEOUT",
}

impl Status {
    /// Whether the call did what it was asked.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == Self::OK.0
    }
}

/// A number of `consts.csv` by its name, while this is compiled; a name that is not there is an error.
const fn constant(name: &str) -> u32 {
    let (text, name) = (TABLES.consts.as_bytes(), name.as_bytes());
    let mut at = 0;
    while at + name.len() + 3 < text.len() {
        let mut same = 0;
        while same < name.len() && text[at + same] == name[same] {
            same += 1;
        }
        let end = at + name.len();
        if same == name.len() && at > 0 && text[at - 1] == b',' && text[end] == b',' {
            assert!(text[end + 1] == b'0' && text[end + 2] == b'x');
            let mut value = 0;
            let mut digit = end + 3;
            while digit < text.len() && text[digit] != b'\n' {
                value = value << 4
                    | match text[digit] {
                        decimal @ b'0'..=b'9' => decimal - b'0',
                        letter => letter - b'a' + 10,
                    } as u32;
                digit += 1;
            }
            return value;
        }
        at += 1;
    }
    panic!("no such constant");
}
