//! Text for people: counts and units, dates, tables that fit a terminal, and text from outside made safe to print.

mod dates;
mod escaped;
mod table;
mod units;
mod words;

pub use dates::{date, date_and_time};
pub use escaped::{escaped, shortened};
pub use table::{TERMINAL_WIDTH, aligned, blocks, stacked, wrapped};
pub use units::{duration, size};
pub use words::{count, plural};
