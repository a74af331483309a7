//! What the programs for people share. Nothing here knows what Tidegate is.
//!
//! * [`screen`]: tables and folded lines that fit a terminal;
//! * [`numbers`]: numbers and sentences; [`spread`]: what many values are like;
//! * [`served`]: the table of what users got, run beside run;
//! * [`page`] and [`svg`]: HTML pages and the plots in them;
//! * [`rng`]: random numbers that follow from a seed.

pub mod numbers;
pub mod page;
pub mod rng;
pub mod screen;
pub mod served;
pub mod spread;
pub mod svg;
