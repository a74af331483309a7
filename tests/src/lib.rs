//! Promises, one file each, on the virtual GPU.
