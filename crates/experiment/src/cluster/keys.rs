//! Every key of a cluster's file.

use annulus_machine::Instructions;

use crate::quantity::Unit;
use crate::table::Absent::{Is, Means, Required};
use crate::table::Kind::{Count, Each, Name, Quantity, Real, Section, Word};
use crate::table::{Interval, Key, key};

/// Devices of one cluster: keeps walks short.
pub(crate) const MOST_DEVICES: u64 = 1 << 12;

pub(crate) const CLUSTER: &[Key] = &[
    key("name", Name, Required, "what the cluster is called"),
    key("nodes", Count(1, MOST_DEVICES), Is("1"), "nodes"),
    key("devices_per_node", Count(1, MOST_DEVICES), Required, "GPUs, or other devices, of a node"),
    key("memory", Quantity(Unit::Bytes), Means("as much as it takes"), "memory of a device"),
    key("cores", Count(1, MOST_DEVICES), Is("1"), "cores of a device that is a processor"),
    key("core", Section(&[CORE]), Means("as this machine's"), "what such a core computes with"),
    key("compute", Section(&[COMPUTE]), Required, "what a device achieves"),
    key("inside", Section(&[LINK]), Required, "the link of a device to others of its node"),
    key(
        "between",
        Section(&[BETWEEN]),
        Means("there is one node"),
        "the link of a device to other nodes",
    ),
    key("devices", Each(DEVICE), Means("all alike"), "devices that differ, by number from 0"),
];

const CORE: &[Key] = &[
    key("cache", Quantity(Unit::Bytes), Means("as this machine's"), "its second-level cache"),
    key(
        "vector",
        Word(&Instructions::WORDS),
        Means("as this machine's"),
        "the vector instructions that it uses",
    ),
];

const COMPUTE: &[Key] = &[
    key("forward", Quantity(Unit::Speed), Required, "speed of attention forward, as achieved"),
    key("backward", Quantity(Unit::Speed), Means("`forward`"), "speed of attention backward"),
    key("products", Quantity(Unit::Speed), Means("`forward`"), "speed of products with weights"),
    key(
        "tile",
        Count(1, 1 << 16),
        Is("128"),
        "rows and columns of scores that are computed whole or skipped whole",
    ),
];

const LINK: &[Key] = &[
    key("bandwidth", Quantity(Unit::Bandwidth), Required, "bytes per second, one way"),
    key("latency", Quantity(Unit::Latency), Is("0"), "time until the first byte is there"),
];

const BETWEEN: &[Key] = &[
    key("bandwidth", Quantity(Unit::Bandwidth), Means("none"), "bytes per second, one way"),
    key("latency", Quantity(Unit::Latency), Is("0"), "time until the first byte is there"),
    key("per", Word(&["device", "node"]), Is("device"), "who has this bandwidth to itself"),
];

const DEVICE: &[Key] = &[key(
    "slowdown",
    Real(Interval::AboveZero),
    Is("1"),
    "how many times longer it takes than the others",
)];
