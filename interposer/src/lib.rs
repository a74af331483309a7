//! libtidegate.so, the preloaded library.
