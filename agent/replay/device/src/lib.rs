//! The device model: channels, TSGs, timeslices, locks; time is an argument.
