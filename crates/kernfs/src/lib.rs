//! kernfs
