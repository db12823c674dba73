//! Where a target's time goes.
