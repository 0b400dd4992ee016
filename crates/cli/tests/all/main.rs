//! Messages of the program.

mod errors;
mod shown;
