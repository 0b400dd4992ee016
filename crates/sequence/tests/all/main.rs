//! Positions, masks and schedules, by brute force and by hand.

mod draw;
mod flaws;
mod masks;
mod schedules;
mod views;
mod within;
