//! Shared by the tests of the boundaries.
