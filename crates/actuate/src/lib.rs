//! actuate
