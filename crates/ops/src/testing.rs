//! What tests of operators share: error measures and finite differences.
