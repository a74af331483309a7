//! libcuda.so.1 of the virtual GPU.
