//! When offline work may run: pure decisions, no IO, no clock.
