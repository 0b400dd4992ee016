//! Before the first step: what an experiment names is opened, planned, assembled and checked.

pub(crate) mod assemble;
pub(crate) mod begun;
pub(crate) mod checked_data;
pub(crate) mod data;
pub(crate) mod device;
pub(crate) mod engine;
pub(crate) mod examine;
pub(crate) mod fits;
pub(crate) mod initial;
pub(crate) mod kind;
pub(crate) mod links;
mod of_model;
pub(crate) mod open;
pub(crate) mod pages;
pub(crate) mod process;
pub(crate) mod processors;
pub(crate) mod rates;
pub(crate) mod resolve;
pub(crate) mod same_files;
pub(crate) mod saved;
pub(crate) mod shared;
pub(crate) mod slow;
pub(crate) mod start;
pub(crate) mod texts;
pub(crate) mod trained;
pub(crate) mod twice;
pub(crate) mod weights;
