//! Traces, the synthetic generator and the virtual-time engine.
