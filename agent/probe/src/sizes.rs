//! Whether a function has, parameter by parameter, the sizes that cudarc gives it: the compiler compares them.

/// Of a function the sizes of its parameters.
pub(crate) trait Sizes {
    const ARE: &'static [usize];
}

macro_rules! sizes {
    ($($parameter:ident)*) => {
        impl<R, $($parameter),*> Sizes for unsafe extern "C" fn($($parameter),*) -> R {
            const ARE: &'static [usize] = &[$(size_of::<$parameter>()),*];
        }
        impl<R, $($parameter),*> Sizes for unsafe fn($($parameter),*) -> R {
            const ARE: &'static [usize] = &[$(size_of::<$parameter>()),*];
        }
        sizes!(@ $($parameter)*);
    };
    (@) => {};
    (@ $first:ident $($rest:ident)*) => { sizes!($($rest)*); };
}

sizes!(A B C D E F G H I J K);

/// Stands for a type that the compiler is to find.
macro_rules! any_of {
    ($ty:ty) => {
        _
    };
}

pub(crate) use any_of;

pub(crate) const fn of<F: Sizes>() -> &'static [usize] {
    F::ARE
}

pub(crate) const fn of_value<F: Sizes + Copy>(_: F) -> &'static [usize] {
    F::ARE
}

pub(crate) const fn same(ours: &[usize], theirs: &[usize]) -> bool {
    let mut at = 0;
    while at < ours.len() && at < theirs.len() {
        if ours[at] != theirs[at] {
            return false;
        }
        at += 1;
    }
    ours.len() == theirs.len()
}
