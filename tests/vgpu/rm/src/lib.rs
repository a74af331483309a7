//! libvgpu_rm.so: answers for /dev/nvidia* by asking the device process.
