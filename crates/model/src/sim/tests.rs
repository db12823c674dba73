//! Behaviour of the whole simulator.
