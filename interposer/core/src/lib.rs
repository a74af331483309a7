//! Activity, prober, gate wait and RM object graph of the preloaded library, as steps.
